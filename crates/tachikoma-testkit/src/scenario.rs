//! Answers of a model as data, for the scripted model and the fake agent. One turn is one message of the model.
//! `docs/testing-agents.md` describes the JSON format.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Tokens of one message, as its model counts them. Their sum is the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Usage {
    /// Input tokens that are not cached.
    pub input: u64,
    /// Input tokens that are read from the cache.
    pub cache_read: u64,
    /// Input tokens that are written to the cache.
    pub cache_creation: u64,
    /// Output tokens.
    pub output: u64,
    /// Tokens added to `cache_read` for each tool result in the conversation, so that a session fills up while it works and a new
    /// one starts low.
    #[serde(skip_serializing_if = "is_zero")]
    pub per_tool_result: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// Returns this many cached tokens, plus a few input and output tokens.
    #[must_use]
    pub const fn cached(tokens: u64) -> Self {
        Self {
            input: 3,
            cache_read: tokens,
            cache_creation: 0,
            output: 7,
            per_tool_result: 0,
        }
    }

    /// Sets the tokens that each tool result adds.
    #[must_use]
    pub const fn growing_by(mut self, tokens: u64) -> Self {
        self.per_tool_result = tokens;
        self
    }

    /// Returns the sum of all tokens, which readers of the message should report as context.
    #[must_use]
    pub const fn context(&self) -> u64 {
        self.input + self.cache_read + self.cache_creation + self.output
    }

    /// Returns the tokens of a conversation with this many tool results.
    #[must_use]
    pub const fn settled(mut self, tool_results: u64) -> Self {
        self.cache_read += self.per_tool_result * tool_results;
        self.per_tool_result = 0;
        self
    }
}

/// A tool call of the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Name of the tool: `Bash`, `Write`, `Agent`, ...
    pub name: String,
    /// Arguments of the call.
    #[serde(default)]
    pub input: Value,
    /// Fake agent only: result of the call, which is then not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Fake agent only: duration of the call in milliseconds.
    #[serde(default)]
    pub takes_ms: u64,
    /// Fake agent only: whether the call runs until the agent gets a message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_told: bool,
    /// Fake agent only: whether the call fails.
    #[serde(default)]
    pub is_error: bool,
    /// Fake agent only: whether the permission rules deny the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub denied: bool,
}

/// How an answer fails. Streams fail after `after` events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The API answers with an error status.
    Status {
        /// HTTP status: 401, 429, 529, ...
        status: u16,
        /// Name of the error: `authentication_error`, `rate_limit_error`, `overloaded_error`, ...
        error: String,
        /// Error message for users.
        #[serde(default)]
        message: String,
    },
    /// The request is accepted and never answered.
    NoAnswer,
    /// The stream starts and then sends nothing more.
    Silence {
        /// Number of events before the silence.
        after: usize,
    },
    /// The stream starts and then only sends pings.
    Pings {
        /// Number of events before the pings.
        after: usize,
        /// Milliseconds between two pings.
        every_ms: u64,
    },
    /// The connection is closed in the middle of the stream.
    Cut {
        /// Number of events before the end.
        after: usize,
    },
    /// An error in the middle of the stream.
    ErrorEvent {
        /// Number of events before the error.
        after: usize,
        /// Name of the error: `overloaded_error`, ...
        error: String,
    },
    /// The connection is reset before the first byte.
    Reset,
    /// The connection is closed before the first byte.
    Closed,
    /// The status is 200, and the stream has no events.
    EmptyStream,
    /// The status is 200, and the body is a web page.
    Html,
}

/// One answer of the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Turn {
    /// Reasoning of the model; `None` = none.
    pub thinking: Option<String>,
    /// Text of the answer; `None` = none.
    pub text: Option<String>,
    /// Tool calls of the answer.
    pub tools: Vec<ToolCall>,
    /// Token counts of the answer.
    pub usage: Usage,
    /// Stop reason; `None` means `tool_use` with tool calls, otherwise `end_turn`.
    pub stop_reason: Option<String>,
    /// Delay before the answer, in milliseconds.
    pub delay_ms: u64,
    /// Number of characters of each piece of a stream; 0 means one piece.
    pub chunk: usize,
    /// Pause between two pieces of a stream, in milliseconds.
    pub chunk_delay_ms: u64,
    /// Additional headers of the response: `retry-after`, `anthropic-ratelimit-unified-status`, ...
    pub headers: BTreeMap<String, String>,
    /// How the answer fails; `None` if it succeeds.
    pub fault: Option<Fault>,
}

