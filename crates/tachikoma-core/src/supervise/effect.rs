//! What the supervisor wants done.

use super::event::ServerRecord;
use crate::id::{Generation, Ticket};
use crate::ladder::Rung;

/// What came of one input: facts to be journalled, then effects to be carried out, in this order.
#[must_use = "facts must be journalled before effects are carried out"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStep {
    /// Records, already applied to the state.
    pub records: Vec<ServerRecord>,
    /// Effects, in the order in which they are carried out.
    pub effects: Vec<ServerEffect>,
}

/// An order to the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEffect {
    /// Start a server, and send event about it.
    Start {
        /// The number that its events must carry.
        generation: Generation,
    },
    /// Ask it once for its health, in a new connection, and answer with [`super::ServerInput::Answered`]. An earlier question
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
    /// Have it let go of what runs in it, and answer with [`super::ServerInput::Released`].
    Release {
        /// Which.
        generation: Generation,
    },
    /// Signal everything of it.
    Signal {
        /// Which.
        generation: Generation,
        /// How hard.
        rung: Rung,
    },
    /// Answer a command.
    Reply {
        /// Which one.
        ticket: Ticket,
        /// What becomes of it, or why nothing does.
        answer: Result<String, String>,
    },
    /// All is over.
    Finish,
}
