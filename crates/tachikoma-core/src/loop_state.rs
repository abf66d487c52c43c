//! The public state of a loop, which users and other programs see.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The public state of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    /// Nothing runs, and nothing has ended it.
    Idle,
    /// Iterations run, or the next one is waited for.
    Running,
    /// The operator paused it.
    Paused,
    /// One session is being replaced by the next.
    Rebooting,
    /// It reached its end.
    Completed,
    /// It could not go on.
    Error,
    /// It was stopped.
    Stopped,
}

impl LoopState {
    /// Returns whether the loop has ended.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Error | Self::Stopped)
    }
}

impl fmt::Display for LoopState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
