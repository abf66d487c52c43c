//! What happened between the loop and its operator, and what it may have been the consequence of.

use super::{command, ends, outcome, same_reading};
use crate::event::LoopEvent;
use crate::id::Ticket;
use crate::input::{Input, LoopCommand};
use crate::operator::{OperatorEvent, Wish};
use crate::state::State;

pub(super) fn wish(wish: Wish) -> Input {
    Input::Operator {
        ticket: Ticket::default(),
        wish,
    }
}

/// What may have come of, or from, the operator.
pub(super) fn inputs(state: &State, event: &OperatorEvent, next: Option<&LoopEvent>) -> Vec<Input> {
    match event {
        OperatorEvent::Asked(_) => vec![Input::Wake, command(LoopCommand::SkipIteration)],
        OperatorEvent::Answered {
            id, choice, prompt, ..
        } => vec![
            wish(Wish::Answer {
                id: Some(*id),
                choice: *choice,
                prompt: prompt.clone(),
            }),
            Input::Wake,
            command(LoopCommand::SkipIteration),
        ],
        OperatorEvent::Held { id, until } => vec![wish(Wish::Hold {
            id: *id,
            writing: until.is_none(),
        })],
        OperatorEvent::RolledBack { iteration, error } => {
            let note = match next {
                Some(LoopEvent::Noted { text, .. }) => text.clone(),
                Some(_) | None => String::new(),
            };
            let result = error.clone().map_or(Ok(note), Err);
            let iteration = *iteration;
            let mut guesses = vec![Input::RolledBack { iteration, result }, Input::Wake];
            // The end of the loop may have come over it.
            guesses.extend(next.and_then(outcome).into_iter().flat_map(ends));
            guesses
        }
        OperatorEvent::Attended { on } => vec![wish(Wish::Attend { on: *on })],
        OperatorEvent::Told { text, .. } => vec![wish(Wish::Tell { text: text.clone() })],
        OperatorEvent::PassedOn { .. } => same_reading(state),
        OperatorEvent::Reloaded {
            launch,
            later,
            limits,
            ..
        } => vec![wish(Wish::Reload {
            launch: launch.clone(),
            later: later.clone(),
            limits: *limits,
        })],
    }
}
