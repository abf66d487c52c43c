//! What is said on the control socket: one JSON object per line. The runner speaks first ([`Hello`]); the caller sends
//! one [`Request`] and reads [`Response`]s until the socket closes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tachikoma_core::{Answer, Choice, LoopCommand, LoopId, Record, Seq, Status};

/// The version of what is said. Both sides must speak the same.
pub const PROTOCOL: u32 = 1;

/// Longer lines are no requests; a response may be a record with a whole state in it.
pub(super) const LINE_BYTES_MAX: usize = 4 << 20;

/// The runner's first words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol it speaks.
    pub protocol: u32,
    /// Its own version, for people.
    pub version: String,
    /// The loop it runs.
    pub loop_id: LoopId,
}

/// What a caller wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// To know what there is to know now.
    Status,
    /// To tell the loop something.
    Command {
        /// What.
        command: LoopCommand,
    },
    /// To leave a note for the sessions to come.
    Note {
        /// The note.
        text: String,
    },
    /// To claim, for the iteration under way, that the whole work is complete.
    Done {
        /// Why.
        #[serde(default)]
        reason: Option<String>,
    },
    /// To have something written down for later.
    Set {
        /// The key.
        key: String,
        /// The value; null takes it away.
        value: serde_json::Value,
    },
    /// To answer a question of the loop.
    Answer {
        /// Which one; none = the one that is open.
        #[serde(default)]
        id: Option<u32>,
        /// What.
        choice: Choice,
        /// The file with the prompt that goes with `edit`, absolute.
        #[serde(default)]
        prompt_file: Option<PathBuf>,
    },
    /// To say whether somebody is there to be asked.
    Attend {
        /// Whether.
        on: bool,
    },
    /// To tell the agent something.
    Tell {
        /// What.
        text: String,
    },
    /// To have the configuration read again.
    Reload,
    /// To read the records that follow this one, as they come.
    Follow {
        /// The last one it has.
        after: Seq,
    },
}

/// What the runner says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Response {
    /// What there is to know now.
    Status {
        /// It.
        status: Box<Status>,
    },
    /// What became of a command.
    Answer {
        /// It.
        answer: Answer,
    },
    /// From here on no record is left out without a word.
    Following,
    /// A record.
    Record {
        /// It.
        record: Box<Record>,
    },
    /// The caller reads too slowly and missed records; they are in the journal.
    Behind,
    /// The request was not understood, or may not be made from where it came.
    Refused {
        /// Why.
        reason: String,
    },
}
