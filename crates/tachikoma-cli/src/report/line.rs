//! Formats records as lines for people.

use std::time::Duration;

use tachikoma_core::{
    AutocommitResult, Cause, Claim, Committed, Context, DENIALS_MAX, Denial, IterationOutcome,
    LimitedAttempt, LoopEvent, LoopStats, Outcome, Record, Resumption, Stop, Timestamp, WaitReason,
};

use super::changes::change_lines;
use super::symbol::{Symbol, rule};
use super::tool_calls::ToolCalls;
use super::{check, found, question};
use crate::keys;
use crate::sanitize::sanitize;
use crate::view::number::{self, duration};
use crate::view::text::{Text, Tone};
use crate::zone::local;

/// Line for a paused loop.
const PAUSED: &str = "paused; `tachikoma resume` continues";

/// Width of a rule if the terminal is wider.
const RULE_COLUMNS_MAX: usize = 100;

/// Formats records as lines for a person, in order.
#[derive(Debug)]
pub struct Lines {
    /// The last context reading of an answer that was not finished; `None` if there is none.
    open: Option<Context>,
    /// The last context reading of the session; `None` before the first.
    context: Option<Context>,
    redline_tokens: Option<u64>,
    /// Whether the agent's stdin was closed, so that the agent is expected to end.
    let_go: bool,
    /// Whether questions can be answered with keys at this terminal.
    keys: bool,
    /// Width of rules.
    columns: usize,
    tools: ToolCalls,
    /// The line of a successful iteration. It is printed after the commit, with the commit.
    held: Option<Text>,
    /// Cost in millionths of a dollar, and tokens, of the iteration.
    used: (u64, u64),
    /// Failures in a row.
    streak: u32,
    /// Value of `max_consecutive_failures`; 0 = no limit.
    failures_max: u32,
    handover: Handover,
    run: RunCounts,
}

/// What a session hands over to the next one.
#[derive(Debug, Default)]
struct Handover {
    /// The context when the reboot began; `None` if it is unknown.
    context: Option<Context>,
    /// Lines and bytes of the hand-off; `None` if the session wrote none.
    written: Option<(usize, usize)>,
    notes: u64,
    files: u64,
    /// The last commit of the loop, shortened; empty without one.
    commit: String,
}

/// Counts of a run for the summary at its end.
#[derive(Debug, Default)]
struct RunCounts {
    started: Option<Timestamp>,
    commits: u64,
    /// Added and removed lines, as far as they are known.
    lines: u64,
    tokens: u64,
    denied: u64,
    refused: u64,
}

impl Lines {
    /// Returns a formatter. `columns` is the width of the terminal.
    pub fn new(columns: usize) -> Self {
        Self {
            open: None,
            context: None,
            redline_tokens: None,
            let_go: false,
            keys: false,
            columns: columns.min(RULE_COLUMNS_MAX),
            tools: ToolCalls::default(),
            held: None,
            used: (0, 0),
            streak: 0,
            failures_max: 0,
            handover: Handover::default(),
            run: RunCounts::default(),
        }
    }

    /// Sets the number of tokens at which the session is replaced; `None` if unknown.
    pub fn with_redline(self, redline_tokens: Option<u64>) -> Self {
        Self {
            redline_tokens,
            ..self
        }
    }

    /// Sets whether questions can be answered with keys.
    pub fn with_keys(self, keys: bool) -> Self {
        Self { keys, ..self }
    }

