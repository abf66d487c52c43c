//! `tachikoma completions`: a completion script for a shell.

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::Args;

/// Prints the script.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut command = Args::command();
    clap_complete::generate(shell, &mut command, "tachikoma", &mut std::io::stdout());
    ExitCode::SUCCESS
}
