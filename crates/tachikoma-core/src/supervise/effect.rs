//! Effects of the supervisor.

use super::ServerRecord;
use crate::{Generation, StopSignal, Ticket};

/// Result of one input: records to write, then effects to perform, in this order.
#[must_use = "records must be written before effects are performed"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStep {
    /// Records, already applied to the state.
    pub records: Vec<ServerRecord>,
    /// Effects in their order.
    pub effects: Vec<ServerEffect>,
}

/// An effect that the supervisor has to perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEffect {
    /// Start a server, and report its events.
    Start {
        /// The number that its events must carry.
        generation: Generation,
    },
    /// Check its health once, on a new connection, and answer with [`super::ServerInput::Answered`]. An earlier question
    /// that is not answered yet is given up.
    Probe {
        /// Which.
        generation: Generation,
    },
    /// Measure its memory.
    Measure {
        /// Which.
        generation: Generation,
    },
    /// Ask whether a session is busy; if none is, answer with [`super::ServerInput::Boundary`].
    AskIdle {
        /// Which.
        generation: Generation,
    },
    /// Ask it to end its tools, and answer with [`super::ServerInput::Released`].
    Release {
        /// Which.
        generation: Generation,
    },
    /// Signal everything of it.
    Signal {
        /// Which.
        generation: Generation,
        /// How hard.
        rung: StopSignal,
    },
    /// Answer a command.
    Reply {
        /// Which one.
        ticket: Ticket,
        /// What happens next, or why the command is refused.
        answer: Result<String, String>,
    },
    /// End the supervisor.
    Finish,
}
