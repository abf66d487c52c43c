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
use crate::place::Place;

/// Does what was asked.
pub fn opencode(place: &Place, command: &OpencodeCommand) -> Result<ExitCode, Failure> {
    match command {
        OpencodeCommand::Up(args) => up::up(place, args),
        OpencodeCommand::Status { json } => status::status(place, *json),
        OpencodeCommand::Restart => order::restart(place),
        OpencodeCommand::Stop => order::stop(place),
        OpencodeCommand::Reload => order::reload(place),
        OpencodeCommand::Events { json } => events::events(place, *json),
        OpencodeCommand::Logs { follow } => logs::logs(place, *follow),
    }
}

/// Returns the directory of the supervisor around here: this one's, or one above it.
fn dir_here(place: &Place) -> Result<PathBuf, Failure> {
    let below = |dir: &std::path::Path| dir.join(RALPH_DIR).join(DIR);
    let configured = place.configured_dir();
    let nearest = configured.iter().chain([&place.directory]);
    let mut nearest = nearest.flat_map(|dir| dir.ancestors());
    let found = nearest.find(|dir| below(dir).is_dir());
    let found = found.unwrap_or(&place.directory);
    owner::check_ralph(found)?;
    Ok(below(found))
}

/// Says that there is no supervisor.
fn nobody(place: &Place) -> Failure {
    Failure::new(format!(
        "no OpenCode server is kept running in {}",
        place.directory.display()
    ))
    .hint("`tachikoma opencode up` starts one")
}
