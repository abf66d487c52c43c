//! The fake agent as a program; see `tachikoma_testkit::fake_agent`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tachikoma_testkit::fake_agent::main()
}
