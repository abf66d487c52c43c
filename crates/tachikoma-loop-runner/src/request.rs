//! What a caller may ask of a loop. The control socket, the handle and the actor use the same requests.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tachikoma_core::{Choice, LoopCommand, Seq};

/// A request of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
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
    /// Keep a question open while the operator writes the answer. Only from inside of the process.
    #[serde(skip)]
    Hold {
        /// The id of the question.
        id: u32,
        /// Whether the operator is still writing.
        writing: bool,
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

impl ControlRequest {
    /// Returns whether an agent may make the request to its own loop.
    pub(crate) fn is_open_to_agent(&self) -> bool {
        matches!(self, Self::Status | Self::Note { .. } | Self::Done { .. })
    }

    /// Returns the words of the command line for the request.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Command { command } => match command {
                LoopCommand::Pause(_) => "pause",
                LoopCommand::Resume => "resume",
                LoopCommand::Stop(_) => "stop",
                LoopCommand::ForceReboot => "reboot",
                LoopCommand::SkipIteration => "skip",
            },
            Self::Note { .. } => "note",
            Self::Done { .. } => "done",
            Self::Set { .. } => "state set",
            Self::Answer { .. } | Self::Hold { .. } => "answer",
            Self::Attend { .. } => "attend",
            Self::Tell { .. } => "tell",
            Self::Reload => "reload",
            Self::Follow { .. } => "events --follow",
        }
    }
}
