//! Wishes of the operator, and of a loop that ends, by what was recorded of them.

use crate::event::LoopEvent;
use crate::hooking::HooksStart;
use crate::id::Ticket;
use crate::input::{Input, LoopCommand, Urgency};
use crate::keep::Keep;
use crate::outcome::{Outcome, Stop};

pub(super) fn outcome(event: &LoopEvent) -> Option<&Outcome> {
    if let LoopEvent::Completed { outcome, .. }
    | LoopEvent::Stopped { outcome, .. }
    | LoopEvent::Error { outcome, .. } = event
    {
        Some(outcome)
    } else {
        None
    }
}

/// Who may have wanted the end that a record speaks of.
pub(super) fn stops(event: &LoopEvent) -> Vec<Input> {
    if let LoopEvent::KeepStarted(Keep {
        outcome: Some(outcome),
        ..
    })
    | LoopEvent::HooksStarted(HooksStart {
        outcome: Some(outcome),
        ..
    }) = event
    {
        return ends(outcome);
    }
    if let LoopEvent::StopRequested {
        stop: Stop::Signal { signal },
        ..
    } = event
    {
        return shutdowns(*signal);
    }
    outcome(event).map_or_else(Vec::new, ends)
}

/// What may have ended the loop by itself.
pub(super) fn ends(outcome: &Outcome) -> Vec<Input> {
    match outcome {
        Outcome::Operator => urgently(LoopCommand::Stop),
        Outcome::Signal { signal } => {
            let mut guesses = shutdowns(*signal);
            guesses.extend(written_off(outcome));
            guesses
        }
        Outcome::Error { .. } => written_off(outcome),
        Outcome::Done
        | Outcome::LimitReached { .. }
        | Outcome::Condition { .. }
        | Outcome::Budget { .. } => Vec::new(),
    }
}

pub(super) fn command(command: LoopCommand) -> Input {
    Input::Command {
        ticket: Ticket::default(),
        command,
    }
}

/// The more urgent, the more follows at once.
pub(super) fn urgently(make: fn(Urgency) -> LoopCommand) -> Vec<Input> {
    let urgencies = [Urgency::Kill, Urgency::Now, Urgency::Graceful];
    urgencies.map(|urgency| command(make(urgency))).to_vec()
}

pub(super) fn shutdowns(signal: i32) -> Vec<Input> {
    let urgencies = [Urgency::Kill, Urgency::Now, Urgency::Graceful];
    urgencies
        .map(|urgency| Input::Shutdown { signal, urgency })
        .to_vec()
}

pub(super) fn written_off(outcome: &Outcome) -> Vec<Input> {
    match outcome {
        Outcome::Signal { signal } => vec![Input::Decline { signal: *signal }],
        Outcome::Error { reason } => vec![Input::Broken {
            reason: reason.clone(),
        }],
        Outcome::Done
        | Outcome::LimitReached { .. }
        | Outcome::Condition { .. }
        | Outcome::Budget { .. }
        | Outcome::Operator => Vec::new(),
    }
}
