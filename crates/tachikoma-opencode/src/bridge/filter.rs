//! Selects the events that the runner gets. One answer can have thousands of events, and each event of a tool repeats its whole
//! output so far. A loop only needs the first and the last event of each part.

use std::collections::VecDeque;

use serde_json::Value;

use super::str_of;

/// Maximum number of running tool calls that are remembered.
const RUNNING_MAX: usize = 256;

/// Maximum number of remembered messages of other roles than the agent. The parts of a message follow it at once.
const OTHERS_MAX: usize = 32;

/// Selects the events that are passed on. It remembers running tool calls and the newest messages.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// Ids of the tool calls that are running.
    running: Vec<String>,
    /// Id of the newest message of the agent.
    message: String,
    /// Ids of the newest messages of other roles.
    others: VecDeque<String>,
}

impl Filter {
    /// Returns whether an event of the conversation is passed on.
    pub fn passes(&mut self, kind: &str, properties: &Value) -> bool {
        match kind {
            "message.updated" => self.message(&properties["info"]),
            "message.part.updated" => self.part(&properties["part"]),
            "session.status" => properties["status"]["type"] == "retry",
            "session.error" | "session.idle" | "session.compacted" | "todo.updated"
            | "permission.asked" | "permission.replied" => true,
            _ => false,
        }
    }

    fn message(&mut self, info: &Value) -> bool {
        let id = str_of(&info["id"]);
        if info["role"] != "assistant" {
            if !self.others.iter().any(|known| known == id) {
                self.others.push_back(id.to_owned());
            }
            if self.others.len() > OTHERS_MAX {
                self.others.pop_front();
            }
            return false;
        }
        let is_news = self.message != id || !info["error"].is_null();
        if is_news {
            id.clone_into(&mut self.message);
        }
        is_news
    }

    fn part(&mut self, part: &Value) -> bool {
        match str_of(&part["type"]) {
            // During a compaction, the server writes a prompt to itself, which is not output of the agent.
            "text" => {
                let message = str_of(&part["messageID"]);
                let is_other = self.others.iter().any(|known| known == message);
                part["time"]["end"].is_number() && part["synthetic"] != true && !is_other
            }
            "tool" => self.tool(str_of(&part["id"]), str_of(&part["state"]["status"])),
            "step-finish" | "patch" | "compaction" => true,
            _ => false,
        }
    }

    fn tool(&mut self, id: &str, status: &str) -> bool {
        let known = self.running.iter().position(|known| known == id);
        match (status, known) {
            ("running", None) => {
                if self.running.len() < RUNNING_MAX {
                    self.running.push(id.to_owned());
                }
                true
            }
            ("completed" | "error", known) => {
                if let Some(at) = known {
                    self.running.swap_remove(at);
                }
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the types of the events of a recorded turn that the filter passes on.
    fn passed(recording: &str) -> Vec<String> {
        let path = format!(
            "{}/../tachikoma-agents/tests/corpus/opencode/{recording}.sse",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(path).expect("a recording");
        let mut filter = Filter::default();
        let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let events = events.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
        events
            .filter(|event| filter.passes(str_of(&event["type"]), &event["properties"]))
            .map(|event| {
                let part = &event["properties"]["part"];
                let more = [str_of(&part["type"]), str_of(&part["state"]["status"])].join(" ");
                format!("{} {}", str_of(&event["type"]), more.trim())
                    .trim()
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn filter_passes_finished_texts_and_the_start_and_end_of_each_tool_call() {
        insta::assert_snapshot!(passed("serve-01-basic").join("\n"), @"
    message.updated
    message.part.updated text
    message.part.updated step-finish
    session.idle
    message.updated
    message.part.updated tool running
    message.part.updated text
    message.part.updated tool completed
    message.part.updated step-finish
    message.part.updated patch
    message.updated
    message.part.updated text
    message.part.updated step-finish
    session.idle
    message.updated
    message.part.updated tool running
    message.part.updated tool running
    message.part.updated tool running
    message.part.updated text
    message.part.updated tool completed
    message.part.updated tool completed
    message.part.updated tool completed
    message.part.updated step-finish
    message.part.updated patch
    message.updated
    message.part.updated tool running
    todo.updated
    message.part.updated tool running
    message.part.updated tool completed
    message.part.updated tool completed
    message.part.updated step-finish
    message.part.updated patch
    message.updated
    message.part.updated text
    message.part.updated step-finish
    session.idle
    ");
    }
}
