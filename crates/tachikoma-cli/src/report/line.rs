//! Formats records as lines for people.

use std::time::Duration;

use tachikoma_core::{
    AutocommitResult, Cause, Claim, Context, DENIALS_MAX, Denial, IterationOutcome, LimitedAttempt,
    LoopEvent, LoopStats, Outcome, Record, Resumption, Stop, WaitReason,
};

use super::changes::change_lines;
use super::span::span;
use super::{check, found, question};
use crate::keys;
use crate::sanitize::sanitize;
use crate::zone::local;

/// Line for a paused loop.
const PAUSED: &str = "paused; `tachikoma resume` continues";

/// Formats records as lines for a person, in order.
#[derive(Debug, Default)]
pub struct Lines {
    /// The last context reading of an answer that was not finished; `None` if there is none.
    open: Option<Context>,
    redline_tokens: Option<u64>,
    /// Whether the agent's stdin was closed, so that the agent is expected to end.
    let_go: bool,
    /// Whether questions can be answered with keys at this terminal.
    keys: bool,
}

impl Lines {
    /// Returns a formatter. `redline_tokens` is the number of tokens at which the session is replaced; `None` if unknown.
    pub fn beginning_at(redline_tokens: Option<u64>) -> Self {
        Self {
            redline_tokens,
            ..Self::default()
        }
    }

    /// Sets whether questions can be answered with keys.
    pub fn with_keys(self, keys: bool) -> Self {
        Self { keys, ..self }
    }

    /// Returns the lines for the next record.
    pub fn of(&mut self, record: &Record) -> Vec<String> {
        let mut said = Vec::new();
        match &record.event {
            // Only the reading at the end of an answer is shown.
            LoopEvent::ContextMeasured {
                context,
                answering,
                redline_tokens,
            } => {
                self.redline_tokens = redline_tokens.or(self.redline_tokens);
                self.open = Some(*context);
                if !answering {
                    said.extend(self.reading());
                }
            }
            LoopEvent::Operator(event) => said.extend(question::lines(record, event, self.keys)),
            LoopEvent::SessionStarted { .. } => *self = Self::default().with_keys(self.keys),
            LoopEvent::Paused { .. } if self.keys => {
                let keys = format!("  {}", keys::offers_in_a_pause());
                return vec![PAUSED.to_owned(), keys];
            }
            LoopEvent::IterationCompleted { .. } | LoopEvent::IterationFailed { .. } => {
                said.extend(self.reading());
            }
            _ => {}
        }
        let ended = matches!(record.event, LoopEvent::AgentExited { .. });
        if !(ended && std::mem::take(&mut self.let_go)) {
            said.extend(lines(record));
        }
        self.let_go |= matches!(record.event, LoopEvent::ClosingStarted { .. });
        said
    }

    fn reading(&mut self) -> Option<String> {
        let context = self.open.take()?;
        Some(context_line(&context, self.redline_tokens))
    }
}