    /// Returns the lines for the next record.
    pub fn of(&mut self, record: &Record) -> Vec<Text> {
        self.count(record);
        let mut said = Vec::new();
        if let Some(held) = self.held.take() {
            match &record.event {
                LoopEvent::AutocommitStarted(_) => {
                    self.held = Some(held);
                    return said;
                }
                LoopEvent::AutocommitFinished { result, .. } => {
                    let commit = result.commit.as_ref();
                    let commit = commit.map(|it| format!("   {}", committed(it)));
                    said.push(held.with(Tone::Plain, commit.unwrap_or_default()));
                    said.extend(not_committed(result));
                    return said;
                }
                _ => said.push(held),
            }
        }
        match &record.event {
            // Only the reading at the end of an answer is shown.
            LoopEvent::ContextMeasured { answering, .. } => {
                if !answering {
                    said.extend(self.reading());
                }
            }
            LoopEvent::Operator(event) => said.extend(question::lines(record, event, self.keys)),
            LoopEvent::Paused { .. } if self.keys => {
                said.push(Symbol::Wait.line(PAUSED));
                said.push(Symbol::Detail.line(format!("  {}", keys::offers_in_a_pause())));
            }
            LoopEvent::IterationStarted {
                iteration,
                attempt,
                session,
                ..
            } => {
                let attempt = match attempt {
                    0 | 1 => String::new(),
                    2.. => format!(" ━━ attempt {attempt}"),
                };
                let time = local(record.time);
                let text = format!("iteration {iteration}{attempt} ━━ {time} ━━ session {session}");
                said.push(rule(Tone::Strong, "━", &text, self.columns));
            }
            LoopEvent::ToolEnded { id, error } => {
                said.extend(self.tools.ended(id, error.as_deref(), record.time));
            }
            LoopEvent::IterationCompleted { report, .. } => {
                said.extend(self.reading());
                let took = duration(Duration::from_millis(report.duration_ms));
                if report.outcome == IterationOutcome::Succeeded {
                    let claim = if report.claimed {
                        ", claims completion"
                    } else {
                        ""
                    };
                    let done = Symbol::Done.line(format!("done in {took}{claim}"));
                    self.held = Some(done.with(Tone::Detail, self.usage()));
                } else {
                    let text = format!("{} after {took}", report.outcome);
                    let symbol = match report.outcome {
                        IterationOutcome::HandedOver => Symbol::Wait,
                        _ => Symbol::Warning,
                    };
                    said.push(symbol.line(text).with(Tone::Detail, self.usage()));
                }
            }
            LoopEvent::IterationFailed {
                failure,
                duration_ms,
                ..
            } => {
                said.extend(self.reading());
                let took = duration(Duration::from_millis(*duration_ms));
                let failure = failure.to_string();
                let text = format!("failed after {took}: {}", sanitize(&failure));
                said.push(Symbol::Failed.line(text).with(Tone::Detail, self.usage()));
            }
            LoopEvent::WaitStarted { wait } if wait.reason == WaitReason::Backoff => {
                let left = duration(wait.until.since(record.time));
                let limit = match self.failures_max {
                    0 => String::new(),
                    limit => format!(" of {limit}"),
                };
                let text = format!("retry in {left} (failure {}{limit})", self.streak);
                said.push(Symbol::Wait.line(text));
            }
            LoopEvent::GatesRan { iteration, results } => {
                said.extend(check::gates(*iteration, results));
            }
            LoopEvent::RebootCompleted {
                reason, from, to, ..
            } => said.extend(self.break_lines(&reason.to_string(), &format!("{from} -> {to}"))),
            // The agent was asked to end, so its end is not reported.
            LoopEvent::AgentExited { .. } if std::mem::take(&mut self.let_go) => {}
            LoopEvent::AutocommitFinished { result, .. } => {
                let commit = result.commit.as_ref();
                said.extend(commit.map(|it| Symbol::Done.line(committed(it))));
                said.extend(not_committed(result));
            }
            LoopEvent::Completed { outcome, stats }
            | LoopEvent::Stopped { outcome, stats, .. }
            | LoopEvent::Error { outcome, stats } => {
                said.push(outcome_symbol(outcome).headline(ending(outcome, stats)));
                said.push(Symbol::Detail.line(self.run_summary(record.time)));
            }
            event => {
                let symbol = symbol(event);
                said.extend(lines(record).into_iter().map(|line| symbol.line(line)));
            }
        }
        if matches!(record.event, LoopEvent::RebootCompleted { .. }) {
            self.handover = Handover::default();
        }
        said
    }

