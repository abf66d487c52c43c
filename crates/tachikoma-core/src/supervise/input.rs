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
        /// Error of the health check.
        what: String,
    },
    /// Another program answers, or the server refuses the password. Waiting does not help.
    Wrong {
        /// Error of the health check.
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
        /// Process id of the supervisor.
        pid: u32,
        /// How the supervisor was started.
        by: StartedBy,
    },
    /// The settings were read again, and the policy is a new one.
    Reloaded,
    /// A deadline has passed.
    Wake,
    /// The process of the server runs.
    Spawned {
        /// Number of the server's start.
        generation: Generation,
        /// Process id of the server.
        pid: i32,
    },
    /// The process of the server could not be started.
    NotStarted {
        /// Number of the server's start.
        generation: Generation,
        /// The error of the start.
        why: String,
    },
    /// The server printed that it listens, so that it can be asked.
    Listening {
        /// Number of the server's start.
        generation: Generation,
    },
    /// A health check was answered.
    Answered {
        /// Number of the server's start.
        generation: Generation,
        /// Result of the health check.
        answered: Answered,
    },
    /// The memory of the server was measured.
    Measured {
        /// Number of the server's start.
        generation: Generation,
        /// Memory of the server in bytes.
        rss_bytes: u64,
    },
    /// No session is busy, so that the server can be replaced.
    Boundary {
        /// Number of the server's start.
        generation: Generation,
    },
    /// The server has ended its tools, or cannot be asked to.
    Released {
        /// Number of the server's start.
        generation: Generation,
    },
    /// The server and all its processes have ended.
    Exited {
        /// Number of the server's start.
        generation: Generation,
        /// Exit code or signal of the server.
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
        /// The request that was refused.
        request: String,
        /// Process id of the caller; `None` if it is unknown.
        pid: Option<i32>,
    },
    /// The machine was suspended.
    Suspended {
        /// Length of the suspension.
        duration: Duration,
    },
}
