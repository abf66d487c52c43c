//! How each coding agent is launched and how its output is read. Pure: no I/O, no clock, no randomness.
//! A new agent needs changes only here.

mod agent_event;
mod claim;
pub mod claude;
mod command;
mod demo;
pub mod line;
pub mod opencode;
pub mod report;
mod tested_version;

pub use agent_event::{
    AgentEvent, Allowance, AllowanceStatus, FailureClass, PlanChange, PlanItem, Reading, Retry,
    SessionInfo, TurnOutcome, TurnResult, UNKNOWN_WINDOW_TOKENS, Window,
};
pub use claim::{Claim, Doubt, claim};
pub use claude::{ClaudeAgent, Lifetime, Permission};
pub use command::{CommandAgent, PromptVia};
pub use demo::{DemoAgent, DemoLine};
pub use opencode::OpenCodeAgent;

use std::ffi::OsString;

use tachikoma_core::policy::AgentTraits;
use tachikoma_core::{Problem, Timestamp};
pub use tested_version::TestedAgent;

/// An agent, configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    /// A program that the user configured.
    Command(CommandAgent),
    /// The scripted agent of `tachikoma demo`.
    Demo(DemoAgent),
    /// Claude Code.
    Claude(Box<ClaudeAgent>),
    /// OpenCode.
    OpenCode(Box<OpenCodeAgent>),
}

/// One turn that an agent is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn<'a> {
    /// The whole prompt with the hand-off; empty for a conversation that waits for its first prompt.
    pub prompt: &'a str,
    /// The agent's id of the conversation to resume; `None` starts a new conversation.
    pub resume: Option<&'a str>,
    /// The iteration that the turn begins; `None` if it begins none.
    pub iteration: Option<u32>,
    /// The budget of the process in dollars, for an agent that can enforce it itself.
    pub budget_usd: Option<f64>,
}

/// Maximum size of a conversation id in bytes. Ids of Claude Code and OpenCode have less than 40.
const CONVERSATION_ID_BYTES_MAX: usize = 128;

/// Returns whether the id of a conversation can be an argument of the agent: letters, digits, `-`, `_`, `.` and `:`, not
/// empty, and not an option.
#[must_use]
pub fn is_conversation_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    id.len() <= CONVERSATION_ID_BYTES_MAX
        && id.bytes().all(allowed)
        && id.bytes().next().is_some_and(|first| first != b'-')
}

impl<'a> Turn<'a> {
    /// Returns the conversation to resume, if its id can be an argument. A manipulated journal may contain any id.
    fn conversation(&self) -> Option<&'a str> {
        self.resume.filter(|id| is_conversation_id(id))
    }

    /// Returns the prompt as a message to the agent.
    fn message(&self) -> Message<'a> {
        Message::Prompt {
            text: self.prompt,
            iteration: self.iteration,
        }
    }
}

/// Returns the offset of a named time zone from UTC in seconds, positive in the east. Without a name, the zone of the machine is used.
pub type ZoneOffset = fn(Option<&str>) -> Option<i32>;

/// How to start an agent for a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The program, looked up in `PATH` unless it contains a slash.
    pub program: OsString,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Environment variables in addition to those of the runner.
    pub env: Vec<(OsString, OsString)>,
    /// Environment variables of the runner that the program does not inherit.
    pub env_remove: Vec<OsString>,
    /// Standard input of the program.
    pub input: Input,
}

/// The standard input of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The agent reads this text, then end of file.
    Whole(String),
    /// The agent reads these lines first, and more during the conversation.
    Lines(Vec<String>),
}

