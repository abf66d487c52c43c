//! Exit codes and signals of processes, and processes that an agent left running.

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
    /// The exit code or signal of the process is unknown.
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

/// A process that the agent left running when it ended, and that Tachikoma ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Process id. It may belong to another process by now.
    pub pid: i32,
    /// Name of the process, as the kernel reports it.
    pub name: String,
    /// The beginning of the process's command line; empty if it could not be read.
    pub command: String,
    /// Whether the process survived SIGKILL, because it is stuck in the kernel.
    pub unkillable: bool,
}
