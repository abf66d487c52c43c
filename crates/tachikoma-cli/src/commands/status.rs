//! `tachikoma status`: shows the current state of the loop. Only reads.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::Duration;

use tachikoma_core::{
    ConditionSummary, GitSummary, LoopState, ProgressSummary, Status, Uploads, short_commit,
};
use tachikoma_loop_runner::control::{Client, ClientError, ControlRequest, Response};
use tachikoma_loop_runner::store::lock;
use tachikoma_loop_runner::store::recover::{self, Loss};

use super::control::live_socket;
use crate::failure::{Failure, chain};
use crate::out;
use crate::report::check;
use crate::report::line::{files, iterations, tokens_to_redline, totals};
use crate::runtime::runtime;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;
use crate::zone::local;

/// Timeout for the runner's answer. It answers within milliseconds, even on a busy machine. A runner that is suspended or blocked has
/// recorded its state, which is shown instead.
const PATIENCE: Duration = Duration::from_millis(400);

/// Prints the status, even if no loop is running.
pub fn status(workspace: &Workspace, json: bool) -> Result<ExitCode, Failure> {
    let status = find(workspace)?;
    let text = match (&status, json) {
        (Some(status), true) => {
            serde_json::to_string_pretty(status).map_err(|error| Failure::new(error.to_string()))?
        }
        (None, true) => "{\"loop_id\": null}".to_owned(),
        (Some(status), false) => text(status),
        (None, false) => format!(
            "no loop in {}; {}",
            workspace.directory.display(),
            workspace.first_step()
        ),
    };
    out::line(text.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Returns the status of the loop in this directory; `None` if there is none.
pub fn find(workspace: &Workspace) -> Result<Option<Status>, Failure> {
    let Some(working_dir) = workspace.working_dir()? else {
        return Ok(None);
    };
    let mut live = false;
    if let Some(socket) = live_socket(&working_dir) {
        let asked = runtime()?.block_on(async {
            let mut client = Client::connect_within(&socket, PATIENCE).await?;
            client.ask(&ControlRequest::Status).await
        });
        match asked {
            Ok(Response::Status { status }) => return Ok(Some(*status)),
            // The runner has just ended, so the journal is complete.
            Ok(_) => {}
            Err(error) => {
                live = !is_refused(&error) && lock::is_held(&working_dir);
                if live {
                    out::note(&format!("note: {}", chain(&error)));
                    out::note("note: the following is from the journal");
                }
            }
        }
    }
    let copies = workspace.copies(&working_dir);
    let Some(current) = workspace.loop_in(working_dir)? else {
        return Ok(None);
    };
    let found = recover::read(&current.dir, &copies, current.loop_id, Loss::Refuse)?;
    Ok(Some(Status::of(&found.state, live)))
}

/// Returns whether no process listens: the runner has ended, and its guard is still cleaning up.
fn is_refused(error: &ClientError) -> bool {
    matches!(error, ClientError::NotListening { source, .. } if source.kind() == ErrorKind::ConnectionRefused)
}

fn text(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<11}{value}");
    };
    line("loop", status.loop_id.to_string());
    line("state", state_text(status));
    if let Some(waiting) = &status.waiting {
        let until = waiting
            .until
            .map(|until| match waiting.reason.as_str() {
                "usage_limit" => format!(" until {until} ({} here)", local(until)),
                _ => format!(" until {until}"),
            })
            .unwrap_or_default();
        line("waiting", format!("{}{until}", waiting.reason));
    }
    if status.pause_requested {
        let when = match status.runner {
            Some(_) => {
                "the loop pauses when the current iteration, reboot or check ends; `tachikoma resume` cancels this"
            }
            None => "`tachikoma run` pauses at once, and `tachikoma resume` continues",
        };
        line("pause", format!("requested: {when}"));
    }
    if let Some(ending) = &status.ending {
        let hurry = "`tachikoma stop --now` stops at once";
        line("ending", format!("{}; {hurry}", sanitize(&ending.reason)));
    }
    if let Some(question) = &status.question {
        let until = question.until;
        let until =
            until.map(|until| format!("; without an answer: {} at {until}", question.default));
        line(
            "question",
            format!("{}: {}", question.id, sanitize(&question.about)),
        );
        line(
            "answer",
            format!("{}{}", question.offers(), until.unwrap_or_default()),
        );
    }
    if let Some(question) = &status.question_left {
        let about = format!("{}: {}", question.id, sanitize(&question.about));
        line("question", about);
        let run = "the loop is not running; `tachikoma run` asks again";
        line("answer", run.to_owned());
    }
    if let Some(id) = status.unanswered {
        let so = "was not answered in time, and the loop is paused; `tachikoma resume` continues";
        line("question", format!("{id} {so}"));
    }
    line(
        "iteration",
        format!("{} (attempt {})", status.iteration, status.attempt),
    );
    line(
        "session",
        format!(
            "{} ({})",
            status.session.number,
            iterations(status.session_iterations)
        ),
    );
    let context = status.context.map(|context| {
        let guess = if context.estimated { ", estimated" } else { "" };
        let redline = context.redline_tokens;
        let redline = redline.map(|redline| tokens_to_redline(context.tokens, redline));
        format!(
            "{}% ({} of {} tokens{guess}; {:+} in this iteration{})",
            context.percent,
            context.tokens,
            context.window,
            context.trend_tokens,
            redline.unwrap_or_default()
        )
    });
    line("context", context.unwrap_or_else(|| "not known".to_owned()));
    if let Some(reboot) = &status.reboot {
        let until = reboot
            .not_before
            .map(|moment| format!(", not before {moment}"));
        let put_off = reboot
            .put_off
            .map(|last| format!(", put off by the operator up to iteration {last}"));
        line(
            "reboot",
            format!(
                "pending: {}{}{}",
                reboot.reason,
                until.unwrap_or_default(),
                put_off.unwrap_or_default()
            ),
        );
    }
    if let Some(failed) = &status.reboot_failed {
        let how = match failed.canceled {
            true => "the last one was called off",
            false => "the last one failed",
        };
        let (iteration, times) = (failed.iteration, failed.in_a_row);
        let error = sanitize(&failed.error);
        line(
            "reboot",
            format!("{how} at iteration {iteration} ({times} in a row): {error}"),
        );
    }
    for words in &status.messages {
        let when = match (words.in_prompt, words.delivered) {
            (true, _) => "in the prompt of this attempt",
            (false, true) => "delivered to the agent in this attempt",
            (false, false) => "waits",
        };
        line("to agent", format!("{when}: {}", sanitize(&words.text)));
    }
    if let Some(git) = &status.git {
        line("git", git_text(git));
    }
    if let Some(copies) = &status.uploads {
        line("copies", copies_text(copies));
    }
    for (name, value) in status.completion.iter().flat_map(check::summary) {
        line(name, value);
    }
    for near in status.stop_conditions.iter().filter(|near| is_shown(near)) {
        let gone = near
            .exhausted_at
            .map(|moment| format!(", gone at {moment} ({} here) at this rate", local(moment)));
        line(
            "stops",
            format!("{}{}", near.words, gone.unwrap_or_default()),
        );
    }
    if let Some(tests) = &status.tests {
        let at = check::at_iteration(tests.iteration);
        let said = check::tests_words(tests);
        line("tests", format!("{said}; {at}"));
    }
    if let Some(text) = status.progress.as_ref().and_then(progress_text) {
        line("progress", text);
    }
    line("so far", totals(&status.stats));
    if let Some(outcome) = &status.outcome {
        line("outcome", format!("{}: {}", outcome.kind, outcome.reason));
    }
    if let Some(runner) = &status.runner {
        line(
            "runner",
            format!(
                "pid {} since {}, containment {}",
                runner.pid, runner.since, runner.containment
            ),
        );
    }
    text
}

