//! The public state of a loop, which users and other programs see.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The public state of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    /// The loop is not running and has not ended.
    Idle,
    /// The loop runs an iteration, or waits for the next one.
    Running,
    /// The loop is paused.
    Paused,
    /// One session is being replaced by the next.
    Rebooting,
    /// The loop ended with its work done or its limit reached.
    Completed,
    /// The loop ended with an error.
    Error,
    /// The loop was stopped.
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