impl Agent {
    /// Returns the name of the agent in the configuration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Command(_) => "command",
            Self::Demo(_) => "demo",
            Self::Claude(_) => "claude",
            Self::OpenCode(_) => "opencode",
        }
    }

    /// Returns the capabilities that the policies need to know.
    #[must_use]
    pub fn traits(&self) -> AgentTraits {
        match self {
            Self::Command(_) => AgentTraits::default(),
            Self::Demo(_) => AgentTraits {
                event_stream: true,
                ..AgentTraits::default()
            },
            Self::Claude(agent) => agent.traits(),
            Self::OpenCode(agent) => agent.traits(),
        }
    }

    /// Plans the launch for a turn.
    #[must_use]
    pub fn plan(&self, turn: &Turn<'_>) -> LaunchPlan {
        match self {
            Self::Command(agent) => agent.plan(turn),
            Self::Demo(agent) => agent.plan(turn),
            Self::Claude(agent) => agent.plan(turn),
            Self::OpenCode(agent) => agent.plan(turn),
        }
    }

    /// Returns the line to write to an agent that reads lines; `None` for other agents.
    #[must_use]
    pub fn line(&self, message: &Message<'_>) -> Option<String> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(_) => Some(claude::line(message)),
            Self::OpenCode(agent) => agent.line(message),
        }
    }

    /// Returns what the loop must do about a failed turn; `None` if a retry is enough.
    #[must_use]
    pub fn problem(
        &self,
        result: &TurnResult,
        now: Timestamp,
        seconds_east: ZoneOffset,
    ) -> Option<Problem> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(_) => claude::of_result(result, now, seconds_east),
            Self::OpenCode(_) => opencode::of_result(result),
        }
    }

    /// Returns what the last output of a process that ended without a result means for the loop.
    #[must_use]
    pub fn problem_of_output(&self, output: &str) -> Option<Problem> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(_) => claude::of_output(output),
            Self::OpenCode(_) => opencode::of_output(output),
        }
    }

    /// Returns whether a version of the agent was tested.
    #[must_use]
    pub fn is_tested(&self, version: &str) -> bool {
        self.tested().is_none_or(|agent| agent.is_tested(version))
    }

    /// Returns what a person can do about a failure that does not go away by itself.
    #[must_use]
    pub fn hint(&self, failure: FailureClass) -> Option<&'static str> {
        self.tested().and_then(|agent| agent.hint(failure))
    }

    /// Returns the tested versions of the agent; `None` for agents without versions.
    fn tested(&self) -> Option<TestedAgent> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(_) => Some(tested_version::CLAUDE),
            Self::OpenCode(_) => Some(tested_version::OPENCODE),
        }
    }

    /// Returns the size of the context window, if the configuration determines it.
    #[must_use]
    pub fn window_tokens(&self) -> Option<u64> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(agent) => agent
                .window_tokens
                .or_else(|| claude::window_of(agent.model.as_deref()?)),
            // The OpenCode server reports the window if it is not configured.
            Self::OpenCode(agent) => agent.window_tokens,
        }
    }

    /// Returns the maximum size of one line of output in bytes. Lines of a plain program are only shown. An
    /// event is one line, and some events have several megabytes.
    #[must_use]
    pub fn line_max_bytes(&self) -> usize {
        match self {
            Self::Command(_) => 16 << 10,
            Self::Demo(_) => 4 << 20,
            Self::Claude(_) => claude::LINE_BYTES_MAX,
            Self::OpenCode(_) => opencode::LINE_BYTES_MAX,
        }
    }

    /// Returns a reader of the agent's standard output, for one launch.
    #[must_use]
    pub fn decoder(&self) -> Decoder {
        match self {
            Self::Command(_) => Decoder::Plain,
            Self::Demo(_) => Decoder::Demo,
            Self::Claude(agent) => {
                Decoder::Claude(Box::new(claude::Decoder::assuming(agent.window_tokens)))
            }
            Self::OpenCode(agent) => {
                Decoder::OpenCode(Box::new(opencode::Decoder::assuming(agent.window_tokens)))
            }
        }
    }
}

/// A message to a running agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A prompt: the next turn.
    Prompt {
        /// Text of the whole prompt.
        text: &'a str,
        /// The iteration that the prompt begins. After a crash it identifies the prompt. `None` if the prompt begins no iteration.
        iteration: Option<u32>,
    },
    /// A message during a turn.
    Aside(&'a str),
    /// Interrupts the turn of the agent.
    Interrupt,
    /// Asks whether the agent responds: the answer is [`ARE_YOU_THERE`].
    AreYouThere,
    /// Asks for the cost of the conversation so far: the answer is [`AgentEvent::Cost`].
    WhatCost,
}

/// The id of the request that asks whether an agent responds.
pub const ARE_YOU_THERE: &str = "are-you-there";

/// The id of the request that asks for the cost of the conversation.
pub(crate) const WHAT_COST: &str = "what-cost";

/// Reads the standard output of one launch, line by line.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoder {
    /// Every line is text for the user.
    Plain,
    /// Lines of the scripted agent.
    Demo,
    /// Output of Claude Code.
    Claude(Box<claude::Decoder>),
    /// Lines of OpenCode, or of the bridge to its server.
    OpenCode(Box<opencode::Decoder>),
}

impl Decoder {
    /// Reads one line of bytes, which may not be UTF-8. A line that is not understood becomes text for the user, or
    /// [`AgentEvent::NotUnderstood`].
    #[must_use]
    pub fn decode(&mut self, line: &[u8]) -> Vec<AgentEvent> {
        let mut seen = Vec::new();
        match self {
            Self::Plain => seen.push(AgentEvent::Said(String::from_utf8_lossy(line).into_owned())),
            Self::Demo => seen.push(demo::decode(&String::from_utf8_lossy(line))),
            Self::Claude(decoder) => decoder.decode(line, &mut seen),
            Self::OpenCode(decoder) => decoder.decode(line, &mut seen),
        }
        seen
    }

    /// Returns what the decoder has learned so far.
    #[must_use]
    pub fn standing(&self) -> report::Standing {
        match self {
            Self::Plain | Self::Demo => report::Standing::default(),
            Self::Claude(decoder) => decoder.standing(),
            Self::OpenCode(decoder) => decoder.standing(),
        }
    }
}
