//! Files of a loop that can be damaged and repaired while it runs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A file of the loop that was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// The journal file was repaired.
    Journal,
    /// The lock file of the working directory was repaired.
    Lock,
    /// The control socket was repaired.
    Socket,
    /// The snapshot of the state was repaired.
    Snapshot,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Journal => "journal",
            Self::Lock => "lock",
            Self::Socket => "control socket",
            Self::Snapshot => "snapshot",
        })
    }
}
