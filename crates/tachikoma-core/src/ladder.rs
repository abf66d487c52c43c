//! The stop ladder: the signals that end an agent, from polite to final.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A rung of the ladder by which an agent is ended. Ordered from polite to final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// The agent's own interrupt, or SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGKILL to everything that is ours.
    Kill,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "interrupt",
            Self::Terminate => "terminate",
            Self::Kill => "kill",
        })
    }
}

/// The place on the ladder by which an agent is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ladder {
    /// The rung it is on.
    pub rung: Rung,
    /// When the next one follows.
    pub until: Timestamp,
}
