//! Requests that a caller can send to a loop. The control socket, the handle and the actor use the same type.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tachikoma_core::{Choice, LoopCommand, Seq};

/// A request of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Return the status of the loop.
    Status,
    /// Send a command to the loop.
    Command {
        /// The command.
        command: LoopCommand,
    },
    /// Add a note for later sessions.
    Note {
        /// The text of the note.
        text: String,
    },
    /// Claim, for the current iteration, that the whole work is complete.
    Done {
        /// Why the work is complete, in the agent's words; `None` if it gave no reason.
        #[serde(default)]
        reason: Option<String>,
    },
    /// Store a custom value of the loop.
    Set {
        /// Key of the value.
        key: String,
        /// The value to store; null removes the key.
        value: serde_json::Value,
    },
    /// Answer a question of the loop.
    Answer {
        /// The id of the question; `None` = the open one.
        #[serde(default)]
        id: Option<u32>,
        /// The choice of the operator.
        choice: Choice,
        /// Absolute path of the file with the prompt for the choice `edit`; `None` for other choices.
        #[serde(default)]
        prompt_file: Option<PathBuf>,
    },
    /// Keep a question open while the operator writes the answer. This request is only made inside the process of the loop.
    #[serde(skip)]
    Hold {
        /// The id of the question.
        id: u32,
        /// Whether the operator is still writing.
        writing: bool,
    },
    /// Turn attended mode on or off.
    Attend {
        /// Whether attended mode is turned on.
        on: bool,
    },
    /// Send a message to the agent.
    Tell {
        /// The text of the message.
        text: String,
    },
    /// Reload the configuration.
    Reload,
    /// Return all records after `after`, and each new record when it is written.
    Follow {
        /// Number of the last record that the caller already has.
        after: Seq,
    },
}

impl ControlRequest {
    /// Returns whether an agent may make the request to its own loop.
    pub(crate) fn is_open_to_agent(&self) -> bool {
        matches!(self, Self::Status | Self::Note { .. } | Self::Done { .. })
    }

    /// Returns the request as it is named on the command line.
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
