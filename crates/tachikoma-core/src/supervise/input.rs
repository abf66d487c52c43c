//! Inputs of the supervisor.

use std::time::Duration;

use crate::{Exit, Generation, Leftover, Ticket};

/// Result of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The server is healthy.
    Healthy {
        /// Address of the server.
        url: String,
        /// Version that the server reported; `None` if it reported none.
        version: Option<String>,
    },
    /// The server does not answer now.
    Silent {
        /// The error.
        what: String,
    },
    /// Another program answers, or the server refuses the password. Waiting does not help.
    Wrong {
        /// The error.
        what: String,
    },
}

/// How a supervisor was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// By a command or a loop, which needs the server now, also if it was stopped before.
    Command,
    /// By systemd or launchd, after the supervisor before it died. Its decisions stay in effect.
    Service,
}

/// An input of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerInput {
    /// A supervisor takes over.
    Supervise {
        /// Its process.
        pid: u32,
        /// How it was started.
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
    /// The server printed that it listens, so that it can be asked.
    Listening {
        /// Which.
        generation: Generation,
    },
    /// A health check was answered.
    Answered {
        /// Which.
        generation: Generation,
        /// The result.
        answered: Answered,
    },
    /// Its memory was measured.
    Measured {
        /// Which.
        generation: Generation,
        /// How large it is.
        rss_bytes: u64,
    },
    /// No session is busy, so that the server can be replaced.
    Boundary {
        /// Which.
        generation: Generation,
    },
    /// The server has ended its tools, or cannot be asked to.
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
    /// The guard was killed, and the server with it.
    GuardLost,
    /// The operator stops the server and the supervisor.
    Stop {
        /// The caller that waits for an answer; `None` for a signal.
        ticket: Option<Ticket>,
    },
    /// The operator restarts the server.
    Restart {
        /// The caller that waits for an answer; `None` for a signal.
        ticket: Option<Ticket>,
    },
    /// A request that only the operator may make was refused.
    Refused {
        /// What.
        request: String,
        /// The process.
        pid: Option<i32>,
    },
    /// The machine was suspended.
    Suspended {
        /// For how long.
        duration: Duration,
    },
}
