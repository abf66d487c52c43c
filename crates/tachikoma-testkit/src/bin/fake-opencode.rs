//! The fake server as a program: `tachikoma_testkit::fake_opencode` says what it is.

use std::process::ExitCode;

fn main() -> ExitCode {
    tachikoma_testkit::fake_opencode::main()
}
