//! The protocol of the control socket: one JSON object per line. The runner sends [`Hello`] first. The caller sends one [`Request`] and
//! reads [`Response`]s until the socket closes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tachikoma_core::{Answer, Choice, LoopCommand, LoopId, Record, Seq, Status};

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

/// A request of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Return the status.
    Status,
    /// Give the loop a command.
    Command {
        /// The command.
        command: LoopCommand,
    },
    /// Leave a note for later sessions.
    Note {
        /// The note.
        text: String,
    },
    /// Claim, for the current iteration, that the whole work is complete.
    Done {
        /// The reason.
        #[serde(default)]
        reason: Option<String>,
    },
    /// Store a value in the free map of the loop.
    Set {
        /// The key.
        key: String,
        /// The value; null removes it.
        value: serde_json::Value,
    },
    /// Answer a question of the loop.
    Answer {
        /// The id of the question; `None` = the open one.
        #[serde(default)]
        id: Option<u32>,
        /// The answer.
        choice: Choice,
        /// The absolute path of the file with the prompt for `edit`.
        #[serde(default)]
        prompt_file: Option<PathBuf>,
    },
    /// Turn attended mode on or off.
    Attend {
        /// Whether it is on.
        on: bool,
    },
    /// Tell the agent something.
    Tell {
        /// The text.
        text: String,
    },
    /// Reload the configuration.
    Reload,
    /// Return the records after this one as they are written.
    Follow {
        /// The last record that the caller has.
        after: Seq,
    },
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
