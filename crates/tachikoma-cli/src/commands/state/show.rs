//! `tachikoma state show`: shows the whole state of a loop, and whether it is saved. Only reads.

use std::fmt::{Display, Write as _};
use std::path::Path;
use std::process::ExitCode;

use tachikoma_core::{LoopId, State, Status};
use tachikoma_loop_runner::clock::Clock;
use tachikoma_loop_runner::offline::StoreConfig;
use tachikoma_loop_runner::store::recover::{self, Loss, Source};
use tachikoma_loop_runner::store::snapshot::{self, Snapshot};
use tachikoma_loop_runner::store::{layout, lock};

use crate::commands::status::state_text;
use crate::failure::{Failure, chain};
use crate::out;
use crate::report::line::iterations;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// Maximum number of characters of a value or list that are shown. `--json` shows all of it.
const SHOWN_CHARS_MAX: usize = 100;

/// Prints the state of the current loop.
pub fn show(workspace: &Workspace, json: bool) -> Result<ExitCode, Failure> {
    let current = workspace.current_loop()?;
    let store_config = workspace.store_config_for_reading(&current.working_dir, &current.root);
    let found = find(&store_config, current.loop_id)?;
    if found.is_damaged {
        out::note(
            "note: some files are damaged, but not needed here; `tachikoma state verify` lists them",
        );
    }
    if json {
        out::line(found.snapshot.encode().trim_end());
    } else {
        let live = lock::is_held(&current.working_dir);
        out::line(
            text(
                &found,
                &snapshot::place(&store_config.snapshot, &store_config.encryption),
                live,
            )
            .trim_end(),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A state, and where it was read from.
pub struct ShownState {
    /// The state of the loop.
    pub snapshot: Snapshot,
    source: Source,
    saved: Saved,
    /// Whether a file was damaged and could not be used.
    is_damaged: bool,
}

enum Saved {
    UpToDate,
    Behind { records: u64 },
    Missing,
    OfAnother(LoopId),
    Unreadable(String),
}

/// Returns the state of a loop: from the snapshot if it is up to date, otherwise from the journal.
pub fn find(store_config: &StoreConfig, loop_id: LoopId) -> Result<ShownState, Failure> {
    let dir = layout::loop_dir(&store_config.working_dir, loop_id);
    // The snapshot is read before the journal, which may grow in between and would make the snapshot look outdated.
    let on_disk = snapshot::read(&store_config.snapshot, &store_config.encryption);
    let found = recover::read(&dir, &store_config.copies(), loop_id, Loss::Refuse)?;
    let state = &found.state;
    let (saved, on_disk) = match on_disk {
        Ok(Some(on_disk)) if on_disk.loop_id != loop_id => {
            (Saved::OfAnother(on_disk.loop_id), None)
        }
        Ok(Some(on_disk)) if on_disk.state == *state => (Saved::UpToDate, Some(on_disk)),
        Ok(Some(on_disk)) => {
            let records = state.seq.0.saturating_sub(on_disk.seq.0);
            (Saved::Behind { records }, None)
        }
        Ok(None) => (Saved::Missing, None),
        Err(error) => (Saved::Unreadable(chain(&error)), None),
    };
    let snapshot = on_disk.unwrap_or_else(|| {
        let now = Clock::starting_after(state.time).now();
        Snapshot::of(state, &store_config.working_dir, now)
    });
    Ok(ShownState {
        snapshot,
        source: found.source,
        saved,
        is_damaged: !found.troubles.is_empty(),
    })
}

struct Page(String);

impl Page {
    fn line(&mut self, name: &str, value: impl Display) {
        let value = value.to_string();
        let _ = writeln!(self.0, "{name:<14} {}", sanitize(&value));
    }

    /// Adds a line with a list of values, unless the list is empty.
    fn list(&mut self, name: &str, values: &[impl Display]) {
        if !values.is_empty() {
            let values: Vec<_> = values.iter().map(ToString::to_string).collect();
            self.line(name, cut(&values.join(", ")));
        }
    }
}

fn text(shown: &ShownState, path: &Path, live: bool) -> String {
    let Snapshot {
        core,
        session,
        progress,
        tests,
        stop_conditions,
        metrics,
        custom,
        state,
        ..
    } = &shown.snapshot;
    let mut page = Page(String::new());
    page.line("loop", state.loop_id);
    page.line("source", source(shown.source, state));
    page.line("saved", saved(&shown.saved, path));
    page.line("status", state_text(&Status::of(state, live)));
    page.line("iteration", core.iteration);
    page.line("started", known(core.started.as_ref()));
    page.line("last activity", core.last_activity);
    page.line("directory", core.working_dir.display());
    page.line("prompt", core.prompt_path.as_deref().unwrap_or("(words)"));
    page.line("config hash", &core.config_hash);
    let number = state.session.number;
    page.line(
        "session",
        match &session.current_id {
            Some(id) => format!("{number} ({id})"),
            None => number.to_string(),
        },
    );
    page.line("  since", known(session.started.as_ref()));
    page.line("  iterations", session.iterations);
    let context = session.context_usage.map(|usage| format!("{usage}%"));
    page.line("  context", known(context.as_ref()));
    page.line("  before it", session.history.len());
    if let Some(last) = session.history.last() {
        let iterations = iterations(last.iterations);
        page.line(
            "  the last",
            format!(
                "{}, ended {}: {} ({iterations})",
                last.number, last.ended, last.reason
            ),
        );
    }
    page.line(
        "no progress",
        match progress.iterations_since_progress {
            1 => "in 1 iteration".to_owned(),
            many => format!("in {many} iterations"),
        },
    );
    page.line(
        "  last seen",
        progress.last_progress_iteration.map_or_else(
            || "not known".to_owned(),
            |iteration| format!("in iteration {iteration}"),
        ),
    );
    page.list("  scores", &progress.recent_scores);
    page.list("  files", &progress.modified_files);
    page.list("  done", &progress.completed_objectives);
    page.list("  open", &progress.pending_objectives);
    page.line(
        "tests",
        format!("{} failing runs in a row", tests.failure_streak),
    );
    page.list("  passing", &tests.passing);
    page.list("  failing", &tests.failing);
    page.list("  flaky", &tests.flaky);
    page.list("  fixed", &tests.recently_fixed);
    let near = &stop_conditions.progress;
    page.line("conditions", format!("{} looked at", near.len()));
    for (name, percent) in near {
        page.line("", format!("{name} {percent}%"));
    }
    if let Some(words) = &stop_conditions.last_evaluation {
        page.line("  last look", cut(words));
    }
    page.line(
        "metrics",
        format!(
            "{}, {} succeeded, {} failed, {} reboots, {} ms of work",
            iterations(u32::try_from(metrics.total_iterations).unwrap_or(u32::MAX)),
            metrics.successful_iterations,
            metrics.failed_iterations,
            metrics.reboots,
            metrics.execution_ms
        ),
    );
    page.line("custom", custom.len());
    for (key, value) in custom {
        page.line("", format!("{key} = {}", cut(&value.to_string())));
    }
    page.0
}

fn source(source: Source, state: &State) -> String {
    let seq = state.seq;
    match source {
        Source::Snapshot => format!("the snapshot and the journal after it, up to record {seq}"),
        Source::Backup => format!("a backup and the journal after it, up to record {seq}"),
        Source::Journal => format!("the journal alone, up to record {seq}"),
    }
}

fn saved(saved: &Saved, path: &Path) -> String {
    let path = path.display();
    match saved {
        Saved::UpToDate => format!("yes: {path} is up to date"),
        Saved::Behind { records } => {
            format!("no: {path} is behind by {records} records, which the journal has")
        }
        Saved::Missing => format!("no: there is no {path}; the journal has the whole state"),
        Saved::OfAnother(loop_id) => {
            format!(
                "no: {path} belongs to loop {loop_id}; the journal has the whole state of this loop"
            )
        }
        Saved::Unreadable(why) => format!("no: {why}; the journal has the whole state"),
    }
}

fn known<T: Display>(value: Option<&T>) -> String {
    value.map_or_else(|| "not known".to_owned(), ToString::to_string)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}
