//! How a process ended, and what it left behind.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
pub enum Exit {
    /// The process returned this exit code.
    Code(i32),
    /// This signal ended the process.
    Signal(i32),
    /// How it ended is unknown.
    Unknown,
}

impl Exit {
    /// Returns whether the process ended by itself and reported success.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("an unknown exit"),
        }
    }
}

/// A process that an agent left behind when it ended, and that was ended for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Its process id, which may have been given to another process since.
    pub pid: i32,
    /// Its name as the kernel has it.
    pub name: String,
    /// The beginning of its command line; empty if it could not be read.
    pub command: String,
    /// Whether it outlived even SIGKILL (a process stuck in the kernel).
    pub unkillable: bool,
}
