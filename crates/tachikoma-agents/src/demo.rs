//! The scripted agent of `tachikoma demo`: a process that prints one JSON object per line.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::{AgentEvent, Input, LaunchPlan, Reading, Turn, TurnResult};

/// The scripted agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoAgent {
    /// The program of the scripted agent, with its arguments; not empty.
    pub program: Vec<OsString>,
}

/// One line of the scripted agent's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DemoLine {
    /// Text of the agent for the user.
    Text {
        /// The text.
        text: String,
    },
    /// The fill of the agent's context.
    Context {
        /// Tokens in the context.
        tokens: u64,
        /// Tokens that fit into the context.
        window: u64,
    },
    /// A tool call begins.
    ToolStarted {
        /// Id of the tool call.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// A tool call ends.
    ToolEnded {
        /// Id of the tool call.
        id: String,
    },
    /// The turn's final result.
    Result {
        /// Whether the turn succeeded.
        success: bool,
        /// Final text of the turn.
        text: String,
    },
}

impl DemoAgent {
    pub(crate) fn plan(&self, turn: &Turn<'_>) -> LaunchPlan {
        let mut words = self.program.iter().cloned();
        LaunchPlan {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            env: Vec::new(),
            env_remove: Vec::new(),
            input: Input::Whole(turn.prompt.to_owned()),
        }
    }
}

/// Reads one line of the scripted agent.
pub(crate) fn decode(line: &str) -> AgentEvent {
    match serde_json::from_str::<DemoLine>(line) {
        Ok(DemoLine::Text { text }) => AgentEvent::Said(text),
        Ok(DemoLine::Context { tokens, window }) => AgentEvent::Measured(Reading {
            tokens,
            window: Some(window),
            ..Reading::default()
        }),
        Ok(DemoLine::ToolStarted { id, name }) => AgentEvent::ToolStarted {
            id,
            name,
            about: String::new(),
        },
        Ok(DemoLine::ToolEnded { id }) => tool_ended(id),
        Ok(DemoLine::Result { success, text }) => {
            AgentEvent::Resulted(Box::new(TurnResult::plain(success, text)))
        }
        Err(_) => AgentEvent::Said(line.to_owned()),
    }
}

fn tool_ended(id: String) -> AgentEvent {
    AgentEvent::ToolEnded {
        id,
        failed: false,
        tail: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_lines_become_events_and_other_text_is_shown() {
        let reading = Reading {
            tokens: 5,
            window: Some(10),
            model: None,
            estimated: false,
            answering: false,
        };
        for (line, event) in [
            (
                r#"{"type":"context","tokens":5,"window":10}"#,
                AgentEvent::Measured(reading),
            ),
            (
                r#"{"type":"tool_ended","id":"a"}"#,
                tool_ended("a".to_owned()),
            ),
            (
                r#"{"type":"shrug"}"#,
                AgentEvent::Said(r#"{"type":"shrug"}"#.to_owned()),
            ),
            ("panic!", AgentEvent::Said("panic!".to_owned())),
        ] {
            assert_eq!(decode(line), event, "{line}");
        }
    }
}