fn lines(record: &Record) -> Vec<String> {
    let line = match &record.event {
        LoopEvent::Started {
            resumption,
            runner,
            launch,
            ..
        } => {
            let how = match resumption {
                Resumption::New => "starts",
                Resumption::AfterCrash | Resumption::AfterEnd { .. } => "goes on",
            };
            format!(
                "{} {how}: agent {}, containment {}",
                record.loop_id, launch.agent, runner.containment
            )
        }
        LoopEvent::ConfigChanged { changes } => return change_lines(changes),
        LoopEvent::PauseRequested => "pauses at the next opportunity".to_owned(),
        LoopEvent::PauseWithdrawn => "the pause is withdrawn".to_owned(),
        LoopEvent::Paused { .. } => PAUSED.to_owned(),
        LoopEvent::Resumed => "resumed".to_owned(),
        LoopEvent::StopRequested { stop, .. } => match stop {
            // The spent budget was already reported.
            Stop::Budget { .. } => return Vec::new(),
            Stop::Operator
            | Stop::Signal { .. }
            | Stop::Hook { .. }
            | Stop::Script { .. }
            | Stop::Unable { .. } => format!("stopping: {}", Outcome::from(stop.clone())),
        },
        LoopEvent::WaitStarted { wait } => {
            let left = span(wait.until.since(record.time));
            match wait.reason {
                WaitReason::Delay => format!("waits {left} before the next iteration"),
                WaitReason::Backoff => format!("waits {left} because of the failure"),
                WaitReason::UsageLimit => format!(
                    "waits {left} for the model's service, until {} here",
                    local(wait.until)
                ),
                WaitReason::Outage => {
                    format!("outage: retrying in {left}, at {} here", local(wait.until))
                }
                WaitReason::Operator => "waits for the operator".to_owned(),
                WaitReason::RebootWindow => {
                    format!("waits {left} until the session may be rebooted: its context is full")
                }
            }
        }
        LoopEvent::IterationStarted {
            iteration,
            attempt,
            session,
            ..
        } => match attempt {
            0 | 1 => format!("iteration {iteration} (session {session})"),
            2.. => format!("iteration {iteration} (session {session}), attempt {attempt}"),
        },
        LoopEvent::WrapUpAdvised { percent } => {
            format!("context at {percent}%: the agent is asked to finish")
        }
        LoopEvent::AgentExited { exit } => {
            format!("the agent's process ended between two turns with {exit}")
        }
        LoopEvent::ToolDenied(denial) => return denied(denial),
        LoopEvent::Noted { text, .. } => format!("noted: {}", sanitize(text)),
        LoopEvent::HandOffRequested { .. } => {
            "the old session is asked for its hand-off".to_owned()
        }
        LoopEvent::HandOffWritten {
            text,
            partial: false,
        } => format!("hand-off written, {} bytes", text.len()),
        LoopEvent::HooksRan(end) => sanitize(&end.to_string()).into_owned(),
        LoopEvent::RebootVerified {
            percent,
            futile: None,
        } => format!("the fresh session begins at {percent}%"),
        LoopEvent::RebootVerified {
            futile: Some(reason),
            ..
        } => format!("the reboot changed nothing: {reason}"),
        LoopEvent::WorkedOutside { tool, .. } if !tool.is_empty() => format!(
            "the agent works although no iteration runs ({}); its changes and its cost count as the loop's",
            sanitize(tool)
        ),
        LoopEvent::EndingRequested {
            cause: Cause::Interrupt,
            boundary_until,
        } if *boundary_until > record.time => format!(
            "waiting up to {} for the tool call or answer under way; Ctrl-C, SIGTERM or `tachikoma stop --now` interrupts it",
            span(boundary_until.since(record.time))
        ),
        LoopEvent::AgentSignaled { signal, .. } => format!("ending the agent: {signal}"),
        LoopEvent::AgentBusy { activity } => {
            format!("the agent is silent, but at work ({activity}): it has more time")
        }
        LoopEvent::CustomSet { key, value } => match value.is_null() {
            true => format!("`{}` is removed", sanitize(key)),
            false => format!("`{}` is set", sanitize(key)),
        },
        LoopEvent::Suspended { duration_ms } => {
            let stood = span(Duration::from_millis(*duration_ms));
            format!("machine was suspended for {stood}; timeouts were extended")
        }
        LoopEvent::LeftoversEnded { leftovers } => {
            let names: Vec<String> = leftovers
                .iter()
                .map(|left| format!("{} (pid {})", sanitize(&left.name), left.pid))
                .collect();
            format!(
                "the agent left processes behind, now ended: {}",
                names.join(", ")
            )
        }
        LoopEvent::IterationCompleted { report, .. } => {
            let took = span(Duration::from_millis(report.duration_ms));
            match report.outcome {
                IterationOutcome::Succeeded if report.claimed => {
                    format!(
                        "iteration {} succeeded in {took} and claims completion",
                        report.iteration
                    )
                }
                outcome => format!("iteration {} {outcome} after {took}", report.iteration),
            }
        }
        LoopEvent::IterationFailed {
            iteration,
            failure,
            duration_ms,
            streak,
            ..
        } => {
            let took = span(Duration::from_millis(*duration_ms));
            let row = if *streak > 1 {
                format!(" ({streak} in a row)")
            } else {
                String::new()
            };
            format!(
                "iteration {iteration} failed after {took}: {}{row}",
                sanitize(&failure.to_string())
            )
        }
        LoopEvent::IterationLimited(LimitedAttempt {
            iteration,
            reason,
            outage: true,
            ..
        }) => format!(
            "iteration {iteration} could not reach the model's service and will be repeated: {}",
            sanitize(reason)
        ),
        LoopEvent::IterationLimited(LimitedAttempt {
            iteration, reason, ..
        }) => format!(
            "iteration {iteration} hit a usage limit and will be repeated: {}",
            sanitize(reason)
        ),
        LoopEvent::AttemptCut {
            iteration,
            attempt,
            reason,
            ..
        } => found::cut(*iteration, *attempt, reason.as_deref()),
        LoopEvent::AutocommitFinished { result, .. } => return autocommit_lines(result),
        LoopEvent::AutocommitGivenUp { reason, .. } => {
            format!("the work tree was not surveyed: {}", sanitize(reason))
        }
        LoopEvent::Claimed { reason } => {
            let claim = Claim::Done {
                reason: reason.clone(),
            };
            format!("completion is claimed: {}", sanitize(&claim.to_string()))
        }
        LoopEvent::CheckStarted { check } => return check::started(check),
        LoopEvent::ConditionsAnswered { answers } => return check::answered(answers),
        LoopEvent::GatesRan { iteration, results } => return check::gates(*iteration, results),
        LoopEvent::TestsRan(report) => check::tests(report),
        LoopEvent::CheckGivenUp { reason } => sanitize(reason).into_owned(),
        LoopEvent::ClaimRefused(refusal) => check::refused(refusal),
        LoopEvent::StopConditionTriggered { reason, .. } => {
            format!("stop condition: {}", sanitize(reason))
        }
        LoopEvent::RebootRequested { reason, not_before } => match not_before {
            Some(moment) => format!(
                "a reboot is pending: {reason}; it may happen in {}",
                span(moment.since(record.time))
            ),
            None => format!("a reboot is due: {reason}"),
        },
        LoopEvent::RebootCompleted {
            reason, from, to, ..
        } => {
            format!("rebooted: session {from} -> {to} ({reason})")
        }
        LoopEvent::RebootFailed {
            error,
            aborted: true,
            ..
        } => format!(
            "the reboot was aborted, the old session continues: {}",
            sanitize(error)
        ),
        LoopEvent::RebootFailed { error, .. } => format!(
            "the reboot failed, the old session continues: {}",
            sanitize(error)
        ),
        LoopEvent::Warned { warning } => format!("warning: {}", sanitize(warning)),
        LoopEvent::DiskWasFull { duration_ms } => {
            let waited = span(Duration::from_millis(*duration_ms));
            format!("disk space is available again after {waited}; the loop continues")
        }
        LoopEvent::Incident(incident) => sanitize(&incident.to_string()).into_owned(),
        LoopEvent::Repaired { what, how } => format!("repaired the {what}: {}", sanitize(how)),
        LoopEvent::Completed { outcome, stats }
        | LoopEvent::Stopped { outcome, stats, .. }
        | LoopEvent::Error { outcome, stats } => ending(outcome, stats),
        // Other events have no line. Progress is reported at the end of the loop, and by `history` for each iteration.
        _ => return Vec::new(),
    };
    vec![line]
}

