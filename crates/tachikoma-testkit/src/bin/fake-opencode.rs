//! The fake server as a program; see `tachikoma_testkit::fake_opencode`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tachikoma_testkit::fake_opencode::main()
}
