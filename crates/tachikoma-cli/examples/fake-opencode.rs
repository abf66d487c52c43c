//! The fake OpenCode server, for this crate's tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    tachikoma_testkit::fake_opencode::main()
}
