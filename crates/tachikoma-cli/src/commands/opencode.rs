//! `tachikoma opencode`: the server of OpenCode, kept alive, and what can be asked of its supervisor.

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

/// Does what was asked.
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

/// Returns the directory of the supervisor around here: this one's, or one above it.
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

/// Says that there is no supervisor.
fn nobody(workspace: &Workspace) -> Failure {
    Failure::new(format!(
        "no OpenCode server is kept running in {}",
        workspace.directory.display()
    ))
    .hint("`tachikoma opencode up` starts one")
}
