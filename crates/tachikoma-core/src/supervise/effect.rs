//! Effects of the supervisor.

use super::ServerRecord;
use crate::{Generation, StopSignal, Ticket};

/// Result of one input: records to write, then effects to perform, in this order.
#[must_use = "records must be written before effects are performed"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStep {
    /// Records, already applied to the state.
    pub records: Vec<ServerRecord>,
    /// Effects, in the order in which they are performed.
    pub effects: Vec<ServerEffect>,
}

/// An effect that the supervisor has to perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEffect {
    /// Start a server, and report its events.
    Start {
        /// Number of the server's start. Its events must carry it.
        generation: Generation,
    },
    /// Check the server's health once, on a new connection, and answer with [`super::ServerInput::Answered`]. An earlier check
    /// without an answer is canceled.
    Probe {
        /// Number of the server's start.
        generation: Generation,
    },
    /// Measure the memory of the server.
    Measure {
        /// Number of the server's start.
        generation: Generation,
    },
    /// Ask whether a session is busy; if none is, answer with [`super::ServerInput::Boundary`].
    AskIdle {
        /// Number of the server's start.
        generation: Generation,
    },
    /// Ask the server to end its tools, and answer with [`super::ServerInput::Released`].
    Release {
        /// Number of the server's start.
        generation: Generation,
    },
    /// Signal all processes of the server.
    Signal {
        /// Number of the server's start.
        generation: Generation,
        /// The signal to send.
        signal: StopSignal,
    },
    /// Answer a command of the operator.
    Reply {
        /// The command that is answered.
        ticket: Ticket,
        /// What happens next, or why the command is refused.
        answer: Result<String, String>,
    },
    /// End the supervisor.
    Finish,
}
