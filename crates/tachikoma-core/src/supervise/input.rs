//! AgentEvent for the supervisor.

use std::time::Duration;

use crate::exit::{Exit, Leftover};
use crate::id::{Generation, Ticket};

/// What a question for the server's health brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It is well.
    Healthy {
        /// Where it was asked.
        url: String,
        /// Its version, if it told.
        version: Option<String>,
    },
    /// It does not answer, for now.
    Silent {
        /// What was seen.
        what: String,
    },
    /// Something answers, and not as this server would: waiting does not help.
    Wrong {
        /// What was seen.
        what: String,
    },
}

/// Who started a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// A person or a loop that wants the server now, whatever became of it before.
    Command,
    /// systemd or launchd, after the supervisor before it died: its decisions hold.
    Service,
}

/// AgentEvent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerInput {
    /// A supervisor takes over.
    Supervise {
        /// Its process.
        pid: u32,
        /// Who started it.
        by: StartedBy,
    },
    /// The settings were read again, and the policy is a new one.
    Reloaded,
    /// A deadline has come.
    Wake,
    /// The process runs.
    Spawned {
        /// Which.
        generation: Generation,
        /// The process.
        pid: i32,
    },
    /// The process could not be started.
    NotStarted {
        /// Which.
        generation: Generation,
        /// What stood in the way.
        why: String,
    },
    /// The server says that it listens: now is the time to ask.
    Listening {
        /// Which.
        generation: Generation,
    },
    /// It was asked for its health.
    Answered {
        /// Which.
        generation: Generation,
        /// What came of it.
        answered: Answered,
    },
    /// Its memory was measured.
    Measured {
        /// Which.
        generation: Generation,
        /// How large it is.
        rss_bytes: u64,
    },
    /// No session of it is busy: a good moment to replace it, if that is due.
    Boundary {
        /// Which.
        generation: Generation,
    },
    /// It has let go of what ran in it, or cannot be asked to.
    Released {
        /// Which.
        generation: Generation,
    },
    /// It is gone, with all that it had started.
    Exited {
        /// Which.
        generation: Generation,
        /// How.
        exit: Exit,
        /// What it left running, and was ended.
        leftovers: Vec<Leftover>,
    },
    /// The guard that held it is gone, and everything with it.
    GuardLost,
    /// Someone wants the server stopped, and the supervisor too.
    Stop {
        /// Who awaits an answer.
        ticket: Option<Ticket>,
    },
    /// Someone wants it started afresh.
    Restart {
        /// Who awaits an answer.
        ticket: Option<Ticket>,
    },
    /// Somebody asked for what only the operator may ask for.
    Refused {
        /// What.
        request: String,
        /// The process.
        pid: Option<i32>,
    },
    /// Nothing could happen for a while.
    Suspended {
        /// For how long.
        duration: Duration,
    },
}
