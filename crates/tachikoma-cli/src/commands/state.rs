//! `tachikoma state`: what is kept of the loops here.

mod backup;
mod change;
mod cloud;
mod export;
mod show;
mod verify;
mod work_tree;

use std::process::ExitCode;

pub use change::refuse_live;

use crate::args::StateCommand;
use crate::failure::Failure;
use crate::place::Place;

/// Does what was asked with the state.
pub fn state(place: &Place, command: StateCommand) -> Result<ExitCode, Failure> {
    match command {
        StateCommand::Show { json } => show::show(place, json),
        StateCommand::Verify { json } => verify::verify(place, json),
        StateCommand::Set { key, value } => change::set(place, key, &value),
        StateCommand::Export { output, force } => export::export(place, output.as_deref(), force),
        StateCommand::Backup => backup::take(place),
        StateCommand::Backups {
            from: Some(url),
            json,
        } => cloud::list(place, &url, json),
        StateCommand::Backups { from: None, json } => backup::list(place, json),
        StateCommand::Restore { file, from, yes } => {
            backup::restore(place, file.as_deref(), &from, yes)
        }
        StateCommand::Clear { purge, yes } => {
            change::clear(place, purge, yes).map_err(Failure::for_a_new_beginning)
        }
    }
}
