//! Between a loop and its operator: questions with a deadline and a default, what is to be told to the agent, and whether
//! somebody is there to be asked.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::launch::{Change, Launch};
use crate::limits::Limits;
use crate::time::Timestamp;
use crate::wait::Wait;

/// Words to the agent that may wait at a time: more of them are a prompt, and belong there.
pub const MESSAGES_MAX: usize = 20;

/// So many iterations a reboot is put off by a no; only a context that takes no prompt any more is sooner.
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
    /// Bring the work tree back to what it was before the iteration, and ask again.
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
    /// What holds when nobody answers.
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
    /// Nobody, in time.
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
    /// Somebody has begun to write the answer, or has left off: the question has another limit.
    Held {
        /// Which one.
        id: u32,
        /// When the default holds; none while somebody writes.
        until: Option<Timestamp>,
    },
    /// The work tree was to be brought back.
    RolledBack {
        /// To what it was before this iteration.
        iteration: u32,
        /// Why it could not be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Somebody is there to be asked, or is no longer.
    Attended {
        /// Whether.
        on: bool,
    },
    /// Words to the agent.
    Told {
        /// Their number, from 1.
        number: u32,
        /// They.
        text: String,
    },
    /// The agent is told them, in the middle of its turn.
    PassedOn {
        /// Up to which number.
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

/// Words to the agent that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    /// Their number.
    pub number: u32,
    /// They.
    pub text: String,
    /// Whether the prompt of the attempt under way has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_prompt: bool,
    /// Whether the agent was told in the middle of the attempt under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passed_on: bool,
}

/// What is known of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// The number of the latest question; 0 before the first.
    pub asked: u32,
    /// The question that is open.
    #[serde(default)]
    pub question: Option<Question>,
    /// The wait that follows a work tree that is being brought back, and the iteration before which it was so.
    #[serde(default)]
    pub rolling_back: Option<RollingBack>,
    /// The question that nobody has answered in time, for as long as the loop is paused because of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u32>,
    /// The iteration that was brought back last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<u32>,
    /// Whether the next iteration may begin.
    pub agreed: bool,
    /// Whether it was asked since the last one: whoever goes on behind a pause then agrees.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub put: bool,
    /// Whether an iteration is over that was not asked about.
    pub behind: bool,
    /// Whether somebody is there to be asked, where that was said since the loop was taken up.
    #[serde(default)]
    pub attended: Option<bool>,
    /// The iteration up to which a reboot is put off.
    #[serde(default)]
    pub put_off: Option<u32>,
    /// The prompt of the next iteration, or of the one under way.
    #[serde(default)]
    pub prompt: Option<EditedPrompt>,
    /// The number of the latest words to the agent.
    #[serde(default)]
    pub told: u32,
    /// Those that it has not been told for good.
    #[serde(default)]
    pub words: Vec<Words>,
}

/// A work tree that is being brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollingBack {
    /// To what it was before this iteration.
    pub iteration: u32,
    /// The wait that follows.
    pub then: Option<Wait>,
}