impl Turn {
    /// Returns an answer with a text, which ends the turn.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: Some(text.into()),
            usage: Usage::cached(9_000),
            ..Self::default()
        }
    }

    /// Returns an answer that calls a tool.
    #[must_use]
    pub fn tool(name: &str, input: Value) -> Self {
        let usage = Usage::cached(9_000);
        let turn = Self {
            usage,
            ..Self::default()
        };
        turn.and_tool(name, input)
    }

    /// Returns an answer that runs a shell command.
    #[must_use]
    pub fn bash(command: &str) -> Self {
        let input = serde_json::json!({"command": command, "description": "a step"});
        Self::tool("Bash", input)
    }

    /// Makes the tool calls of this answer run until the agent receives another prompt.
    #[must_use]
    pub fn until_told(mut self) -> Self {
        for tool in &mut self.tools {
            tool.until_told = true;
        }
        self
    }

    /// Returns an answer that fails with an HTTP status.
    #[must_use]
    pub fn status(status: u16, error: &str, message: &str) -> Self {
        Self::fault(Fault::Status {
            status,
            error: error.into(),
            message: message.into(),
        })
    }

    /// Returns an answer that fails in this way. A stream that starts contains a text.
    #[must_use]
    pub fn fault(fault: Fault) -> Self {
        Self {
            fault: Some(fault),
            ..Self::text("this will not end well")
        }
    }

    /// Adds another tool call to this answer.
    #[must_use]
    pub fn and_tool(mut self, name: &str, input: Value) -> Self {
        self.tools.push(ToolCall {
            name: name.into(),
            input,
            ..ToolCall::default()
        });
        self
    }

    /// Makes the permission rules deny the tool calls of this answer.
    #[must_use]
    pub fn denied(mut self) -> Self {
        for tool in &mut self.tools {
            tool.denied = true;
        }
        self
    }

    /// Adds a text.
    #[must_use]
    pub fn saying(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Adds reasoning.
    #[must_use]
    pub fn thinking(mut self, thought: impl Into<String>) -> Self {
        self.thinking = Some(thought.into());
        self
    }

    /// Sets the token counts.
    #[must_use]
    pub const fn using(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    /// Streams the answer in pieces of `chunk` characters, with a pause after each.
    #[must_use]
    pub const fn in_pieces(mut self, chunk: usize, chunk_delay_ms: u64) -> Self {
        self.chunk = chunk;
        self.chunk_delay_ms = chunk_delay_ms;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Returns the stop reason.
    #[must_use]
    pub fn stop_reason(&self) -> &str {
        match &self.stop_reason {
            Some(reason) => reason,
            None if self.tools.is_empty() => "end_turn",
            None => "tool_use",
        }
    }
}

/// An answer to messages that contain a text. It takes precedence over the turns and does not use up a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Text that the last message of the user must contain.
    pub when: String,
    /// The answer.
    pub turn: Turn,
}

/// What the model answers after the last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Afterwards {
    /// A short text, so that no test hangs.
    #[default]
    Done,
    /// The last turn is repeated.
    Last,
    /// All turns are repeated from the first one.
    Again,
}

/// All answers of a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Answers in the main conversation, one for each request. A retry uses the next one.
    pub turns: Vec<Turn>,
    /// What the model answers after the last turn.
    pub afterwards: Afterwards,
    /// Answers to certain words of the user. They take precedence over `turns`.
    pub rules: Vec<Rule>,
    /// Answers to sub-agents, in the order of their requests.
    pub subagent: Vec<Turn>,
    /// The answer to a compaction request; `None` for a short summary.
    pub compaction: Option<Turn>,
    /// The answer to requests without tools, which are internal requests of the client.
    pub helper: Option<Turn>,
    /// Fake agent only: how it behaves.
    pub agent: crate::behavior::Behavior,
}

