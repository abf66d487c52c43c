//! `tachikoma state`: shows and changes the stored state of loops.

mod backup;
mod change;
mod cloud;
mod export;
mod show;
mod verify;
mod work_tree;

use std::path::Path;
use std::process::ExitCode;

use tachikoma_loop_runner::offline::StoreConfig;

pub use change::refuse_live;

use crate::args::StateCommand;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Runs the command.
pub fn state(workspace: &Workspace, command: StateCommand) -> Result<ExitCode, Failure> {
    match command {
        StateCommand::Show { json } => show::show(workspace, json),
        StateCommand::Verify { json } => verify::verify(workspace, json),
        StateCommand::Set { key, value } => change::set(workspace, key, &value),
        StateCommand::Export { output, force } => {
            export::export(workspace, output.as_deref(), force)
        }
        StateCommand::Backup => backup::take(workspace),
        StateCommand::Backups {
            from: Some(url),
            json,
        } => cloud::list(workspace, &url, json),
        StateCommand::Backups { from: None, json } => backup::list(workspace, json),
        StateCommand::Restore { file, from, yes } => {
            backup::restore(workspace, file.as_deref(), &from, yes)
        }
        StateCommand::Clear { purge, yes } => {
            change::clear(workspace, purge, yes).map_err(Failure::suggest_new_loop)
        }
    }
}

/// Returns a path for messages: relative to the working directory if it is below it.
fn shown(store_config: &StoreConfig, path: &Path) -> String {
    let short = path.strip_prefix(&store_config.working_dir);
    short.unwrap_or(path).display().to_string()
}
