//! Prints the reboots of a loop: all recorded attempts, and the totals.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tachikoma_core::{Phase, RebootEntry, RebootResult, State, Timestamp};
use tachikoma_loop_runner::clock::Clock;
use tachikoma_loop_runner::store::recover::{self, Loss};

use crate::failure::Failure;
use crate::out;
use crate::report::span::span;
use crate::sanitize::sanitize;
use crate::workspace::{Current, Workspace};

/// Output of `history --reboots --json`.
#[derive(Debug, Serialize)]
struct Reboots<'a> {
    stats: Stats,
    /// The reboot that is requested or running; `None` if there is none.
    pending: Option<Pending>,
    /// Reboots that have ended, including failed ones, oldest first.
    reboots: &'a [RebootEntry],
}

#[derive(Debug, Serialize)]
struct Stats {
    total: u32,
    successful: u32,
    /// Number of reboots that did not reduce the context usage.
    futile: u32,
    last_hour: usize,
    consecutive_failures: u32,
    last_reboot: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
struct Pending {
    iteration: u32,
    reason: String,
    not_before: Option<Timestamp>,
    under_way: bool,
}

/// Prints the reboots of a loop.
pub fn print(workspace: &Workspace, current: &Current, json: bool) -> Result<ExitCode, Failure> {
    let store_config = workspace.store_config_for_reading(&current.working_dir, &current.root);
    let found = recover::read(
        &current.dir,
        &store_config.copies(),
        current.loop_id,
        Loss::Refuse,
    )?;
    let state = &found.state;
    let reboots = Reboots {
        stats: stats(state, Clock::starting_after(state.time).now()),
        pending: pending(state),
        reboots: &state.reboots.history,
    };
    if json {
        let text = serde_json::to_string_pretty(&reboots);
        out::line(&text.map_err(|error| Failure::new(error.to_string()))?);
        return Ok(ExitCode::SUCCESS);
    }
    let forgotten = reboots.stats.total as usize;
    let forgotten = forgotten.saturating_sub(reboots.reboots.len());
    if forgotten > usize::from(is_under_way(state)) {
        out::line(&format!("the last {} are shown", reboots.reboots.len()));
    }
    for entry in reboots.reboots {
        for line in lines(entry) {
            out::line(&line);
        }
    }
    if let Some(pending) = &reboots.pending {
        out::line(&pending_line(pending));
    }
    out::line(&stats_line(&reboots.stats));
    Ok(ExitCode::SUCCESS)
}

fn stats(state: &State, now: Timestamp) -> Stats {
    let book = &state.reboots;
    Stats {
        total: book.attempts,
        successful: state.stats.reboots.saturating_sub(book.futile_total),
        futile: book.futile_total,
        last_hour: book.last_hour(now),
        consecutive_failures: book.failures,
        last_reboot: book.last_success,
    }
}

fn is_under_way(state: &State) -> bool {
    matches!(state.phase, Phase::Rebooting { .. })
}

fn pending(state: &State) -> Option<Pending> {
    if let Phase::Rebooting { reboot } = &state.phase {
        return Some(Pending {
            iteration: state.iteration,
            reason: reboot.reason.to_string(),
            not_before: None,
            under_way: true,
        });
    }
    let reason = state.pending_reboot()?;
    Some(Pending {
        iteration: state.iteration,
        reason: reason.to_string(),
        not_before: state.reboot_not_before,
        under_way: false,
    })
}

fn lines(entry: &RebootEntry) -> Vec<String> {
    let (how, why) = match &entry.result {
        RebootResult::Done => ("done", None),
        RebootResult::Futile { reason } => ("futile", Some(reason)),
        RebootResult::Aborted { error } => ("aborted by a hook", Some(error)),
        RebootResult::Failed { error } => ("failed", Some(error)),
    };
    let mut lines = vec![format!(
        "{}  iteration {}: {how}, {}; took {}",
        entry.time,
        entry.iteration,
        sanitize(&entry.reason.to_string()),
        span(Duration::from_millis(entry.duration_ms)),
    )];
    lines.extend(why.map(|why| format!("    {}", sanitize(why))));
    let took_over = match &entry.result {
        RebootResult::Done | RebootResult::Futile { .. } => {
            let to = name(entry.to_agent_id.as_deref());
            format!(" -> {}{to}", entry.from.next())
        }
        RebootResult::Aborted { .. } | RebootResult::Failed { .. } => " goes on".to_owned(),
    };
    let from = name(entry.from_agent_id.as_deref());
    lines.push(format!("    session {}{from}{took_over}", entry.from));
    for hook in &entry.hooks {
        let how = hook.error.as_deref().map_or("went well", |error| error);
        lines.push(format!(
            "    hook `{}`: {}; took {}",
            sanitize(&hook.name),
            sanitize(how),
            span(Duration::from_millis(hook.duration_ms))
        ));
    }
    lines
}

fn name(agent_id: Option<&str>) -> String {
    agent_id.map_or_else(String::new, |id| format!(" ({})", sanitize(id)))
}

fn pending_line(pending: &Pending) -> String {
    let state = if pending.under_way {
        "under way"
    } else {
        "pending"
    };
    let until = pending.not_before.map(|at| format!("; not before {at}"));
    format!(
        "iteration {}: {state}, {}{}",
        pending.iteration,
        sanitize(&pending.reason),
        until.unwrap_or_default()
    )
}

fn stats_line(stats: &Stats) -> String {
    let last = stats
        .last_reboot
        .map(|last| format!(", the last at {last}"));
    let futile = match stats.futile {
        0 => String::new(),
        futile => format!(", {futile} futile"),
    };
    format!(
        "{} in all, {} successful{futile}, {} in the last hour, {} failed in a row{}",
        stats.total,
        stats.successful,
        stats.last_hour,
        stats.consecutive_failures,
        last.unwrap_or_default()
    )
}
