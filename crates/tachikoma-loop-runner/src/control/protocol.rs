//! The protocol of the control socket: one JSON object per line. The runner sends [`Hello`] first. The caller sends one [`ControlRequest`] and
//! reads [`Response`]s until the socket closes.

use serde::{Deserialize, Serialize};
use tachikoma_core::{Answer, LoopId, Record, Status};

pub use crate::request::ControlRequest;

/// The version of the protocol. Both sides must use the same.
pub const PROTOCOL: u32 = 1;

/// The longest line. A response may be a record with a whole state in it.
pub(super) const LINE_BYTES_MAX: usize = 4 << 20;

/// The runner's first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of its protocol.
    pub protocol: u32,
    /// Its own version, for people.
    pub version: String,
    /// The loop it runs.
    pub loop_id: LoopId,
}

/// A response of the runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Response {
    /// The status.
    Status {
        /// The status.
        status: Box<Status>,
    },
    /// The answer to a request.
    Answer {
        /// The answer.
        answer: Answer,
    },
    /// From here on, all records are sent, or [`Response::Behind`].
    Following,
    /// A record.
    Record {
        /// The record.
        record: Box<Record>,
    },
    /// The caller reads too slowly and missed records; they are in the journal.
    Behind,
    /// The request was not understood, or may not be made from where it came.
    Refused {
        /// The reason.
        reason: String,
    },
}
