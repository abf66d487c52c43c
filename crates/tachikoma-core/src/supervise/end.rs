//! How and why a server ended.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Exit;

/// SIGINT and SIGTERM, and the exit codes that shells and wrappers report for them. They mean that the user ended the server.
const USER_SIGNALS: [i32; 2] = [2, 15];
const USER_CODES: [i32; 2] = [130, 143];

/// Why a supervisor ends a server. It is recorded before the server is ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Purpose {
    /// The operator stops the server.
    Stop,
    /// The operator restarts the server.
    Restart,
    /// The server is restarted because it uses too much memory.
    Memory {
        /// Memory of the server in bytes.
        rss_bytes: u64,
    },
    /// The server did not become ready in time.
    NotReady {
        /// Result of the last health check.
        why: String,
    },
    /// The server no longer answers health checks.
    Hung {
        /// Result of the last health check.
        why: String,
    },
}

impl Purpose {
    /// Returns whether the server failed, so that it gets no time to end its tools.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        match self {
            Self::NotReady { .. } | Self::Hung { .. } => true,
            Self::Stop | Self::Restart | Self::Memory { .. } => false,
        }
    }
}

/// How a server ended, as far as its supervisor knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ServerEnd {
    /// The supervisor ended the server.
    Ended {
        /// Why the supervisor ended it.
        purpose: Purpose,
    },
    /// The user ended the server without its supervisor, for example with a signal.
    ByUser {
        /// Exit code or signal of the server.
        exit: Exit,
    },
    /// The server crashed.
    Crashed {
        /// Exit code or signal of the server.
        exit: Exit,
    },
    /// The server exited with code 0 by itself.
    Unexpected,
    /// It is unknown how the server ended.
    Unknown,
    /// The server could not be started.
    NotStarted {
        /// The error of the start.
        why: String,
    },
    /// The guard of the server died, and the server with it.
    LostWithGuard,
    /// The supervisor died, and the server with it.
    LostWithSupervisor,
}

impl ServerEnd {
    /// Returns how the server ended. `purpose` is why the supervisor ended it; `None` if the supervisor did not.
    #[must_use]
    pub fn of(exit: Exit, purpose: Option<&Purpose>) -> Self {
        if let Some(purpose) = purpose {
            return Self::Ended {
                purpose: purpose.clone(),
            };
        }
        match exit {
            Exit::Code(0) => Self::Unexpected,
            Exit::Code(code) if USER_CODES.contains(&code) => Self::ByUser { exit },
            Exit::Signal(signal) if USER_SIGNALS.contains(&signal) => Self::ByUser { exit },
            Exit::Code(_) | Exit::Signal(_) => Self::Crashed { exit },
            Exit::Unknown => Self::Unknown,
        }
    }

    /// Returns whether this end counts as a crash.
    #[must_use]
    pub fn is_crash(&self) -> bool {
        match self {
            Self::Crashed { .. } | Self::NotStarted { .. } | Self::LostWithGuard => true,
            Self::Ended { purpose } => purpose.is_fault(),
            Self::ByUser { .. } | Self::Unexpected | Self::Unknown | Self::LostWithSupervisor => {
                false
            }
        }
    }
}

impl fmt::Display for ServerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { purpose } => match purpose {
                Purpose::Stop => f.write_str("it was stopped"),
                Purpose::Restart => f.write_str("it was stopped in order to restart it"),
                Purpose::Memory { rss_bytes } => {
                    write!(f, "it was ended because it had grown to {rss_bytes} bytes")
                }
                Purpose::NotReady { why } => write!(f, "it did not become ready: {why}"),
                Purpose::Hung { why } => write!(f, "it hung: {why}"),
            },
            Self::ByUser { exit } => write!(f, "it was ended by a signal of the user ({exit})"),
            Self::Crashed { exit } => write!(f, "it crashed ({exit})"),
            Self::Unexpected => f.write_str("it ended by itself (exit 0)"),
            Self::Unknown => f.write_str("how it ended is unknown"),
            Self::NotStarted { why } => write!(f, "it could not be started: {why}"),
            Self::LostWithGuard => f.write_str("its guard was killed, which ended the server"),
            Self::LostWithSupervisor => f.write_str("its supervisor died, which ended the server"),
        }
    }
}
