//! An agent that speaks as Claude Code does and misbehaves on request, for the tests of the binary.

fn main() -> std::process::ExitCode {
    tachikoma_testkit::fake_agent::main()
}
