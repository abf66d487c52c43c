//! Which agent the loop runs, and how each agent is launched: `[agent]` and `[agents.NAME]`.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalars::Secret;

/// An agent that can be named in the configuration.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum AgentName {
    /// Claude Code.
    #[default]
    Claude,
    /// OpenCode.
    #[serde(rename = "opencode")]
    OpenCode,
    /// Codex.
    Codex,
    /// Gemini.
    Gemini,
    /// Any agent that speaks the Agent Client Protocol.
    Acp,
    /// Any program that reads the prompt and prints text.
    Command,
    /// The scripted agent that comes with Tachikoma.
    Demo,
}

impl AgentName {
    /// Returns the name as it is written in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::OpenCode => "opencode",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Acp => "acp",
            Self::Command => "command",
            Self::Demo => "demo",
        }
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which agent the loop runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentChoice {
    /// Name of the agent that the loop runs.
    pub name: AgentName,
    /// Agents to use, in this order, when a usage limit is reached.
    pub fallback: Vec<AgentName>,
}

/// How each agent is launched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Agents {
    /// Claude Code; its program is `session.claude_command`.
    pub claude: AgentSettings,
    /// OpenCode.
    pub opencode: AgentSettings,
    /// Codex.
    pub codex: AgentSettings,
    /// Gemini.
    pub gemini: AgentSettings,
    /// An agent that speaks the Agent Client Protocol.
    pub acp: AgentSettings,
    /// Any program that reads the prompt and prints text.
    pub command: CommandSettings,
    /// The scripted agent that comes with Tachikoma.
    pub demo: AgentSettings,
}

/// How a known agent is launched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSettings {
    /// Additional arguments.
    pub args: Vec<String>,
    /// Additional environment variables. Values are shown as `***`.
    pub env: BTreeMap<String, Secret>,
    /// Model, as the agent names it. Absent = the agent's default.
    pub model: Option<String>,
    /// What the agent may do without asking.
    pub permission: Permission,
    /// Commands that are allowed with `permission = "safe"`, with any further arguments, such as `["cargo test"]`. Only for `claude` and `opencode`.
    pub allow: Vec<String>,
}

/// How a program that is not a known agent is launched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CommandSettings {
    /// The program and its arguments, such as `["sh", "agent.sh"]`.
    pub program: Vec<String>,
    /// How the program gets the prompt.
    pub prompt: PromptChannel,
    /// Additional environment variables. Values are shown as `***`.
    pub env: BTreeMap<String, Secret>,
}

/// What an agent may do without asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Permission {
    /// Edits in the work tree; the rest is denied and shown.
    #[default]
    Safe,
    /// Everything.
    Bypass,
}

/// How a program gets the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PromptChannel {
    /// On stdin.
    #[default]
    Stdin,
    /// As its last argument.
    Argument,
}
