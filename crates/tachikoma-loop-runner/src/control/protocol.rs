//! The protocol of the control socket: one JSON object per line. The runner sends [`Hello`] first. The caller sends one [`ControlRequest`] and
//! reads [`Response`]s until the socket closes.

use serde::{Deserialize, Serialize};
use tachikoma_core::{Answer, LoopId, Record, Status};

pub use crate::request::ControlRequest;

/// The version of the protocol. The runner and the caller must use the same version.
pub const PROTOCOL: u32 = 1;

/// Maximum length of a line in bytes. A response may be a record that contains the whole state of the loop.
pub(super) const LINE_BYTES_MAX: usize = 4 << 20;

/// The first line that the runner sends to each caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol version of the runner.
    pub protocol: u32,
    /// The program version of the runner, for messages to the user.
    pub version: String,
    /// Id of the loop that the runner runs.
    pub loop_id: LoopId,
}

/// A response of the runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Response {
    /// The status of the loop.
    Status {
        /// The status of the loop.
        status: Box<Status>,
    },
    /// The answer to a request that changes the loop.
    Answer {
        /// The runner's answer.
        answer: Answer,
    },
    /// Confirms that the caller follows the loop: all later records are sent, or [`Response::Behind`].
    Following,
    /// A record that the loop has just written.
    Record {
        /// The record.
        record: Box<Record>,
    },
    /// The caller reads too slowly and missed records; they are in the journal.
    Behind,
    /// The request was not understood, or the caller may not make it.
    Refused {
        /// Why the request was refused.
        reason: String,
    },
}
