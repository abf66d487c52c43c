//! Merges configuration files, variables and flags into settings with their origins. Does no other I/O.
//!
//! [`Layers`] collects files, variables and flags, lowest first; [`Layers::load`] merges them into [`Settings`], or
//! returns every problem at once with its place and a hint.

mod address;
mod agents;
mod decode;
mod guarded;
mod guarded_lines;
mod keys;
mod layers;
mod lists;
mod live;
mod loaded;
mod notify;
mod problem;
mod protected;
mod reference;
mod rules;
mod scalars;
mod source;
mod tables;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use address::without_password;
pub use agents::{
    AgentChoice, AgentName, AgentSettings, Agents, CommandSettings, Permission, PromptChannel,
};
pub use guarded::Guarded;
pub use guarded::digest;
pub use guarded_lines::guarded_lines;
pub use keys::is_guarded;
pub use layers::{FileOf, Layers};
pub use lists::{Gate, GateMoment, Hook};
pub use live::Live;
pub use loaded::{Entry, Loaded};
pub use notify::{Notify, NotifyTarget};
pub use problem::{Origin, Problem, SettingsError};
pub use protected::{Protected, ProtectedError};
pub use reference::{reference, schema};
pub use scalars::{HumanDuration, OutOfRange, Percent, Secret, Usd};
pub use tables::{
    ContextSettings, GitSettings, OpenCodeSettings, RebootMode, RebootSettings, RebootTriggers,
    SessionSettings, StateSettings, StopConditions,
};

/// The whole configuration of a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Directory in which the agent works. Other relative paths start here. A relative `working_dir` starts at the directory of the process.
    pub working_dir: PathBuf,
    /// File with the prompt, read again before every iteration.
    pub prompt_path: PathBuf,
    /// Maximum number of iterations over all runs of the loop. 0 = no limit.
    pub max_iterations: u32,
    /// The pause between two iterations. 0 = none.
    pub iteration_delay: HumanDuration,
    /// Reboot the session at this context usage. 100 = off, also for `reboot.context_redline_tokens`. `context_threshold` is an alias.
    pub context_redline_percent: Percent,
    /// Ask the operator before the first iteration and after each iteration.
    pub attended_mode: bool,
    /// Time to wait for the operator's answer. The loop pauses when it is over. 0 = no limit.
    pub question_timeout: HumanDuration,
    /// When the loop ends by itself.
    pub stop_conditions: StopConditions,
    /// The agent's conversation: its program, its timeouts, its transcripts.
    pub session: SessionSettings,
    /// Thresholds for the context usage.
    pub context: ContextSettings,
    /// The planned replacement of a session.
    pub reboot: RebootSettings,
    /// The snapshot of the loop and its backups.
    pub state: StateSettings,
    /// Automatic commits, and the files that are never committed.
    pub git: GitSettings,
    /// Which agent the loop runs.
    pub agent: AgentChoice,
    /// How each agent is launched.
    pub agents: Agents,
    /// The shared `opencode serve`.
    pub opencode: OpenCodeSettings,
    /// Commands that must exit 0 before a claim of completion is accepted.
    pub gate: Vec<Gate>,
    /// Commands that run at certain points of the loop.
    pub hook: Vec<Hook>,
    /// Notifications: which events are sent, and how.
    pub notify: Vec<Notify>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            working_dir: ".".into(),
            prompt_path: "prompt.md".into(),
            max_iterations: 100,
            iteration_delay: HumanDuration::from_secs(5),
            context_redline_percent: Percent::whole(85),
            attended_mode: false,
            question_timeout: HumanDuration::from_secs(10 * 60),
            stop_conditions: StopConditions::default(),
            session: SessionSettings::default(),
            context: ContextSettings::default(),
            reboot: RebootSettings::default(),
            state: StateSettings::default(),
            git: GitSettings::default(),
            agent: AgentChoice::default(),
            agents: Agents::default(),
            opencode: OpenCodeSettings::default(),
            gate: Vec::new(),
            hook: Vec::new(),
            notify: Vec::new(),
        }
    }
}
