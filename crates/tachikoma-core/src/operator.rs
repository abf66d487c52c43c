//! Between a loop and its operator: questions with a deadline and a default, messages to the agent, and attended
//! mode.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Change, Launch, Limits, Timestamp, Wait};

/// Maximum number of messages to the agent that may wait. More text belongs into the prompt.
pub const MESSAGES_MAX: usize = 20;

/// Number of iterations for which a "no" postpones a reboot. A context that is full ends that earlier.
pub const PUT_OFF_ITERATIONS: u32 = 5;

/// How long a rollback of the work tree may take. The worker that does it has shorter timeouts for each part, so one that has not
/// answered by then hangs.
pub(crate) const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1500);

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// Whether the next iteration may begin.
    BeforeIteration,
    /// What follows the iteration that is over.
    AfterIteration,
    /// Whether the session is replaced.
    ConfirmReboot,
}

/// What can be answered. What is offered depends on the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Go on.
    Continue,
    /// Go on at once, without the wait that is due.
    Skip,
    /// Go on with a fresh session.
    Reboot,
    /// Roll the work tree back to before the iteration, and ask again.
    Rollback,
    /// Go on with another prompt, for one iteration.
    Edit,
    /// Do what was asked about.
    Yes,
    /// Do not, for a while.
    No,
    /// Pause.
    Pause,
    /// End the loop.
    Stop,
}

impl Choice {
    /// All of them, in the order in which they are offered.
    pub const ALL: [Self; 9] = [
        Self::Continue,
        Self::Yes,
        Self::No,
        Self::Skip,
        Self::Reboot,
        Self::Rollback,
        Self::Edit,
        Self::Pause,
        Self::Stop,
    ];

    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Skip => "skip",
            Self::Reboot => "reboot",
            Self::Rollback => "rollback",
            Self::Edit => "edit",
            Self::Yes => "yes",
            Self::No => "no",
            Self::Pause => "pause",
            Self::Stop => "stop",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A question to the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Its number, from 1 over the whole life of the loop.
    pub id: u32,
    /// What it is about.
    pub kind: QuestionKind,
    /// The iteration that comes next, or that is over.
    pub iteration: u32,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// When the default holds; none = never.
    pub until: Option<Timestamp>,
    /// The answer that applies at the deadline.
    pub default: Choice,
    /// What can be answered.
    pub choices: Vec<Choice>,
    /// In words.
    pub about: String,
    /// The wait that follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
}

impl Question {
    /// Returns what can be answered, in words.
    #[must_use]
    pub fn offers(&self) -> String {
        let words = self.choices.iter().map(|choice| choice.word());
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnsweredBy {
    /// The operator.
    Operator,
    /// The default, at the deadline.
    Default,
}

/// A prompt that holds for one iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedPrompt {
    /// The hash of its words, which is the name of the file that has them.
    pub hash: String,
    /// How long it is.
    pub bytes: u64,
}

/// What happened between a loop and its operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum OperatorEvent {
    /// A question is open, and the loop waits for the answer.
    Asked(Question),
    /// It is answered.
    Answered {
        /// Which one.
        id: u32,
        /// What.
        choice: Choice,
        /// By whom.
        by: AnsweredBy,
        /// The prompt that came with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<EditedPrompt>,
    },
    /// The operator began to write the answer, or stopped writing: the deadline changes.
    Held {
        /// Which one.
        id: u32,
        /// The deadline; `None` while the operator writes.
        until: Option<Timestamp>,
    },
    /// A rollback of the work tree ended.
    RolledBack {
        /// The work tree is restored to its content before this iteration.
        iteration: u32,
        /// Why it failed; `None` if it succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Attended mode was turned on or off.
    Attended {
        /// Whether.
        on: bool,
    },
    /// The operator has a message for the agent.
    #[serde(rename = "told")]
    MessageQueued {
        /// Their number, from 1.
        number: u32,
        /// They.
        text: String,
    },
    /// The agent got messages during its turn.
    #[serde(rename = "passed_on")]
    MessagesDelivered {
        /// Number of the last of them.
        through: u32,
    },
    /// The configuration was read again; what changed holds from here on.
    Reloaded {
        /// What holds now.
        launch: Box<Launch>,
        /// What changed.
        changes: Vec<Change>,
        /// Keys that changed and hold with the next run only.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        later: Vec<String>,
        /// The stop conditions that hold now.
        #[serde(default)]
        limits: Limits,
    },
}

/// What the operator wants of a live loop, besides commands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorRequest {
    /// To answer a question.
    Answer {
        /// Which one; none = the one that is open.
        id: Option<u32>,
        /// What.
        choice: Choice,
        /// The prompt that goes with it.
        prompt: Option<EditedPrompt>,
    },
    /// To write the answer to a question: it stays open meanwhile.
    Hold {
        /// Which one.
        id: u32,
        /// Whether it is being written, or no longer.
        writing: bool,
    },
    /// Turn attended mode on or off.
    Attend {
        /// Whether.
        on: bool,
    },
    /// To tell the agent something.
    Tell {
        /// What.
        text: String,
    },
    /// To have other settings hold.
    Reload {
        /// What is to hold.
        launch: Box<Launch>,
        /// Keys that changed and hold with the next run only.
        later: Vec<String>,
        /// The stop conditions that are to hold.
        limits: Limits,
    },
    /// To stop, for a hook that runs: it is heard out first.
    StopAfterHooks,
}

/// A message to the agent that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorMessage {
    /// Their number.
    pub number: u32,
    /// They.
    pub text: String,
    /// Whether the prompt of the attempt under way contains it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_prompt: bool,
    /// Whether the agent got it during the attempt under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "passed_on")]
    pub delivered: bool,
}

/// What is known of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// The number of the latest question; 0 before the first.
    pub asked: u32,
    /// The question that is open.
    #[serde(default)]
    pub question: Option<Question>,
    /// The rollback in progress.
    #[serde(default)]
    pub rolling_back: Option<RollingBack>,
    /// The question that was not answered in time, while the loop is paused because of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u32>,
    /// The iteration that was rolled back last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<u32>,
    /// Whether the next iteration may begin.
    pub agreed: bool,
    /// Whether a question was asked since the last iteration. If so, resuming from a pause is a yes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub put: bool,
    /// Whether an iteration is over that no question was about.
    pub behind: bool,
    /// Attended mode as set by a command; `None` = as configured.
    #[serde(default)]
    pub attended: Option<bool>,
    /// The iteration up to which a reboot is put off.
    #[serde(default)]
    pub put_off: Option<u32>,
    /// The prompt of the next iteration, or of the one under way.
    #[serde(default)]
    pub prompt: Option<EditedPrompt>,
    /// Number of the latest message to the agent.
    #[serde(default)]
    #[serde(rename = "told")]
    pub last_message: u32,
    /// Messages that no successful iteration had in its prompt yet.
    #[serde(default)]
    #[serde(rename = "words")]
    pub messages: Vec<OperatorMessage>,
}

/// A rollback of the work tree in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollingBack {
    /// The work tree is restored to its content before this iteration.
    pub iteration: u32,
    /// The wait that follows.
    pub then: Option<Wait>,
}
