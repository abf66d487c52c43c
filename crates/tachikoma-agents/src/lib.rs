//! What Tachikoma knows about each coding agent: how a turn becomes a launch plan, and how its output becomes
//! observations. No I/O happens here; adding an agent touches only this crate.

mod claim;
pub mod claude;
mod command;
mod demo;
pub mod line;
mod observation;
pub mod opencode;
pub mod report;

pub use claim::{Claim, Doubt, claim};
pub use claude::{ClaudeAgent, Lifetime, Permission};
pub use command::{CommandAgent, PromptVia};
pub use demo::{DemoAgent, DemoLine};
pub use observation::{
    Allowance, AllowanceStatus, FailureClass, Observation, PlanChange, PlanItem, Reading, Retry,
    SessionInfo, TurnOutcome, TurnResult, UNKNOWN_WINDOW_TOKENS, Window,
};
pub use opencode::OpenCodeAgent;

use std::ffi::OsString;

use tachikoma_core::policy::AgentTraits;
use tachikoma_core::{Problem, Timestamp};

/// An agent, configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    /// Any program.
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
    /// The whole prompt, hand-off included; empty where a conversation is opened that waits for its first one.
    pub prompt: &'a str,
    /// The conversation to go on in, by the agent's own name for it.
    pub resume: Option<&'a str>,
    /// The iteration that it begins; none where it begins none.
    pub iteration: Option<u32>,
    /// What the process may cost, in dollars, for an agent that can mind that itself.
    pub budget_usd: Option<f64>,
}

/// The longest name of a conversation that is accepted, in bytes. Those of Claude Code and OpenCode have less than 40.
const CONVERSATION_ID_BYTES_MAX: usize = 128;

/// Returns whether an agent's name for a conversation can be given back to it as an argument: letters, digits, `-`, `_`, `.` and `:`, not
/// empty, and not to be taken for an option.
#[must_use]
pub fn is_conversation_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    id.len() <= CONVERSATION_ID_BYTES_MAX
        && id.bytes().all(allowed)
        && id.bytes().next().is_some_and(|first| first != b'-')
}

impl<'a> Turn<'a> {
    /// Returns the conversation to go on in, if its name may become an argument: a journal that was changed may name anything.
    fn conversation(&self) -> Option<&'a str> {
        self.resume.filter(|id| is_conversation_id(id))
    }

    /// Returns its prompt, as it is said to an agent that reads lines.
    fn message(&self) -> Message<'a> {
        Message::Prompt {
            text: self.prompt,
            iteration: self.iteration,
        }
    }
}

/// Answers how far a time zone is east of UTC, in seconds; asked for none, the zone of this machine.
pub type ZoneOffset = fn(Option<&str>) -> Option<i32>;

/// How to start an agent on a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The program, looked up in `PATH` unless it contains a slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables on top of the runner's own.
    pub env: Vec<(OsString, OsString)>,
    /// Variables that it must not inherit.
    pub env_remove: Vec<OsString>,
    /// What it gets to read.
    pub input: Input,
}

/// What an agent gets to read on its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// This, and then the end.
    Whole(String),
    /// These lines first, and more as the conversation goes on.
    Lines(Vec<String>),
}

