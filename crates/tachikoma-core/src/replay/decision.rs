//! The decisions that records contain, in a form that can be compared between two loops.

use std::fmt;
use std::time::Duration;

use crate::number_format::Span;
use crate::reasons;
use crate::{
    Autocommit, Cause, CheckStage, HooksStart, LoopEvent, Outcome, RebootReason, Record, State,
    Timeout, Timestamp, WaitReason,
};

/// A decision. Two decisions are the same if they lead to the same action. Their values may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DecisionKind {
    /// The turn was ended. `after` is the age of the attempt, for timeouts only.
    TurnEnded {
        cause: Cause,
        after: Option<Duration>,
    },
    /// The agent was silent for as long as a timeout allows, so its processes were sampled.
    SilenceChecked { timeout: Timeout, after: Duration },
    /// The agent was asked to finish, because its context fills up.
    WrapUpAdvised,
    /// A reboot is due, and rate limits delay it.
    RebootPending { reason: RebootKind },
    /// A reboot began.
    Rebooted { reason: RebootKind },
    /// A reboot freed too little of the context.
    FutileReboot,
    /// A session began without a reboot.
    FreshSession,
    /// The loop waits.
    Waited {
        reason: WaitReason,
        length: Duration,
    },
    /// Gates were run.
    GatesRun { names: Vec<String> },
    /// A claim of completion was refused.
    ClaimRefused,
    /// The loop ended.
    Ended { outcome: Outcome },
}

/// The kind of a reason for a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RebootKind(&'static str);

impl RebootKind {
    fn of(reason: &RebootReason) -> Self {
        Self(match reason {
            RebootReason::Redline { .. } => "redline",
            RebootReason::Refused => "context full",
            RebootReason::Degradation { .. } => "quality fell",
            RebootReason::IterationLimit { .. } => "iterations of the session",
            RebootReason::DurationLimit { .. } => "age of the session",
            RebootReason::PatternMatch { .. } => "pattern",
            RebootReason::ToolCalls { .. } => "tool calls",
            RebootReason::ErrorRecovery { .. } => "broken conversation",
            RebootReason::Manual => "operator",
        })
    }
}

impl fmt::Display for DecisionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TurnEnded { cause, after } => match cause {
                Cause::HandOver => f.write_str("the turn ended for a reboot"),
                Cause::Skip => f.write_str("the turn skipped"),
                Cause::Interrupt => f.write_str("the turn interrupted"),
                Cause::Timeout { timeout } => {
                    let after = Span(after.unwrap_or_default());
                    write!(f, "the turn ended after {after}: {timeout}")
                }
            },
            Self::SilenceChecked { timeout, after } => {
                write!(
                    f,
                    "the agent's processes sampled after {}: {timeout}",
                    Span(*after)
                )
            }
            Self::WrapUpAdvised => f.write_str("the agent asked to finish"),
            Self::RebootPending { reason } => write!(f, "a reboot pending ({})", reason.0),
            Self::Rebooted { reason } => write!(f, "rebooted ({})", reason.0),
            Self::FutileReboot => f.write_str("a futile reboot"),
            Self::FreshSession => f.write_str("a fresh session"),
            Self::Waited { reason, length } => {
                write!(f, "waited {} ({reason})", Span(*length))
            }
            Self::GatesRun { names } => write!(f, "gates run ({})", names.join(", ")),
            Self::ClaimRefused => f.write_str("a claim of completion refused"),
            Self::Ended { outcome } => write!(f, "the loop ended: {outcome}"),
        }
    }
}

/// A decision with its reason.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub kind: DecisionKind,
    /// The reason, with the setting that caused the decision.
    pub by: String,
}

/// Reads the decisions of one loop from its records.
#[derive(Clone, Debug, Default)]
pub(super) struct DecisionReader {
    /// Total time that the loop waited.
    pub waited: Duration,
    /// The outcome with which the loop is about to end, after its last commit and hooks.
    ending: Option<Outcome>,
    /// When the last attempt ended.
    attempt_ended: Option<Timestamp>,
    /// Why the last session ended.
    session_ended: String,
    rebooting: bool,
    waiting_since: Option<Timestamp>,
}

