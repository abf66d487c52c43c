//! The fake agent as a program: `tachikoma_testkit::fake_agent` says what it is.

use std::process::ExitCode;

fn main() -> ExitCode {
    tachikoma_testkit::fake_agent::main()
}
