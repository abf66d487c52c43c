//! Questions to the operator with a deadline and a default, messages to the agent, and attended mode.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Change, Launch, Limits, Timestamp, Wait};

/// Maximum number of messages to the agent that may wait. More text belongs into the prompt.
pub const MESSAGES_MAX: usize = 20;

/// Number of iterations for which a "no" postpones a reboot. A context that is full ends that earlier.
pub const PUT_OFF_ITERATIONS: u32 = 5;

/// Timeout of a rollback of the work tree. The worker that does it has shorter timeouts for each part, so a worker that has not
/// answered by then hangs.
pub(crate) const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1500);

/// The subject of a question to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// The loop asks whether the next iteration may begin.
    BeforeIteration,
    /// The loop asks what to do after an iteration.
    AfterIteration,
    /// The loop asks whether a new session may replace the current one.
    ConfirmReboot,
}

/// An answer to a question. Each question offers some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Continue the loop.
    Continue,
    /// Continue at once, without the wait that is due.
    Skip,
    /// Continue with a new session.
    Reboot,
    /// Roll the work tree back to before the iteration, and ask again.
    Rollback,
    /// Continue, and use another prompt for the next iteration.
    Edit,
    /// Reboot the session.
    Yes,
    /// Do not reboot for the next [`PUT_OFF_ITERATIONS`] iterations.
    No,
    /// Pause the loop.
    Pause,
    /// Stop the loop.
    Stop,
}

impl Choice {
    /// All answers, in the order in which they are offered.
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

    /// Returns the word that the operator types.
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
    /// Number of the question in its loop, from 1.
    pub id: u32,
    /// What the question is about.
    pub kind: QuestionKind,
    /// The next iteration, or the one that is over.
    pub iteration: u32,
    /// When the question was asked.
    pub asked_at: Timestamp,
    /// When the default answer applies; `None` = never.
    pub until: Option<Timestamp>,
    /// The answer that applies at the deadline.
    pub default: Choice,
    /// Answers that are accepted.
    pub choices: Vec<Choice>,
    /// Text of the question.
    pub about: String,
    /// The wait that is due after the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
}

impl Question {
    /// Returns the accepted answers, separated by commas.
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
    /// The operator answered.
    Operator,
    /// The deadline passed, and the default answer applies.
    Default,
}

/// A prompt that replaces the configured one for one iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedPrompt {
    /// Hash of the prompt, which is also the name of its file.
    pub hash: String,
    /// Size of the prompt in bytes.
    pub bytes: u64,
}

/// An event between a loop and its operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum OperatorEvent {
    /// A question is open, and the loop waits for the answer.
    Asked(Question),
    /// A question was answered.
    Answered {
        /// Number of the question.
        id: u32,
        /// The answer.
        choice: Choice,
        /// Whether the operator answered, or the default applied.
        by: AnsweredBy,
        /// The prompt of the next iteration, for the answer `edit`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<EditedPrompt>,
    },
    /// The operator began to write the answer, or stopped writing: the deadline changes.
    Held {
        /// Number of the question.
        id: u32,
        /// The deadline; `None` while the operator writes.
        until: Option<Timestamp>,
    },
    /// A rollback of the work tree ended.
    RolledBack {
        /// The work tree is restored to its content before this iteration.
        iteration: u32,
        /// Why the rollback failed; `None` if it succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Attended mode was turned on or off.
    Attended {
        /// Whether attended mode is on now.
        on: bool,
    },
    /// The operator has a message for the agent.
    #[serde(rename = "told")]
    MessageQueued {
        /// Number of the message, from 1.
        number: u32,
        /// Text of the message.
        text: String,
    },
    /// The agent got messages during its turn.
    #[serde(rename = "passed_on")]
    MessagesDelivered {
        /// Number of the last delivered message.
        through: u32,
    },
    /// The configuration was reloaded. The changes apply from now on.
    Reloaded {
        /// The settings that apply from now on.
        launch: Box<Launch>,
        /// The settings that changed.
        changes: Vec<Change>,
        /// Changed keys that only apply to the next run.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        later: Vec<String>,
        /// The stop conditions that apply from now on.
        #[serde(default)]
        limits: Limits,
    },
}

/// A request of the operator that is not a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorRequest {
    /// Answer a question.
    Answer {
        /// Number of the question; `None` = the open one.
        id: Option<u32>,
        /// The answer.
        choice: Choice,
        /// The prompt of the next iteration, for the answer `edit`.
        prompt: Option<EditedPrompt>,
    },
    /// The operator starts or stops writing the answer. The question stays open meanwhile.
    Hold {
        /// Number of the question.
        id: u32,
        /// Whether the operator is writing the answer now.
        writing: bool,
    },
    /// Turn attended mode on or off.
    Attend {
        /// Whether to turn attended mode on.
        on: bool,
    },
    /// Send a message to the agent.
    Tell {
        /// Text of the message.
        text: String,
    },
    /// Apply reloaded settings.
    Reload {
        /// The new settings.
        launch: Box<Launch>,
        /// Changed keys that only apply to the next run.
        later: Vec<String>,
        /// The new stop conditions.
        limits: Limits,
    },
    /// Stop the loop after the hooks that run now, because one of them asks for it.
    StopAfterHooks,
}

/// A message to the agent that it has not confirmed by a successful iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorMessage {
    /// Number of the message, from 1.
    pub number: u32,
    /// Text of the message.
    pub text: String,
    /// Whether the prompt of the current attempt contains the message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_prompt: bool,
    /// Whether the agent got the message during the current attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "passed_on")]
    pub delivered: bool,
}

/// Questions, answers and messages of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// The number of the latest question; 0 before the first.
    pub asked: u32,
    /// The open question; `None` without one.
    #[serde(default)]
    pub question: Option<Question>,
    /// The rollback in progress; `None` without one.
    #[serde(default)]
    pub rolling_back: Option<RollingBack>,
    /// Number of the question that was not answered in time, while the loop is paused because of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u32>,
    /// The iteration that was rolled back last; `None` before the first rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<u32>,
    /// Whether the operator agreed to the next iteration.
    pub agreed: bool,
    /// Whether a question was asked since the last iteration. If so, resuming from a pause counts as consent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub put: bool,
    /// Whether an iteration has ended and the next one has not begun. A question is then about the iteration that ended.
    #[serde(rename = "behind")]
    pub iteration_ended: bool,
    /// Attended mode as set by a command; `None` = as configured.
    #[serde(default)]
    pub attended: Option<bool>,
    /// The last iteration for which the operator postponed the reboot; `None` if it is not postponed.
    #[serde(default)]
    pub put_off: Option<u32>,
    /// The edited prompt of the current or next iteration; `None` without one.
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
    /// The wait that is due after the rollback.
    pub then: Option<Wait>,
}
