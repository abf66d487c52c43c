//! What a loop decided, as it can be compared with what another would have decided.

use std::fmt;
use std::time::Duration;

use crate::completion::CheckStage;
use crate::event::LoopEvent;
use crate::number_format::Span;
use crate::outcome::{Outcome, Stop};
use crate::phase::{Cause, Phase};
use crate::policy::Policy;
use crate::reasons;
use crate::reboots::RebootReason;
use crate::record::Record;
use crate::state::State;
use crate::time::Timestamp;
use crate::wait::WaitReason;

/// A decision. Two are the same when the same is done; by which numbers does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The turn under way was ended; for a time-out, when counts too.
    Cut {
        cause: Cause,
        after: Option<Duration>,
    },
    /// The agent was told to come to an end.
    Advised,
    /// A reboot is wanted and has to wait.
    Pending { reason: Kind },
    /// A reboot began.
    Rebooted { reason: Kind },
    /// A reboot was for nothing.
    Futile,
    /// A session began without a reboot.
    Fresh,
    /// The loop waits.
    Waited {
        reason: WaitReason,
        length: Duration,
    },
    /// Gates had to pass.
    Gated { names: Vec<String> },
    /// A claim of completion was not believed.
    Refused,
    /// The loop ended.
    Ended { outcome: Outcome },
}

/// The kind of a reason for a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(&'static str);

impl Kind {
    fn of(reason: &RebootReason) -> Self {
        Self(match reason {
            RebootReason::Redline { .. } => "redline",
            RebootReason::Refused => "the agent takes no more",
            RebootReason::Degradation { .. } => "the agent got worse",
            RebootReason::IterationLimit { .. } => "iterations of the session",
            RebootReason::DurationLimit { .. } => "age of the session",
            RebootReason::PatternMatch { .. } => "pattern",
            RebootReason::ToolCalls { .. } => "tool calls",
            RebootReason::ErrorRecovery { .. } => "broken conversation",
            RebootReason::Manual => "operator",
        })
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { cause, after } => match cause {
                Cause::HandOver => f.write_str("the turn ended for a reboot"),
                Cause::Skip => f.write_str("the turn skipped"),
                Cause::Interrupt => f.write_str("the turn interrupted"),
                Cause::Timeout { timeout } => {
                    let after = Span(after.unwrap_or_default());
                    write!(f, "the turn ended after {after}: {timeout}")
                }
            },
            Self::Advised => f.write_str("the agent told to come to an end"),
            Self::Pending { reason } => write!(f, "a reboot pending ({})", reason.0),
            Self::Rebooted { reason } => write!(f, "rebooted ({})", reason.0),
            Self::Futile => f.write_str("a reboot for nothing"),
            Self::Fresh => f.write_str("a fresh session"),
            Self::Waited { reason, length } => {
                let reason = match reason {
                    WaitReason::Delay => "delay",
                    WaitReason::Backoff => "backoff",
                    WaitReason::UsageLimit => "usage limit",
                    WaitReason::Outage => "outage",
                    WaitReason::RebootWindow => "until a reboot may happen",
                    WaitReason::Operator => "operator",
                };
                write!(f, "waited {} ({reason})", Span(*length))
            }
            Self::Gated { names } => write!(f, "gates run ({})", names.join(", ")),
            Self::Refused => f.write_str("a claim of completion refused"),
            Self::Ended { outcome } => write!(f, "the loop ended: {outcome}"),
        }
    }
}

/// A decision with what it was made from.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub what: What,
    /// In words, with the setting that it goes back to.
    pub by: String,
}

/// One of two loops, as its records tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    /// What was decided since the iteration began.
    pub decisions: Vec<Decision>,
    /// Time in which it waited.
    pub waited: Duration,
    /// When the last attempt was over.
    over: Option<Timestamp>,
    rebooting: bool,
    waiting_since: Option<Timestamp>,
}

impl Side {
    /// Takes a record in, with the state that its step led to.
    pub fn take(&mut self, policy: &Policy, state: &State, record: &Record) {
        self.note_time(record);
        if let Some(decision) = self.decision(policy, state, record) {
            self.decisions.push(decision);
        }
    }

