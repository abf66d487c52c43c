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

/// How a turn begins.
#[derive(Debug)]
pub(super) enum TurnStart {
    /// A process is started for it, in the conversation that `resume` names or in a new one.
    Launch { resume: Option<String> },
    /// A process is started in the same way, but gets no prompt. It serves the iteration that comes next.
    Session { resume: Option<String> },
    /// The process that is running gets the next prompt.
    Prompt,
}
