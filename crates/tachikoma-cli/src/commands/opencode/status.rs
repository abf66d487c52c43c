//! `opencode status`: shows the state of the server. Only reads.

use std::process::ExitCode;

use serde::Serialize;
use tachikoma_core::Timestamp;
use tachikoma_core::supervise::{ServerEnd, ServerState, apply};
use tachikoma_loop_runner::opencode::server_file::{Condition, ServerFile};
use tachikoma_loop_runner::opencode::supervisor::read_records;
use tachikoma_loop_runner::store::lock;

use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;
use crate::zone::local;

/// State of the server, as `--json` prints it.
#[derive(Debug, Serialize)]
struct ShownServer {
    #[serde(flatten)]
    file: ServerFile,
    /// The running supervisor; `None` if there is none.
    supervisor: Option<Keeper>,
    /// Restarts of the server since it was last healthy.
    attempts: u32,
    /// Crashes of the server since it was last healthy.
    crashes_in_a_row: u32,
    /// Number of all recorded crashes of the server.
    crashes_total: u64,
    /// Number of all restarts of the server, including requested ones.
    restarts_total: u64,
    /// How the last server process ended.
    last_end: Option<ServerEnd>,
}

#[derive(Debug, Serialize)]
struct Keeper {
    pid: u32,
    since: Timestamp,
}

/// Prints the state of the server, even if no server runs.
pub fn status(workspace: &Workspace, json: bool) -> Result<ExitCode, Failure> {
    let dir = super::dir_here(workspace)?;
    let Some(file) = ServerFile::read(&dir)? else {
        let nothing = match json {
            true => "{\"state\": null}".to_owned(),
            false => super::no_supervisor(workspace).what,
        };
        out::line(&nothing);
        return Ok(ExitCode::SUCCESS);
    };
    let mut state = ServerState::default();
    read_records(&dir)?
        .iter()
        .for_each(|record| apply(&mut state, record));
    let holder = lock::is_held_in(&dir).then(|| lock::holder_in(&dir));
    let shown = ShownServer {
        file,
        supervisor: holder.flatten().map(|holder| Keeper {
            pid: holder.pid,
            since: holder.since,
        }),
        attempts: state.attempts,
        crashes_in_a_row: state.crashes_in_a_row,
        crashes_total: state.crashes_total,
        restarts_total: state.restarts_total,
        last_end: state.last_end,
    };
    if json {
        let text = serde_json::to_string_pretty(&shown);
        out::line(&text.map_err(|error| Failure::new(error.to_string()))?);
    } else {
        out::line(&sanitize(&sentence(&shown.file)));
        for line in details(&shown) {
            out::line(&sanitize(&line));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes the state of a server in one line.
pub fn sentence(file: &ServerFile) -> String {
    let why = file.why.as_deref().unwrap_or("reason unknown");
    let until = |before: &str| match file.until {
        Some(until) => format!("{before} {}", local(until)),
        None => String::new(),
    };
    match file.state {
        Condition::Starting => format!(
            "OpenCode is starting (start {}){}",
            file.generation,
            until(", and has to be ready at")
        ),
        Condition::Ready => format!(
            "OpenCode {} is ready at {}",
            file.version.as_deref().unwrap_or("of unknown version"),
            file.url.as_deref().unwrap_or("an unknown address"),
        ),
        Condition::Restarting => format!("OpenCode is restarting{}: {why}", until(" at")),
        Condition::Stopped => match &file.why {
            Some(why) => format!("OpenCode is stopped: {why}"),
            None => "OpenCode is stopped".to_owned(),
        },
        Condition::GaveUp => {
            format!("gave up on OpenCode: {why}; `tachikoma opencode restart` tries again")
        }
    }
}

fn details(shown: &ShownServer) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(pid) = shown.file.pid {
        lines.push(format!(
            "process {pid}, start number {}",
            shown.file.generation
        ));
    }
    lines.push(format!(
        "{}, {}; {} since it was last healthy for a minute",
        counted(shown.crashes_total, "crash", "crashes"),
        counted(shown.restarts_total, "restart", "restarts"),
        counted(
            u64::from(shown.attempts),
            "unwanted restart",
            "unwanted restarts"
        ),
    ));
    lines.push(match &shown.supervisor {
        Some(keeper) => {
            let what = match shown.file.state {
                Condition::Starting | Condition::Ready | Condition::Restarting => "kept running",
                Condition::Stopped | Condition::GaveUp => {
                    "`tachikoma opencode restart` starts it; supervised"
                }
            };
            let (pid, since) = (keeper.pid, local(keeper.since));
            format!("{what} by process {pid} since {since}")
        }
        None => "it is not supervised; `tachikoma opencode up` starts the supervisor".to_owned(),
    });
    lines
}

fn counted(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {many}"),
    }
}