/// Returns whether a stop condition is shown: budgets always, counters only above zero.
fn is_shown(condition: &ConditionSummary) -> bool {
    let counts = matches!(
        condition.name.as_str(),
        "max_consecutive_failures"
            | "max_test_failure_streak"
            | "max_no_progress_iterations"
            | "stop_on_patterns"
    );
    !counts || condition.percent > 0
}

/// Describes the progress of the latest iterations; `None` if there is none. How many iterations without progress are left is shown with the
/// other
/// limits.
fn progress_text(progress: &ProgressSummary) -> Option<String> {
    const SHOWN_MAX: usize = 10;
    let last = progress.last_iteration?;
    let skipped = progress.scores.len().saturating_sub(SHOWN_MAX);
    let scores = progress.scores.iter().skip(skipped);
    let scores: Vec<String> = scores.map(|score| score.score.to_string()).collect();
    Some(format!(
        "last at iteration {last}; scores of the latest: {}",
        scores.join(" ")
    ))
}

fn git_text(git: &GitSummary) -> String {
    let mut said = Vec::new();
    if git.keeping.is_some() {
        said.push("the work is being committed".to_owned());
    }
    said.push(match &git.last_commit {
        Some(last) => format!(
            "committed {} as {} at iteration {}",
            files(last.files),
            short_commit(&last.id),
            last.iteration
        ),
        None => "nothing committed yet".to_owned(),
    });
    if git.uncommitted > 0 {
        said.push(format!(
            "{} of the loop's not committed",
            files(git.uncommitted)
        ));
    }
    if git.withheld > 0 {
        let them = if git.withheld == 1 { "it" } else { "them" };
        said.push(format!(
            "{} that the loop changed not committed, because another program or person had changed {them} before",
            files(git.withheld)
        ));
    }
    said.join("; ")
}

fn copies_text(copies: &Uploads) -> String {
    let last = match &copies.last {
        Some(last) => format!("the last one at {} ({} bytes)", last.time, last.bytes),
        None => "none yet".to_owned(),
    };
    match &copies.failed {
        Some(failed) => format!(
            "{last}; failed since, {} in a row, at {}: {}",
            failed.in_a_row,
            failed.time,
            sanitize(&failed.error)
        ),
        None => last,
    }
}

/// Returns the state of the loop as one word, with an explanation if its runner has ended unexpectedly.
pub fn state_text(status: &Status) -> String {
    match (&status.runner, &status.outcome) {
        (None, None) if status.state == LoopState::Paused => {
            "paused, and its runner is gone; `tachikoma run`, then `tachikoma resume` continues it"
                .to_owned()
        }
        (None, None) if status.iteration > 0 => {
            "interrupted: its runner is gone; `tachikoma run` continues it".to_owned()
        }
        (None | Some(_), None | Some(_)) => status.state.to_string(),
    }
}
