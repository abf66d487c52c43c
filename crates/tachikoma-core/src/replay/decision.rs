//! The decisions that records contain, in a form that can be compared between two loops.

use std::fmt;
use std::time::Duration;

use crate::autocommit::Autocommit;
use crate::completion::CheckStage;
use crate::event::LoopEvent;
use crate::hooking::HooksStart;
use crate::number_format::Span;
use crate::outcome::{Outcome, Stop, Timeout};
use crate::phase::{Cause, Phase};
use crate::policy::Policy;
use crate::reasons;
use crate::reboots::RebootReason;
use crate::record::Record;
use crate::state::State;
use crate::time::Timestamp;
use crate::wait::WaitReason;

/// A decision. Two decisions are the same if they lead to the same action, whatever the figures are.
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
    /// A reboot is due, and rate limits put it off.
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
    /// The reason, with the setting that it goes back to.
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
    rebooting: bool,
    waiting_since: Option<Timestamp>,
}

impl DecisionReader {
    /// Returns the decision in a record, if there is one. `state` is the state after the step of the record.
    pub fn read(&mut self, policy: &Policy, state: &State, record: &Record) -> Option<Decision> {
        self.note_time(record);
        self.decision(policy, state, record)
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

    fn decision(&mut self, policy: &Policy, state: &State, record: &Record) -> Option<Decision> {
        let by_key = |key: Option<&str>, words: String| match key {
            Some(key) if !words.contains(key) => format!("{key}: {words}"),
            Some(_) | None => words,
        };
        let (kind, by) = match &record.event {
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
                (DecisionKind::TurnEnded { cause, after }, by)
            }
            LoopEvent::SilenceChecked { timeout, .. } => {
                let started = attempt_started(state)?;
                let (timeout, after) = (*timeout, record.time.since(started));
                let by = timeout.to_string();
                (DecisionKind::SilenceChecked { timeout, after }, by)
            }
            LoopEvent::WrapUpAdvised { .. } => {
                let context = state.session.context.as_ref();
                let fill = context.map(reasons::fill).unwrap_or_default();
                let warning = policy.reboot.warning_percent;
                let by = format!("context.warning_percent = {warning}: {fill}");
                (DecisionKind::WrapUpAdvised, by)
            }
            LoopEvent::RebootRequested {
                reason,
                not_before: Some(_),
            } => {
                let rate = reasons::rate(&policy.reboot, &state.reboots, record.time);
                let reason = RebootKind::of(reason);
                (DecisionKind::RebootPending { reason }, rate)
            }
            LoopEvent::RebootStarted { reason, .. } => {
                self.rebooting = true;
                let by = by_key(
                    reasons::reboot_key(reason),
                    reasons::reboot(policy, state, reason),
                );
                let reason = RebootKind::of(reason);
                (DecisionKind::Rebooted { reason }, by)
            }
            LoopEvent::RebootCompleted { .. } | LoopEvent::RebootFailed { .. } => {
                self.rebooting = false;
                return None;
            }
            LoopEvent::RebootVerified {
                futile: Some(why), ..
            } => (DecisionKind::FutileReboot, why.clone()),
            LoopEvent::SessionStarted { session, .. } if !self.rebooting && session.0 > 1 => {
                let fresh = policy.fresh_each_iteration;
                let by = if fresh {
                    "session.fresh_each_iteration = true".to_owned()
                } else {
                    "the conversation could not go on".to_owned()
                };
                (DecisionKind::FreshSession, by)
            }
            LoopEvent::WaitStarted { wait } => {
                // The wait counts from the end of the attempt: the autocommit takes part of it.
                let ended = self.attempt_ended.unwrap_or(record.time);
                let length = wait.until.since(ended);
                let reason = wait.reason;
                let by = match reasons::wait_key(wait) {
                    Some("iteration_delay") => "iteration_delay".to_owned(),
                    key => by_key(key, reasons::wait(policy, state, wait, ended)),
                };
                (DecisionKind::Waited { reason, length }, by)
            }
            LoopEvent::CheckStarted { check } => match &check.stage {
                CheckStage::Asking => return None,
                CheckStage::Gates { names, claimed } => {
                    let by = match claimed {
                        true => reasons::claims(&state.completion.claims),
                        false if state.iteration == 0 => {
                            "all gates run once before the first iteration".to_owned()
                        }
                        false => "they run after every successful iteration".to_owned(),
                    };
                    let names = names.clone();
                    (DecisionKind::GatesRun { names }, by)
                }
            },
            LoopEvent::ClaimRefused(refusal) => {
                (DecisionKind::ClaimRefused, refusal.reasons.join("; "))
            }
            LoopEvent::IterationStarted { .. } => {
                self.ending = None;
                return None;
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
                if known.as_ref() == Some(outcome) {
                    return None;
                }
                let by = by_key(reasons::end_key(outcome), outcome.to_string());
                let outcome = outcome.clone();
                (DecisionKind::Ended { outcome }, by)
            }
            _ => return None,
        };
        Some(Decision { kind, by })
    }
}

/// Returns the reason if the loop itself ends the turn, and not the operator.
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
        _ => None,
    }
}

/// Returns the decisions of a step in words.
pub(super) fn words(decisions: &[DecisionKind]) -> String {
    if decisions.is_empty() {
        return "went on".to_owned();
    }
    let words: Vec<String> = decisions.iter().map(ToString::to_string).collect();
    words.join(", then ")
}
