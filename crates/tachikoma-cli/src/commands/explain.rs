//! `tachikoma explain`: explains why the loop did what it did. Only reads.

use std::process::ExitCode;

use tachikoma_core::explain::{Account, Entry, Explain, Explained, Kind};
use tachikoma_core::{LoopState, Phase};
use tachikoma_loop_runner::journal_reader::{self, JournalRead};
use tachikoma_loop_runner::store::{layout, lock};

use super::replay::unread_parts;
use crate::failure::Failure;
use crate::out;
use crate::report::json as json_line;
use crate::sanitize::sanitize;
use crate::workspace::{Current, Workspace};

/// Explains an iteration; by default the last one, and the end of the loop.
pub fn explain(
    workspace: &Workspace,
    iteration: Option<u32>,
    name: Option<&str>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let current = workspace.named_loop(name)?;
    // This is checked first: if the runner ends after this check, its last records are already in the journal.
    let live = is_live(&current);
    let mut explain = Explain::new(current.loop_id, iteration);
    let reach = journal_reader::read(&current.dir, &current.encryption, |record| {
        explain.take(&record)
    })?;
    let explained = explain.finish();
    let Some(account) = &explained.account else {
        let what = format!(
            "loop {} has no iteration {}",
            current.loop_id,
            iteration.unwrap_or_default()
        );
        let last = explained.state.iteration;
        return Err(Failure::new(what).hint(format!("the last one is {last}")));
    };
    if json {
        for entry in &account.entries {
            out::line(&json_line(entry));
        }
        note_end(&reach, &explained, live);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(end) = explained.end.as_ref().filter(|_| iteration.is_none()) {
        out::line(&format!("{} {}", end.time, sanitize(&end.words)));
        out::line("");
    }
    for line in text(
        account,
        &current,
        iteration.is_none() && explained.end.is_some(),
    ) {
        out::line(&line);
    }
    note_end(&reach, &explained, live);
    Ok(ExitCode::SUCCESS)
}

fn is_live(current: &Current) -> bool {
    let held = lock::is_held(&current.working_dir) && !layout::is_archived(&current.dir);
    held && lock::holder(&current.working_dir).is_some_and(|h| h.loop_id == current.loop_id)
}

fn text(account: &Account, current: &Current, ended: bool) -> Vec<String> {
    let attempts = match account.attempts {
        0 | 1 => String::new(),
        attempts => format!(", {attempts} attempts"),
    };
    let heading = match account.iteration {
        0 => format!("before the first iteration of {}", current.loop_id),
        iteration => format!(
            "iteration {iteration} of {}{attempts}, session {}",
            current.loop_id, account.session
        ),
    };
    let mut lines = vec![heading];
    let entries = account.entries.iter();
    // The end of the loop is already shown above.
    let shown = entries.len() - usize::from(ended && !account.entries.is_empty());
    lines.extend(entries.take(shown).map(line));
    if account.left_out > 0 {
        lines.push(format!("{} lines more are left out", account.left_out));
    }
    lines
}

fn line(entry: &Entry) -> String {
    let mark = match entry.kind {
        Kind::Fact => "  ",
        Kind::Decision => "=>",
    };
    let until = entry.until.map(|until| format!(" (until {until})"));
    format!(
        "{} {mark} {}{}",
        entry.time,
        sanitize(&entry.words),
        until.unwrap_or_default()
    )
}

/// Explains why the records end, if they do not end with the end of the loop.
fn note_end(reach: &JournalRead, explained: &Explained, live: bool) {
    let state = &explained.state;
    if explained.lost > 0 {
        out::note(&format!(
            "note: {} records are lost; this report does not include them",
            explained.lost
        ));
    }
    for words in unread_parts(reach, live) {
        out::note(&format!("note: {words}"));
    }
    let open = match state.public() {
        LoopState::Running | LoopState::Rebooting | LoopState::Paused => !live,
        LoopState::Idle => !live && state.started_at.is_some(),
        LoopState::Completed | LoopState::Error | LoopState::Stopped => false,
    };
    // If the journal was not read completely, the state of the runner is unknown.
    if open && reach.is_complete() {
        let doing = match &state.phase {
            Phase::Working { .. } => format!("in the middle of iteration {}", state.iteration),
            Phase::Waiting { .. } => format!("in a wait after iteration {}", state.iteration),
            Phase::Autocommitting { .. } => {
                format!("during the commit of iteration {}", state.iteration)
            }
            Phase::Checking { .. } => {
                format!("during the checks of iteration {}", state.iteration)
            }
            Phase::Hooking { hooking } => format!("in the hooks of {}", hooking.point),
            Phase::Rebooting { .. } => format!("in a reboot after iteration {}", state.iteration),
            Phase::Paused { .. } => format!("in a pause after iteration {}", state.iteration),
            Phase::Idle | Phase::Ended { .. } => format!("after iteration {}", state.iteration),
        };
        out::note(&format!(
            "note: the journal ends with record {} ({}), {doing}, and the loop is not running: its runner was killed, or the \
             machine went down; `tachikoma run` continues it",
            state.seq, state.time
        ));
    }
}
