//! The fake agent, for the tests of this crate: `docs/testing-agents.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tachikoma_testkit::fake_agent::main()
}