/// Reports a commit, or why there is none. Changes without a commit are not reported.
fn autocommit_lines(result: &AutocommitResult) -> Vec<String> {
    let committed = result.commit.as_ref();
    let committed = committed.map(|it| format!("committed {} as {}", files(it.files), it.short()));
    let error = result.error.as_deref();
    let error = error.map(|error| format!("not committed: {}", sanitize(error)));
    committed.into_iter().chain(error).collect()
}

/// Reports a denied tool call and the setting that permits it. Repetitions are reported at the 2nd, 4th, 8th time and so on. Too many different
/// calls are reported once.
fn denied(denial: &Denial) -> Vec<String> {
    match denial.others {
        0 => {}
        1 => {
            return vec![format!(
                "denied: more than {DENIALS_MAX} different tool calls; others are only counted from here on"
            )];
        }
        _ => return Vec::new(),
    }
    if denial.times > 1 && !denial.times.is_power_of_two() {
        return Vec::new();
    }
    let remedy = denial.remedy.as_deref().map(|line| {
        let line = sanitize(line);
        format!("; to allow it, set in tachikoma.toml: {line}")
    });
    vec![format!(
        "denied: {}{}",
        denied_call(denial),
        remedy.unwrap_or_default()
    )]
}

/// Returns a denied tool call with its count.
pub fn denied_call(denial: &Denial) -> String {
    let mut text = sanitize(&denial.name).into_owned();
    if !denial.summary.is_empty() {
        text.push_str(&format!(" `{}`", sanitize(&denial.summary)));
    }
    if denial.times > 1 {
        text.push_str(&format!(" ({} times)", denial.times));
    }
    text
}

