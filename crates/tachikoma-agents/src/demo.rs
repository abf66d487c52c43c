//! The scripted agent of `tachikoma demo`: a process that speaks one JSON object per line.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};
use tachikoma_core::Context;

use crate::{LaunchPlan, Observation, Turn};

/// The scripted agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoAgent {
    /// The program that plays it, with its arguments; not empty.
    pub program: Vec<OsString>,
}

/// One line of the scripted agent's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DemoLine {
    /// It says something.
    Text {
        /// What.
        text: String,
    },
    /// It reports the fill of its context.
    Context {
        /// Tokens in it.
        tokens: u64,
        /// Tokens that fit.
        window: u64,
    },
    /// A tool call begins.
    ToolStarted {
        /// Its id.
        id: String,
        /// The tool.
        name: String,
    },
    /// A tool call ends.
    ToolEnded {
        /// Its id.
        id: String,
    },
    /// The turn's final result.
    Result {
        /// Whether it went well.
        success: bool,
        /// Its final words.
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
            stdin: turn.prompt.to_owned(),
        }
    }
}

/// Reads one line of the scripted agent.
pub(crate) fn observe(line: &str) -> Observation {
    match serde_json::from_str::<DemoLine>(line) {
        Ok(DemoLine::Text { text }) => Observation::Said(text),
        Ok(DemoLine::Context { tokens, window }) => Observation::Measured(Context {
            tokens,
            window,
            estimated: false,
        }),
        Ok(DemoLine::ToolStarted { id, name }) => Observation::ToolStarted { id, name },
        Ok(DemoLine::ToolEnded { id }) => Observation::ToolEnded { id },
        Ok(DemoLine::Result { success, text }) => Observation::Resulted { success, text },
        Err(_) => Observation::Said(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_observations_and_nonsense_is_shown() {
        let context = Context {
            tokens: 5,
            window: 10,
            estimated: false,
        };
        for (line, observation) in [
            (
                r#"{"type":"context","tokens":5,"window":10}"#,
                Observation::Measured(context),
            ),
            (
                r#"{"type":"tool_ended","id":"a"}"#,
                Observation::ToolEnded { id: "a".to_owned() },
            ),
            (
                r#"{"type":"shrug"}"#,
                Observation::Said(r#"{"type":"shrug"}"#.to_owned()),
            ),
            ("panic!", Observation::Said("panic!".to_owned())),
        ] {
            assert_eq!(observe(line), observation, "{line}");
        }
    }
}