impl Scenario {
    /// Returns a scenario with these turns, followed by a short text.
    #[must_use]
    pub fn of(turns: impl IntoIterator<Item = Turn>) -> Self {
        Self {
            turns: turns.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Repeats the last turn forever.
    #[must_use]
    pub const fn for_ever(mut self) -> Self {
        self.afterwards = Afterwards::Last;
        self
    }

    /// Adds a rule: answers `words` with a separate turn.
    #[must_use]
    pub fn when(mut self, words: &str, turn: Turn) -> Self {
        let when = words.into();
        self.rules.push(Rule { when, turn });
        self
    }

    /// Sets the turns of sub-agents.
    #[must_use]
    pub fn with_subagent(mut self, turns: impl IntoIterator<Item = Turn>) -> Self {
        self.subagent = turns.into_iter().collect();
        self
    }

    /// Reads a scenario from a JSON file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is not a scenario; the text says which.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            let path = path.display();
            format!("{path} is not a scenario: {error}")
        })
    }

    /// Returns the turn at a position, counted from 0. After the last turn, `afterwards` decides.
    #[must_use]
    pub fn turn_at(&self, position: usize) -> Turn {
        let turns = &self.turns;
        let index = match self.afterwards {
            _ if position < turns.len() => Some(position),
            Afterwards::Last => turns.len().checked_sub(1),
            Afterwards::Again if !turns.is_empty() => Some(position % turns.len()),
            Afterwards::Done | Afterwards::Again => None,
        };
        let turn = index.and_then(|index| turns.get(index));
        turn.cloned().unwrap_or_else(|| Turn::text("Done."))
    }

    /// Returns the rule's answer to a text of the user.
    #[must_use]
    pub fn rule_for(&self, user_text: &str) -> Option<Turn> {
        let rule = self
            .rules
            .iter()
            .find(|rule| user_text.contains(&rule.when));
        rule.map(|rule| rule.turn.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_used_one_by_one_and_then_follow_afterwards() {
        let mut scenario = Scenario::of([Turn::text("a"), Turn::text("b")]);
        let said = |scenario: &Scenario| -> Vec<String> {
            let text = |position| scenario.turn_at(position).text.unwrap_or_default();
            (0..5).map(text).collect()
        };
        assert_eq!(said(&scenario), ["a", "b", "Done.", "Done.", "Done."]);
        scenario.afterwards = Afterwards::Last;
        assert_eq!(said(&scenario), ["a", "b", "b", "b", "b"]);
        scenario.afterwards = Afterwards::Again;
        assert_eq!(said(&scenario), ["a", "b", "a", "b", "a"]);
        assert_eq!(said(&Scenario::default().for_ever())[0], "Done.");
    }

    #[test]
    fn a_scenario_survives_json_serialization() {
        let turn = Turn::status(429, "rate_limit_error", "slow down").header("retry-after", "2");
        let scenario = Scenario::of([turn, Turn::bash("ls").thinking("hm")])
            .when("wrap up", Turn::text("wrapped"))
            .for_ever();
        let json = serde_json::to_string(&scenario).expect("it is data");
        let read: Scenario = serde_json::from_str(&json).expect("we wrote it");
        assert_eq!(read, scenario);
    }

    #[test]
    fn scenario_with_an_unknown_field_is_rejected() {
        let refused = serde_json::from_str::<Scenario>(r#"{"turns": [{"txt": "a"}]}"#);
        let refused = refused
            .expect_err("`txt` is not a field of a turn")
            .to_string();
        assert!(refused.contains("unknown field `txt`"), "{refused}");
    }

    #[test]
    fn usage_grows_with_each_tool_result() {
        let usage = Usage::cached(20_000).growing_by(5_000);
        assert_eq!(usage.settled(0).context(), 20_010);
        assert_eq!(usage.settled(30).context(), 170_010);
    }
}
