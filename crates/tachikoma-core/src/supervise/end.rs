//! How a server ended, and what it was ended for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::exit::Exit;

/// SIGINT and SIGTERM, and what shells and wrappers report for them: someone wanted the server to end.
const USER_SIGNALS: [i32; 2] = [2, 15];
const USER_CODES: [i32; 2] = [130, 143];

/// What a supervisor ends a server for. Recorded before it does anything about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Purpose {
    /// To stop for good.
    Stop,
    /// To start afresh, as someone wished.
    Restart,
    /// To start afresh, because it had grown too large.
    Memory {
        /// How large, in bytes.
        rss_bytes: u64,
    },
    /// Because it did not become ready.
    NotReady {
        /// What was seen instead.
        why: String,
    },
    /// Because it does not answer any more.
    Hung {
        /// What was seen instead.
        why: String,
    },
}

impl Purpose {
    /// Returns whether the server itself is at fault: then nothing of it is waited for.
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
    /// Its supervisor ended it.
    Ended {
        /// What for.
        purpose: Purpose,
    },
    /// Someone else ended it on purpose.
    ByUser {
        /// How it ended.
        exit: Exit,
    },
    /// It crashed.
    Crashed {
        /// How it ended.
        exit: Exit,
    },
    /// It ended by itself, in order, though nobody wanted that.
    Unexpected,
    /// How it ended is unknown.
    Unknown,
    /// It could not be started.
    NotStarted {
        /// What stood in the way.
        why: String,
    },
    /// The guard that held it died, and it died with it.
    LostWithGuard,
    /// Its supervisor died, and it died with it.
    LostWithSupervisor,
}

impl ServerEnd {
    /// Says what an exit means, given what its supervisor wanted.
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

    /// Returns whether it counts as a crash.
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
                Purpose::Restart => f.write_str("it was ended for a restart"),
                Purpose::Memory { rss_bytes } => {
                    write!(f, "it was ended because it had grown to {rss_bytes} bytes")
                }
                Purpose::NotReady { why } => write!(f, "it did not become ready: {why}"),
                Purpose::Hung { why } => write!(f, "it hung: {why}"),
            },
            Self::ByUser { exit } => write!(f, "someone ended it ({exit})"),
            Self::Crashed { exit } => write!(f, "it crashed ({exit})"),
            Self::Unexpected => f.write_str("it ended by itself (exit 0)"),
            Self::Unknown => f.write_str("nobody saw how it ended"),
            Self::NotStarted { why } => write!(f, "it could not be started: {why}"),
            Self::LostWithGuard => f.write_str("its guard died, and it died with it"),
            Self::LostWithSupervisor => f.write_str("its supervisor died, and it died with it"),
        }
    }
}
