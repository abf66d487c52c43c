//! The reports of a running loop to its subscribers.

use std::sync::Arc;

use tachikoma_core::{Record, Timestamp};

/// Something that happened in a running loop.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A record. It is written, and it is synced before the loop acts on it.
    Recorded(Arc<Record>),
    /// A line that the agent wrote, shortened and not sanitized.
    Output {
        /// The stream that it was written to.
        stream: Stream,
        /// The line.
        line: Arc<str>,
    },
    /// The agent wrote more lines than a person can read.
    OutputSkipped {
        /// How many lines were skipped.
        lines: u64,
    },
    /// The disk is full, so that nothing can be recorded. The loop waits for space.
    DiskFull {
        /// When the loop gives up.
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