    fn note_time(&mut self, record: &Record) {
        if matches!(
            record.event,
            LoopEvent::IterationCompleted { .. }
                | LoopEvent::IterationFailed { .. }
                | LoopEvent::IterationLimited(_)
        ) {
            self.over = Some(record.time);
        }
        let moves_on = record.event.is_terminal()
            || matches!(
                record.event,
                LoopEvent::WaitStarted { .. }
                    | LoopEvent::KeepStarted { .. }
                    | LoopEvent::CheckStarted { .. }
                    | LoopEvent::Paused { .. }
                    | LoopEvent::IterationStarted { .. }
                    | LoopEvent::RebootStarted { .. }
                    | LoopEvent::Started { .. }
            );
        if moves_on && let Some(since) = self.waiting_since.take() {
            self.waited += record.time.since(since);
        }
        if matches!(record.event, LoopEvent::WaitStarted { .. }) {
            self.waiting_since = Some(record.time);
        }
    }

    fn decision(&mut self, policy: &Policy, state: &State, record: &Record) -> Option<Decision> {
        let by_key = |key: Option<&str>, words: String| match key {
            Some(key) if !words.contains(key) => format!("{key}: {words}"),
            Some(_) | None => words,
        };
        let (what, by) = match &record.event {
            LoopEvent::EndingRequested { cause, .. } => {
                let by = match (cause, &state.session.context) {
                    (Cause::HandOver, Some(context)) => {
                        reasons::reading(policy, &state.session, context)
                    }
                    (Cause::Interrupt, _) => by_itself(state.stop.as_ref()),
                    (Cause::HandOver | Cause::Skip, _) => String::new(),
                    (Cause::Timeout { timeout }, _) => timeout.to_string(),
                };
                let timed = matches!(cause, Cause::Timeout { .. });
                let started = timed.then(|| attempt_started(state)).flatten();
                let after = started.map(|started| record.time.since(started));
                let cause = *cause;
                (What::Cut { cause, after }, by)
            }
            LoopEvent::WrapUpAdvised { .. } => {
                let context = state.session.context.as_ref();
                let fill = context.map(reasons::fill).unwrap_or_default();
                let warning = policy.reboot.warning_percent;
                let by = format!("context.warning_percent = {warning}: {fill}");
                (What::Advised, by)
            }
            LoopEvent::RebootRequested {
                reason,
                not_before: Some(_),
            } => {
                let rate = reasons::rate(&policy.reboot, &state.reboots, record.time);
                let reason = Kind::of(reason);
                (What::Pending { reason }, rate)
            }
            LoopEvent::RebootStarted { reason, .. } => {
                self.rebooting = true;
                let by = by_key(
                    reasons::reboot_key(reason),
                    reasons::reboot(policy, state, reason),
                );
                let reason = Kind::of(reason);
                (What::Rebooted { reason }, by)
            }
            LoopEvent::RebootCompleted { .. } | LoopEvent::RebootFailed { .. } => {
                self.rebooting = false;
                return None;
            }
            LoopEvent::RebootVerified {
                futile: Some(why), ..
            } => (What::Futile, why.clone()),
            LoopEvent::SessionStarted { session, .. } if !self.rebooting && session.0 > 1 => {
                let fresh = policy.fresh_each_iteration;
                let by = if fresh {
                    "session.fresh_each_iteration = true".to_owned()
                } else {
                    "the conversation could not go on".to_owned()
                };
                (What::Fresh, by)
            }
            LoopEvent::WaitStarted { wait } => {
                // Keeping the work takes part of it.
                let over = self.over.unwrap_or(record.time);
                let length = wait.until.since(over);
                let reason = wait.reason;
                let by = match reasons::wait_key(wait) {
                    Some("iteration_delay") => "iteration_delay".to_owned(),
                    key => by_key(key, reasons::wait(policy, state, wait, over)),
                };
                (What::Waited { reason, length }, by)
            }
            LoopEvent::CheckStarted { check } => match &check.stage {
                CheckStage::Asking => return None,
                CheckStage::Gates { names, claimed } => {
                    let by = match claimed {
                        true => reasons::claims(&state.completion.claims),
                        false if state.iteration == 0 => {
                            "all gates run once before the first iteration".to_owned()
                        }
                        false => "they run behind every iteration that went well".to_owned(),
                    };
                    let names = names.clone();
                    (What::Gated { names }, by)
                }
            },
            LoopEvent::ClaimRefused(refusal) => (What::Refused, refusal.reasons.join("; ")),
            LoopEvent::Completed { outcome, .. }
            | LoopEvent::Stopped { outcome, .. }
            | LoopEvent::Error { outcome, .. } => {
                let by = by_key(reasons::end_key(outcome), outcome.to_string());
                let outcome = outcome.clone();
                (What::Ended { outcome }, by)
            }
            LoopEvent::SegmentOpened { .. }
            | LoopEvent::TestsRan(_)
            | LoopEvent::ProgressMeasured(_)
            | LoopEvent::Started { .. }
            | LoopEvent::ConfigChanged { .. }
            | LoopEvent::Operator(_)
            | LoopEvent::PauseRequested
            | LoopEvent::PauseWithdrawn
            | LoopEvent::Paused { .. }
            | LoopEvent::Resumed
            | LoopEvent::StopRequested { .. }
            | LoopEvent::SessionStarted { .. }
            | LoopEvent::SessionEnded { .. }
            | LoopEvent::IterationStarted { .. }
            | LoopEvent::AgentLaunched { .. }
            | LoopEvent::AgentExited { .. }
            | LoopEvent::SessionNamed { .. }
            | LoopEvent::OutputSeen
            | LoopEvent::ContextMeasured { .. }
            | LoopEvent::ToolStarted { .. }
            | LoopEvent::ToolEnded { .. }
            | LoopEvent::ToolDenied { .. }
            | LoopEvent::FileTouched { .. }
            | LoopEvent::TurnResulted(_)
            | LoopEvent::CallEnded { .. }
            | LoopEvent::CostTold { .. }
            | LoopEvent::WorkedOutside { .. }
            | LoopEvent::ConversationTakenUp(_)
            | LoopEvent::QuotaTold(_)
            | LoopEvent::StopPatternMatched { .. }
            | LoopEvent::Claimed { .. }
            | LoopEvent::ConditionsAnswered { .. }
            | LoopEvent::GatesRan { .. }
            | LoopEvent::CheckGivenUp { .. }
            | LoopEvent::Noted { .. }
            | LoopEvent::RungClimbed { .. }
            | LoopEvent::StoodStill { .. }
            | LoopEvent::LeftoversEnded { .. }
            | LoopEvent::IterationCompleted { .. }
            | LoopEvent::IterationFailed { .. }
            | LoopEvent::IterationLimited(_)
            | LoopEvent::LookRequested { .. }
            | LoopEvent::BusySeen { .. }
            | LoopEvent::SnapshotTaken { .. }
            | LoopEvent::KeepStarted { .. }
            | LoopEvent::KeepCalledOff { .. }
            | LoopEvent::WorkKept { .. }
            | LoopEvent::KeepGivenUp { .. }
            | LoopEvent::StreamEnded
            | LoopEvent::AttemptCut { .. }
            | LoopEvent::StopConditionTriggered { .. }
            | LoopEvent::RebootRequested { .. }
            | LoopEvent::HandOffRequested { .. }
            | LoopEvent::HandOffWritten { .. }
            | LoopEvent::HooksStarted { .. }
            | LoopEvent::HooksRan { .. }
            | LoopEvent::ClosingStarted { .. }
            | LoopEvent::SessionOpening { .. }
            | LoopEvent::RebootVerified { .. }
            | LoopEvent::CustomSet { .. }
            | LoopEvent::Warned { .. }
            | LoopEvent::DiskWasFull { .. }
            | LoopEvent::Incident(_)
            | LoopEvent::Repaired { .. } => return None,
        };
        Some(Decision { what, by })
    }
}

/// Says why a loop ends a turn of its own accord.
fn by_itself(stop: Option<&Stop>) -> String {
    match stop {
        Some(
            Stop::Budget { reason }
            | Stop::Hook { reason }
            | Stop::Script { reason }
            | Stop::Unable { reason },
        ) => reason.clone(),
        Some(Stop::Operator | Stop::Signal { .. }) | None => String::new(),
    }
}

fn attempt_started(state: &State) -> Option<Timestamp> {
    match &state.phase {
        Phase::Working { work } => Some(work.started),
        Phase::Idle
        | Phase::Waiting { .. }
        | Phase::Keeping { .. }
        | Phase::Checking { .. }
        | Phase::Hooking { .. }
        | Phase::Rebooting { .. }
        | Phase::Paused { .. }
        | Phase::Ended { .. } => None,
    }
}
