//! `opencode events`: prints the supervisor's journal. Only reads.

use std::process::ExitCode;

use tachikoma_core::supervise::{Level, messages};
use tachikoma_loop_runner::opencode::supervisor::read_records;

use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;
use crate::zone::local;

/// Prints the records of the supervisor, oldest first.
pub fn events(workspace: &Workspace, json: bool) -> Result<ExitCode, Failure> {
    let records = read_records(&super::dir_here(workspace)?)?;
    if records.is_empty() {
        return Err(super::no_supervisor(workspace));
    }
    for record in records {
        if json {
            let text = serde_json::to_string(&record);
            out::line(&text.map_err(|error| Failure::new(error.to_string()))?);
            continue;
        }
        for (level, text) in messages(&record.event) {
            let level = match level {
                Level::Debug | Level::Info => "",
                Level::Warning => "warning: ",
                Level::Error => "error: ",
            };
            let text = sanitize(&text).into_owned();
            out::line(&format!("{} {level}{text}", local(record.time)));
        }
    }
    Ok(ExitCode::SUCCESS)
}
