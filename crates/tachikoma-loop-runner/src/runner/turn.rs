//! A turn of the agent that the core ordered.

use tachikoma_core::{Generation, SessionNo};

/// A turn to begin.
#[derive(Debug)]
pub(super) struct TurnOrder {
    /// The launch that runs the turn.
    pub generation: Generation,
    pub iteration: u32,
    pub attempt: u32,
    pub session: SessionNo,
    pub start: TurnStart,
}

/// How a turn is started.
#[derive(Debug)]
pub(super) enum TurnStart {
    /// Start a process for the turn, in the conversation `resume` or in a new one.
    Launch { resume: Option<String> },
    /// Start a process in the same way, but without a prompt. The next iteration uses it.
    Session { resume: Option<String> },
    /// Send the prompt to the running process.
    Prompt,
}
