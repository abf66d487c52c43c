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
    /// A command or a loop started it and needs the server now, even if the server was stopped before.
    Command,
    /// systemd or launchd started it, after the previous supervisor died. Earlier decisions stay in effect.
    Service,
}

/// An input of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerInput {
    /// A supervisor process starts.
    Supervise {
        /// Process id of the supervisor.
        pid: u32,
        /// How the supervisor was started.
        by: StartedBy,
    },
    /// The settings were reloaded, and the policy is new.
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
    /// The server printed that it listens, so that a health check can succeed.
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
    /// The server has ended its tools, or could not be asked to do so.
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
        /// Processes that the server left running, and that were ended.
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
