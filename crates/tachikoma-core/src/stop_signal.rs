//! The signals that end an agent, each stronger than the last.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// A signal that ends an agent. Each is sent if the agent survives the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopSignal {
    /// The agent's own interrupt, or SIGINT.
    Interrupt,
    /// SIGTERM is sent to the agent.
    Terminate,
    /// SIGKILL is sent to all processes of the agent.
    Kill,
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The last signal that was sent to end an agent, and when the next one follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escalation {
    /// The signal that was sent last.
    #[serde(rename = "rung")]
    pub signal: StopSignal,
    /// When the next signal is sent.
    pub until: Timestamp,
}
