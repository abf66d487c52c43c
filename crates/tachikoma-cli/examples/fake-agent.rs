//! The fake agent, for this crate's tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    tachikoma_testkit::fake_agent::main()
}