    /// Takes over the values of a record that later lines need.
    fn count(&mut self, record: &Record) {
        match &record.event {
            LoopEvent::Started { limits, .. } => {
                self.failures_max = limits.failures;
                self.run = RunCounts {
                    started: Some(record.time),
                    ..RunCounts::default()
                };
            }
            LoopEvent::SessionStarted { .. } => {
                self.open = None;
                self.context = None;
                self.redline_tokens = None;
                self.let_go = false;
            }
            LoopEvent::IterationStarted { .. } => {
                self.used = (0, 0);
                self.tools.clear();
            }
            LoopEvent::RebootStarted { .. } => self.handover.context = self.context,
            LoopEvent::ContextMeasured {
                context,
                redline_tokens,
                ..
            } => {
                self.redline_tokens = redline_tokens.or(self.redline_tokens);
                self.open = Some(*context);
                self.context = self.open;
            }
            LoopEvent::ToolStarted { id, name, summary } => {
                self.tools.started(id, name, summary, record.time);
            }
            LoopEvent::ToolDenied(denial) => {
                self.tools.denied(&denial.id);
                self.run.denied += 1;
            }
            LoopEvent::TurnResulted(turn) => {
                self.used.0 = self.used.0.saturating_add(turn.cost_microusd);
                self.used.1 = self.used.1.saturating_add(turn.tokens);
                self.run.tokens = self.run.tokens.saturating_add(turn.tokens);
            }
            LoopEvent::IterationFailed { streak, .. } => self.streak = *streak,
            LoopEvent::AutocommitFinished { result, .. } => {
                self.run.lines += u64::from(result.lines);
                if let Some(commit) = &result.commit {
                    self.run.commits += 1;
                    self.handover.commit = commit.short().to_owned();
                }
            }
            LoopEvent::ClaimRefused(refusal) => {
                self.run.refused += u64::from(refusal.confirmed == 0);
            }
            LoopEvent::Noted { .. } => self.handover.notes += 1,
            LoopEvent::FileTouched { .. } => self.handover.files += 1,
            LoopEvent::HandOffWritten { text, .. } => {
                self.handover.written = Some((text.lines().count(), text.len()));
            }
            LoopEvent::ClosingStarted { .. } => self.let_go = true,
            _ => {}
        }
    }

    fn reading(&mut self) -> Option<Text> {
        let context = self.open.take()?;
        Some(Symbol::Detail.line(context_line(&context, self.redline_tokens)))
    }

    /// Returns cost and tokens of the iteration; empty if the agent reports none.
    fn usage(&self) -> String {
        let (cost, tokens) = self.used;
        let cost = (cost > 0).then(|| format!("   {}", number::dollars(cost)));
        let tokens = (tokens > 0).then(|| format!("   {} tokens", number::tokens(tokens)));
        cost.into_iter().chain(tokens).collect()
    }

    /// Returns the break between two sessions, and what the old session handed over.
    fn break_lines(&self, reason: &str, sessions: &str) -> Vec<Text> {
        let context = self.handover.context.map(|context| {
            let (used, window) = (
                number::tokens(context.tokens),
                number::tokens(context.window),
            );
            format!(" · {used} of {window} tokens")
        });
        let context = context.unwrap_or_default();
        let text = format!(
            "rebooted: session {sessions} ({}){context}",
            sanitize(reason)
        );
        let mut handed = match self.handover.written {
            Some((lines, bytes)) => {
                vec![format!(
                    "{}, {bytes} bytes",
                    number::count(lines as u64, "line")
                )]
            }
            None => vec!["written by the loop, not by the old session".to_owned()],
        };
        for (count, noun) in [(self.handover.notes, "note"), (self.handover.files, "file")] {
            if count > 0 {
                handed.push(number::count(count, noun));
            }
        }
        if !self.handover.commit.is_empty() {
            handed.push(format!("last commit {}", self.handover.commit));
        }
        vec![
            rule(Tone::Waiting, "─", &text, self.columns),
            Symbol::Detail.line(format!("hand-off: {}", handed.join(" · "))),
        ]
    }

    /// Returns when the run started and ended, and its counts.
    fn run_summary(&self, now: Timestamp) -> String {
        let mut parts = Vec::new();
        let started = self
            .run
            .started
            .map(|started| format!("{} to ", local(started)));
        parts.push(format!(
            "this run: {}{}",
            started.unwrap_or_default(),
            local(now)
        ));
        for (count, noun) in [
            (self.run.commits, "commit"),
            (self.run.lines, "changed line"),
            (self.run.denied, "denied call"),
            (self.run.refused, "refused claim"),
        ] {
            if count > 0 {
                parts.push(number::count(count, noun));
            }
        }
        if self.run.tokens > 0 {
            parts.push(format!("{} tokens", number::tokens(self.run.tokens)));
        }
        parts.join(", ")
    }
}

/// Returns the symbol of an event.
fn symbol(event: &LoopEvent) -> Symbol {
    match event {
        LoopEvent::WaitStarted { .. }
        | LoopEvent::PauseRequested
        | LoopEvent::Paused { .. }
        | LoopEvent::RebootRequested { .. } => Symbol::Wait,
        LoopEvent::ToolDenied(_) | LoopEvent::RebootFailed { .. } => Symbol::Failed,
        LoopEvent::ClaimRefused(refusal) if refusal.confirmed == 0 => Symbol::Failed,
        LoopEvent::IterationLimited(_)
        | LoopEvent::AttemptCut { .. }
        | LoopEvent::Warned { .. }
        | LoopEvent::AgentSignaled { .. }
        | LoopEvent::LeftoversEnded { .. }
        | LoopEvent::CheckGivenUp { .. }
        | LoopEvent::AutocommitGivenUp { .. }
        | LoopEvent::Suspended { .. }
        | LoopEvent::WorkedOutside { .. }
        | LoopEvent::StopConditionTriggered { .. }
        | LoopEvent::StopRequested { .. }
        | LoopEvent::Repaired { .. }
        | LoopEvent::RebootVerified {
            futile: Some(_), ..
        } => Symbol::Warning,
        _ => Symbol::Detail,
    }
}

