//! `tachikoma opencode`: the supervised OpenCode server, and requests to its supervisor.

mod events;
mod logs;
mod order;
mod status;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use tachikoma_fs::{RALPH_DIR, owner};
use tachikoma_loop_runner::opencode::supervisor::DIR;

use crate::args::OpencodeCommand;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Runs the command.
pub fn opencode(workspace: &Workspace, command: &OpencodeCommand) -> Result<ExitCode, Failure> {
    match command {
        OpencodeCommand::Up(args) => up::up(workspace, args),
        OpencodeCommand::Status { json } => status::status(workspace, *json),
        OpencodeCommand::Restart => order::restart(workspace),
        OpencodeCommand::Stop => order::stop(workspace),
        OpencodeCommand::Reload => order::reload(workspace),
        OpencodeCommand::Events { json } => events::events(workspace, *json),
        OpencodeCommand::Logs { follow } => logs::logs(workspace, *follow),
    }
}

/// Returns the directory of the supervisor of this directory or a parent directory.
fn dir_here(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let below = |dir: &std::path::Path| dir.join(RALPH_DIR).join(DIR);
    let configured = workspace.configured_dir();
    let nearest = configured.iter().chain([&workspace.directory]);
    let mut nearest = nearest.flat_map(|dir| dir.ancestors());
    let found = nearest.find(|dir| below(dir).is_dir());
    let found = found.unwrap_or(&workspace.directory);
    owner::check_ralph(found)?;
    Ok(below(found))
}

/// Returns the failure for a missing supervisor.
fn no_supervisor(workspace: &Workspace) -> Failure {
    Failure::new(format!(
        "no OpenCode server is supervised in {}",
        workspace.directory.display()
    ))
    .hint("`tachikoma opencode up` starts one")
}
