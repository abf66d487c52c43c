//! How notes change the state.

use crate::{Note, State, Timestamp};

/// Maximum number of notes of the agent, and of the operator. Neither displaces the other.
const NOTES_MAX: usize = 50;

pub(super) fn record_note(
    state: &mut State,
    text: &str,
    tell: bool,
    operator: bool,
    time: Timestamp,
) {
    if tell {
        state.kept.work_tree_note = Some(text.to_owned());
    }
    let mut same = state
        .notes
        .iter()
        .enumerate()
        .filter(|(_, note)| note.operator == operator);
    let oldest = same.next().map(|(index, _)| index);
    if let Some(oldest) = oldest.filter(|_| same.count() + 1 >= NOTES_MAX) {
        state.notes.remove(oldest);
    }
    state.notes.push(Note {
        time,
        iteration: state.iteration,
        text: text.to_owned(),
        operator,
    });
}
