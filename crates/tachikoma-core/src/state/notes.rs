//! How notes change the state.

use super::State;
use crate::session::Note;
use crate::time::Timestamp;

/// Notes that are remembered; the hand-off carries them all, and it is bounded too.
const NOTES_MAX: usize = 50;

impl State {
    pub(super) fn noted(&mut self, text: &str, tell: bool, time: Timestamp) {
        if tell {
            self.kept.untold = Some(text.to_owned());
        }
        if self.notes.len() >= NOTES_MAX {
            self.notes.remove(0);
        }
        self.notes.push(Note {
            time,
            iteration: self.iteration,
            text: text.to_owned(),
        });
    }
}
