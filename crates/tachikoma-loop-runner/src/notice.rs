//! The reports of a running loop to its subscribers.

use std::sync::Arc;

use tachikoma_core::{Record, Timestamp};

/// Something that happened in a running loop.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A new record. It is written already, and it is synced before the loop acts on it.
    Recorded(Arc<Record>),
    /// A line of the agent's output. It is shortened and may contain control characters.
    Output {
        /// The output stream of the line.
        stream: Stream,
        /// The text of the line.
        line: Arc<str>,
    },
    /// Lines were skipped, because the agent wrote more than a person can read.
    OutputSkipped {
        /// How many lines were skipped.
        lines: u64,
    },
    /// The disk is full, so no record can be written. The loop waits for space.
    DiskFull {
        /// When the loop stops waiting and ends.
        until: Timestamp,
    },
}

/// An output stream of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}