impl Agent {
    /// Returns the name by which the agent is configured.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Command(_) => "command",
            Self::Demo(_) => "demo",
            Self::Claude(_) => "claude",
            Self::OpenCode(_) => "opencode",
        }
    }

    /// Returns what the agent can do, as far as the rules care.
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

    /// Returns what to write to an agent that reads lines. Others have nothing to be told.
    #[must_use]
    pub fn line(&self, message: &Message<'_>) -> Option<String> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(_) => Some(claude::line(message)),
            Self::OpenCode(agent) => agent.line(message),
        }
    }

    /// Returns what a failed turn means for the loop, if it is more than a failure that may go well the next time.
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

    /// Returns what the last words of a process that ended without a result mean for the loop.
    #[must_use]
    pub fn problem_of_words(&self, words: &str) -> Option<Problem> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(_) => claude::of_words(words),
            Self::OpenCode(_) => opencode::of_words(words),
        }
    }

    /// Returns whether a version of the agent is one that was tried.
    #[must_use]
    pub fn is_tried(&self, version: &str) -> bool {
        match self {
            Self::Command(_) | Self::Demo(_) => true,
            Self::Claude(_) => claude::is_tried(version),
            Self::OpenCode(_) => opencode::is_tried(version),
        }
    }

    /// Returns what a person can do about a failure that will come again until they do.
    #[must_use]
    pub fn hint(&self, failure: FailureClass) -> Option<&'static str> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(_) => claude::hint(failure),
            Self::OpenCode(_) => opencode::hint(failure),
        }
    }

    /// Returns how much fits into its context, as far as its configuration tells.
    #[must_use]
    pub fn window_tokens(&self) -> Option<u64> {
        match self {
            Self::Command(_) | Self::Demo(_) => None,
            Self::Claude(agent) => agent
                .window_tokens
                .or_else(|| claude::window_of(agent.model.as_deref()?)),
            // The server says.
            Self::OpenCode(agent) => agent.window_tokens,
        }
    }

    /// Returns how many bytes of one line of output are looked at. A plain program's lines are only shown; an
    /// event is one line, and events of several megabytes are real.
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
            Self::Claude(agent) => Decoder::Claude(Box::new(agent.decoder())),
            Self::OpenCode(agent) => Decoder::OpenCode(Box::new(agent.decoder())),
        }
    }
}

/// What can be said to an agent while its process is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A prompt: the next turn.
    Prompt {
        /// The whole prompt.
        text: &'a str,
        /// The iteration that it begins, by which it is known again; none where it begins none.
        iteration: Option<u32>,
    },
    /// A word to the side, in the middle of a turn.
    Aside(&'a str),
    /// The turn is to end.
    Interrupt,
    /// Whether it is there: answered under [`ARE_YOU_THERE`].
    AreYouThere,
    /// What the conversation has cost so far: answered by [`Observation::Cost`].
    WhatCost,
}

/// The id of the request that asks whether an agent is there.
pub const ARE_YOU_THERE: &str = "are-you-there";

/// The id of the request that asks what the conversation has cost.
pub(crate) const WHAT_COST: &str = "what-cost";

/// Reads the standard output of one launch, line by line.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoder {
    /// Every line is something said.
    Plain,
    /// Lines of the scripted agent.
    Demo,
    /// Lines of Claude Code.
    Claude(Box<claude::Decoder>),
    /// Lines of OpenCode, or of the bridge to its server.
    OpenCode(Box<opencode::Decoder>),
}

impl Decoder {
    /// Reads one line. One that makes no sense is something said, or kept as not understood.
    #[must_use]
    pub fn observe(&mut self, line: &str) -> Vec<Observation> {
        match self {
            Self::Plain => vec![Observation::Said(line.to_owned())],
            Self::Demo => vec![demo::observe(line)],
            Self::Claude(_) | Self::OpenCode(_) => self.observe_bytes(line.as_bytes()),
        }
    }

    /// Reads one line whose bytes may be no text.
    #[must_use]
    pub fn observe_bytes(&mut self, line: &[u8]) -> Vec<Observation> {
        let mut seen = Vec::new();
        match self {
            Self::Plain | Self::Demo => return self.observe(&String::from_utf8_lossy(line)),
            Self::Claude(decoder) => decoder.observe(line, &mut seen),
            Self::OpenCode(decoder) => decoder.observe(line, &mut seen),
        }
        seen
    }

    /// Returns what is known by now.
    #[must_use]
    pub fn standing(&self) -> report::Standing {
        match self {
            Self::Plain | Self::Demo => report::Standing::default(),
            Self::Claude(decoder) => decoder.standing(),
            Self::OpenCode(decoder) => decoder.standing(),
        }
    }
}

/// Returns whether a version is of the line of `newest`, and not newer than it.
fn is_up_to(newest: (u32, u32, u32), text: &str) -> bool {
    version(text).is_some_and(|(major, minor, patch)| {
        (major, minor) == (newest.0, newest.1) && patch <= newest.2
    })
}

/// Returns the numbers of a version; none where it is no version.
fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text.trim().splitn(3, '.').map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    Some((next()?, next()?, next()?))
}
