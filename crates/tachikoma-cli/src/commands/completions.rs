//! `tachikoma completions`: prints a completion script for a shell.

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::Args;
use crate::out;

/// Prints the script.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "tachikoma", &mut script);
    out::line(String::from_utf8_lossy(&script).trim_end());
    ExitCode::SUCCESS
}
