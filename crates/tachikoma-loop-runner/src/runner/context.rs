//! What the features share: the data of the loop that they may read, the queue of inputs that they may fill, and the order of a turn.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_agents::Agent;
use tachikoma_core::{AgentInput, Generation, Input, Policy, SessionNo, State, TurnEnd};

use crate::config::LoopConfig;
use crate::handle::LoopHandle;
use crate::process::{Adoption, GuardOptions};
use crate::shell::Shell;
use crate::store::layout;
use crate::store::lock::WorkLock;

/// The parts of the actor that every feature may read. No feature gets the actor itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub config: &'a LoopConfig,
    pub agent: &'a Agent,
    pub policy: &'a Policy,
    pub state: &'a State,
    pub lock: &'a WorkLock,
    pub handle: &'a LoopHandle,
    /// Whether the loop runs its own OpenCode server.
    pub own_server: bool,
}

impl Context<'_> {
    /// Returns the directory with the journal of the loop.
    pub fn loop_dir(&self) -> PathBuf {
        let root = self.config.store_root(self.state.loop_id);
        layout::loop_dir(&root, self.state.loop_id)
    }

    /// Returns the options of a guard that runs processes for the loop.
    pub fn guard_options(&self) -> GuardOptions {
        // The guard of the OpenCode server is also a child of this process, so the guard of the agent must not end all children.
        let adoption = match self.own_server {
            true => Adoption::Marked,
            false => self.config.adoption,
        };
        GuardOptions {
            lock: self.lock.share().ok(),
            cgroup: self.config.cgroup,
            adoption,
            hidden: self.secret_names(),
            ..GuardOptions::new(&self.config.guard, self.state.loop_id.to_string())
        }
    }

    /// Returns a shell for commands of the configuration.
    pub fn shell(&self) -> Shell {
        Shell::new(self.guard_options())
    }

    /// Returns the names of variables that only notifications get. They are hidden from the agent and from scripts that it may have written.
    pub fn secret_names(&self) -> Vec<OsString> {
        self.config.secrets.keys().map(Into::into).collect()
    }
}

/// Inputs that the runner itself produces, in order. The core handles them before the runner waits for other events.
#[derive(Debug, Default)]
pub(super) struct InputQueue(VecDeque<Input>);

impl InputQueue {
    pub fn push(&mut self, input: Input) {
        self.0.push_back(input);
    }

    /// Puts an input before all others.
    pub fn push_front(&mut self, input: Input) {
        self.0.push_front(input);
    }

    /// Queues a warning to be recorded.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.push(warning_input(warning));
    }

    pub fn extend(&mut self, inputs: impl IntoIterator<Item = Input>) {
        self.0.extend(inputs);
    }

    pub fn pop(&mut self) -> Option<Input> {
        self.0.pop_front()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the input that records a warning.
pub(super) fn warning_input(warning: impl Into<String>) -> Input {
    Input::Warning {
        warning: warning.into(),
    }
}

/// A turn to begin.
#[derive(Debug)]
pub(super) struct TurnOrder {
    /// The launch that runs the turn.
    pub generation: Generation,
    pub iteration: u32,
    pub attempt: u32,
    pub session: SessionNo,
    pub start: TurnStart,
}

/// How a turn is started.
#[derive(Debug)]
pub(super) enum TurnStart {
    /// Start a process for the turn, in the conversation `resume` or in a new one.
    Launch { resume: Option<String> },
    /// Start a process in the same way, but without a prompt. The next iteration uses it.
    Session { resume: Option<String> },
    /// Send the prompt to the running process.
    Prompt,
}

impl TurnOrder {
    /// Returns the input that reports to the core that the turn did not begin.
    pub fn not_begun(&self, reason: String) -> Input {
        let event = match self.start {
            TurnStart::Launch { .. } | TurnStart::Session { .. } => {
                AgentInput::NotLaunched { reason }
            }
            TurnStart::Prompt => AgentInput::TurnEnded(TurnEnd {
                reason: Some(reason),
                ..TurnEnd::default()
            }),
        };
        Input::Agent {
            generation: self.generation,
            event,
        }
    }
}