/// Returns a number of files as text.
pub fn files(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} file{plural}")
}

/// Reports how a loop ended and what it did.
pub fn ending(outcome: &Outcome, stats: &LoopStats) -> String {
    format!(
        "{}: {} ({})",
        outcome.state(),
        sanitize(&outcome.to_string()),
        totals(stats)
    )
}

fn context_line(context: &Context, redline_tokens: Option<u64>) -> String {
    let guess = if context.estimated {
        " (estimated)"
    } else {
        ""
    };
    let left = redline_tokens.map(|redline| tokens_to_redline(context.tokens, redline));
    format!(
        "context {}% ({} of {} tokens{guess}{})",
        context.percent_rounded_down(),
        context.tokens,
        context.window,
        left.unwrap_or_default()
    )
}

/// Returns the number of tokens that are left until the redline, to be added to other text.
pub fn tokens_to_redline(tokens: u64, redline: u64) -> String {
    match redline.checked_sub(tokens) {
        Some(left @ 1..) => format!("; {left} left to the redline at {redline}"),
        Some(0) | None => format!("; over the redline at {redline}"),
    }
}

/// Summarizes a loop in one line.
pub fn totals(stats: &LoopStats) -> String {
    let mut parts = vec![iterations(stats.iterations)];
    for (count, what) in [
        (stats.successful, "succeeded"),
        (stats.failed, "failed"),
        (stats.handed_over, "handed over"),
        (stats.skipped, "skipped"),
        (stats.interrupted, "interrupted"),
        (
            stats.reboots,
            if stats.reboots == 1 {
                "reboot"
            } else {
                "reboots"
            },
        ),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let work = span(Duration::from_millis(stats.execution_ms));
    parts.push(format!("{work} of work"));
    if stats.cost_microusd > 0 {
        let cost = dollars(Duration::from_micros(stats.cost_microusd).as_secs_f64());
        // With a subscription the user does not pay this amount, so it is marked as an estimate.
        let guess = if stats.on_subscription { "est. " } else { "" };
        parts.push(format!("{guess}{cost}"));
    }
    parts.join(", ")
}

/// Formats an amount of money: cents, or more digits for small amounts.
pub fn dollars(usd: f64) -> String {
    if usd < 1.0 {
        format!("${usd:.4}")
    } else {
        format!("${usd:.2}")
    }
}

/// Returns a number of iterations as text.
pub fn iterations(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} iteration{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_name_the_command_and_the_setting_and_are_repeated_rarely() {
        let said = (1..=9).flat_map(|times| {
            denied(&Denial {
                name: "Bash".to_owned(),
                id: "t".to_owned(),
                summary: "cargo test --all".to_owned(),
                times,
                remedy: Some("agents.claude.allow = [\"cargo test\"]".to_owned()),
                ..Denial::default()
            })
        });
        let others = (1..=9).flat_map(|others| {
            denied(&Denial {
                others,
                times: 1,
                ..Denial::default()
            })
        });
        let said: Vec<String> = said.chain(others).collect();
        insta::assert_snapshot!(said.join("\n"), @r#"
        denied: Bash `cargo test --all`; to allow it, set in tachikoma.toml: agents.claude.allow = ["cargo test"]
        denied: Bash `cargo test --all` (2 times); to allow it, set in tachikoma.toml: agents.claude.allow = ["cargo test"]
        denied: Bash `cargo test --all` (4 times); to allow it, set in tachikoma.toml: agents.claude.allow = ["cargo test"]
        denied: Bash `cargo test --all` (8 times); to allow it, set in tachikoma.toml: agents.claude.allow = ["cargo test"]
        denied: more than 32 different tool calls; others are only counted from here on
        "#);
    }
}