/// Returns the symbol of an outcome of the loop.
fn outcome_symbol(outcome: &Outcome) -> Symbol {
    match outcome {
        Outcome::Done => Symbol::Done,
        Outcome::Error { .. } => Symbol::Failed,
        _ => Symbol::Warning,
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
            let left = duration(wait.until.since(record.time));
            match wait.reason {
                WaitReason::Delay | WaitReason::Backoff => {
                    format!("waits {left} before the next iteration")
                }
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
            duration(boundary_until.since(record.time))
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
            let stood = duration(Duration::from_millis(*duration_ms));
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
        LoopEvent::TestsRan(report) => check::tests(report),
        LoopEvent::CheckGivenUp { reason } => sanitize(reason).into_owned(),
        LoopEvent::ClaimRefused(refusal) => check::refused(refusal),
        LoopEvent::StopConditionTriggered { reason, .. } => {
            format!("stop condition: {}", sanitize(reason))
        }
        LoopEvent::RebootRequested { reason, not_before } => match not_before {
            Some(moment) => format!(
                "a reboot is pending: {reason}; it may happen in {}",
                duration(moment.since(record.time))
            ),
            None => format!("a reboot is due: {reason}"),
        },
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
            let waited = duration(Duration::from_millis(*duration_ms));
            format!("disk space is available again after {waited}; the loop continues")
        }
        LoopEvent::Incident(incident) => sanitize(&incident.to_string()).into_owned(),
        LoopEvent::Repaired { what, how } => format!("repaired the {what}: {}", sanitize(how)),
        // Other events have no line. Progress is reported at the end of the loop, and by `history` for each iteration.
        _ => return Vec::new(),
    };
    vec![line]
}

/// Returns a commit as text.
fn committed(commit: &Committed) -> String {
    let files = number::count(commit.files.into(), "file");
    format!("committed {files} as {}", commit.short())
}

/// Returns why there is no commit; `None` if it did not fail. Changes without a commit are not reported.
fn not_committed(result: &AutocommitResult) -> Option<Text> {
    let error = sanitize(result.error.as_deref()?);
    Some(Symbol::Failed.line(format!("not committed: {error}")))
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
    let redline = redline_tokens.map(|redline| match context.tokens < redline {
        true => format!(", redline at {}", number::tokens(redline)),
        false => format!(", over the redline at {}", number::tokens(redline)),
    });
    format!(
        "context {} % ({} of {} tokens{guess}{})",
        context.percent_rounded_down(),
        number::tokens(context.tokens),
        number::tokens(context.window),
        redline.unwrap_or_default()
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
    let work = duration(Duration::from_millis(stats.execution_ms));
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
    fn a_reboot_is_a_break_with_the_context_and_the_hand_off() {
        let mut lines = Lines::new(80);
        let events = [
            r#"{"type":"context_measured","context":{"tokens":173000,"window":200000,"estimated":false},"answering":true}"#,
            r#"{"type":"file_touched","path":"a"}"#,
            r#"{"type":"reboot_started","reason":{"kind":"redline","percent":86},"iteration":5,"from":1,"then":null}"#,
            r#"{"type":"hand_off_written","text":"one\ntwo"}"#,
            r#"{"type":"session_started","session":2,"agent_id":null}"#,
            r#"{"type":"reboot_completed","reason":{"kind":"redline","percent":86},"iteration":5,"from":1,"to":2,"duration_ms":10}"#,
        ];
        let shown = events.iter().flat_map(|event| {
            lines.of(&Record {
                seq: tachikoma_core::Seq(1),
                time: Timestamp::default(),
                loop_id: tachikoma_core::LoopId::from_u128(1),
                event: serde_json::from_str(event).unwrap(),
                input: None,
                reasons: Vec::new(),
            })
        });
        let shown: Vec<String> = shown.map(|line| line.render(false)).collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
          hand-off written, 7 bytes
        ── rebooted: session 1 -> 2 (context at 86%) · 173k of 200k tokens ─────────────
          hand-off: 2 lines, 7 bytes · 1 file
        ");
    }

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