impl DecisionReader {
    /// Returns the decision in a record, if there is one. `state` is the state after the step of the record.
    pub fn read(&mut self, state: &State, record: &Record) -> Option<Decision> {
        self.note_time(record);
        let kind = self.kind(state, record)?;
        let by = match &record.event {
            LoopEvent::SilenceChecked { timeout, .. } => timeout.to_string(),
            LoopEvent::RebootVerified { futile, .. } => futile.clone().unwrap_or_default(),
            LoopEvent::SessionStarted { .. } => self.session_ended.clone(),
            LoopEvent::CheckStarted { check } => match check.stage {
                CheckStage::Gates { claimed, .. } => reasons::gates_due(state, claimed),
                CheckStage::Asking => String::new(),
            },
            LoopEvent::ClaimRefused(refusal) => refusal.reasons.join("; "),
            _ => match (&kind, record.reasons.last()) {
                (_, Some(reason)) => reason.clone(),
                (DecisionKind::Ended { outcome }, None) => outcome.to_string(),
                (_, None) => String::new(),
            },
        };
        Some(Decision { kind, by })
    }

    fn note_time(&mut self, record: &Record) {
        if matches!(
            record.event,
            LoopEvent::IterationCompleted { .. }
                | LoopEvent::IterationFailed { .. }
                | LoopEvent::IterationLimited(_)
        ) {
            self.attempt_ended = Some(record.time);
        }
        let moves_on = record.event.is_terminal()
            || matches!(
                record.event,
                LoopEvent::WaitStarted { .. }
                    | LoopEvent::AutocommitStarted { .. }
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

    fn kind(&mut self, state: &State, record: &Record) -> Option<DecisionKind> {
        match &record.event {
            LoopEvent::EndingRequested { cause, .. } => {
                let timed = matches!(cause, Cause::Timeout { .. });
                let started = timed.then(|| attempt_started(state)).flatten();
                let after = started.map(|started| record.time.since(started));
                let cause = *cause;
                Some(DecisionKind::TurnEnded { cause, after })
            }
            LoopEvent::SilenceChecked { timeout, .. } => {
                let started = attempt_started(state)?;
                let (timeout, after) = (*timeout, record.time.since(started));
                Some(DecisionKind::SilenceChecked { timeout, after })
            }
            LoopEvent::WrapUpAdvised { .. } => Some(DecisionKind::WrapUpAdvised),
            LoopEvent::RebootRequested {
                reason,
                not_before: Some(_),
            } => {
                let reason = RebootKind::of(reason);
                Some(DecisionKind::RebootPending { reason })
            }
            LoopEvent::RebootStarted { reason, .. } => {
                self.rebooting = true;
                let reason = RebootKind::of(reason);
                Some(DecisionKind::Rebooted { reason })
            }
            LoopEvent::RebootCompleted { .. } | LoopEvent::RebootFailed { .. } => {
                self.rebooting = false;
                None
            }
            LoopEvent::RebootVerified { futile, .. } => {
                futile.as_ref().map(|_| DecisionKind::FutileReboot)
            }
            LoopEvent::SessionEnded { reason, .. } => {
                self.session_ended.clone_from(reason);
                None
            }
            LoopEvent::SessionStarted { session, .. } => {
                let is_fresh = !self.rebooting && session.0 > 1;
                is_fresh.then_some(DecisionKind::FreshSession)
            }
            LoopEvent::WaitStarted { wait } => {
                // The wait counts from the end of the attempt: the autocommit takes part of it.
                let ended = self.attempt_ended.unwrap_or(record.time);
                let length = wait.until.since(ended);
                let reason = wait.reason;
                Some(DecisionKind::Waited { reason, length })
            }
            LoopEvent::CheckStarted { check } => match &check.stage {
                CheckStage::Asking => None,
                CheckStage::Gates { names, .. } => {
                    let names = names.clone();
                    Some(DecisionKind::GatesRun { names })
                }
            },
            LoopEvent::ClaimRefused(_) => Some(DecisionKind::ClaimRefused),
            LoopEvent::IterationStarted { .. } => {
                self.ending = None;
                None
            }
            LoopEvent::Completed { outcome, .. }
            | LoopEvent::Stopped { outcome, .. }
            | LoopEvent::Error { outcome, .. }
            | LoopEvent::AutocommitStarted(Autocommit {
                outcome: Some(outcome),
                ..
            })
            | LoopEvent::HooksStarted(HooksStart {
                outcome: Some(outcome),
                ..
            }) => {
                let known = self.ending.replace(outcome.clone());
                let outcome = outcome.clone();
                (known.as_ref() != Some(&outcome)).then_some(DecisionKind::Ended { outcome })
            }
            _ => None,
        }
    }
}

fn attempt_started(state: &State) -> Option<Timestamp> {
    state.work().map(|work| work.started)
}

/// Returns the decisions of a step in words.
pub(super) fn words(decisions: &[DecisionKind]) -> String {
    if decisions.is_empty() {
        return "continued".to_owned();
    }
    let words: Vec<String> = decisions.iter().map(ToString::to_string).collect();
    words.join(", then ")
}
