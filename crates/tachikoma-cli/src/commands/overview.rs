//! `tachikoma` without a command: shows the loop of this directory, or how to start one.

use std::process::ExitCode;

use super::status;
use crate::failure::Failure;
use crate::out;
use crate::workspace::Workspace;

/// Commands for a user who has no loop yet.
const FIRST_COMMANDS: &str = "  tachikoma demo                                    # watch a scripted agent, without a key or a network
  tachikoma init                                    # write a configuration, a prompt and a plan
  tachikoma run -p \"fix the tests\" --agent claude   # run Claude Code in a loop
  tachikoma run prompt.md -- my-agent               # run any program in a loop
  tachikoma -h                                      # list the commands";

/// Prints the status of the loop, or the first commands to try.
pub fn overview(workspace: &Workspace) -> Result<ExitCode, Failure> {
    let code = status::status(workspace, false)?;
    if status::find(workspace)?.is_none() {
        out::line(&format!("\n{FIRST_COMMANDS}"));
    }
    Ok(code)
}
