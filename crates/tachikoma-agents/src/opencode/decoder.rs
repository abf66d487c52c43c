//! Reads the output of one process line by line: events of the server, lines of the bridge, and lines of `opencode run`.

use serde_json::Value;

use super::conversation::{
    Conversation, NAME_BYTES_MAX, NOT_UNDERSTOOD_BYTES_MAX, REMEMBERED_MAX, line,
};
use super::parts::{plan, read_part};
use crate::AgentEvent;
use crate::agent_event::rounded;
use crate::report::Standing;

/// Reads the output of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoder {
    conversation: Conversation,
    unknown_lines: u64,
}

impl Decoder {
    /// Returns a decoder that assumes this context window unless the server reports it.
    #[must_use]
    pub fn assuming(window_tokens: Option<u64>) -> Self {
        let mut decoder = Self::default();
        decoder.conversation.assumed_window = window_tokens;
        decoder
    }

    /// Returns what the decoder has learned so far.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            unknown_lines: self.unknown_lines,
            readings: self.conversation.readings,
            reading: self.conversation.latest.clone(),
            session: self.conversation.session.clone(),
            window: self.conversation.window(),
            cost_usd: rounded(self.conversation.cost),
        }
    }

    /// Reads one line and adds its events to `seen`. A line that is not understood is counted, and its start is reported.
    pub fn decode(&mut self, line: &[u8], seen: &mut Vec<AgentEvent>) {
        let mut line = line.trim_ascii();
        // Recordings of the server's stream have this prefix.
        if let Some(data) = line.strip_prefix(b"data:") {
            line = data.trim_ascii_start();
        }
        if line.is_empty() {
            return;
        }
        if let Ok(value) = serde_json::from_slice::<Value>(line)
            && self.read(&value, seen).is_some()
        {
            return;
        }
        self.unknown_lines += 1;
        let head = line.get(..NOT_UNDERSTOOD_BYTES_MAX).unwrap_or(line);
        let text = String::from_utf8_lossy(head).into_owned();
        seen.push(AgentEvent::NotUnderstood(text));
    }

    fn read(&mut self, value: &Value, seen: &mut Vec<AgentEvent>) -> Option<()> {
        let kind = value["type"].as_str()?;
        if kind.starts_with("tachikoma.") {
            let own = serde_json::from_value(value.clone()).ok()?;
            self.conversation.own(own, seen);
            return Some(());
        }
        if value["properties"].is_object() {
            let id = value["id"].as_str().unwrap_or_default();
            self.event(kind, id, &value["properties"], seen);
            return Some(());
        }
        self.line_of_run(kind, value, seen)
    }

    /// Reads an event of the server. There are many kinds, and more with each version; unknown ones are ignored.
    fn event(&mut self, kind: &str, id: &str, properties: &Value, seen: &mut Vec<AgentEvent>) {
        if kind == "session.created" {
            return self.conversation.session_created(&properties["info"], seen);
        }
        let session = properties["sessionID"].as_str();
        if session.is_some_and(|session| !self.conversation.is_ours(session, seen)) {
            return;
        }
        match kind {
            "session.updated" => {
                let total = properties["info"]["cost"].as_f64();
                self.conversation.session_cost =
                    total.filter(|cost| *cost >= 0.0).unwrap_or_default();
            }
            "message.updated" => self.conversation.message(&properties["info"]),
            "message.part.updated" => read_part(&mut self.conversation, &properties["part"], seen),
            "session.status" => self.conversation.status(id, &properties["status"], seen),
            "session.error" => self.conversation.trouble(&properties["error"], seen),
            "session.idle" if self.conversation.turn.open => self.conversation.end(seen),
            "todo.updated" => seen.push(plan(&properties["todos"])),
            "permission.asked" => {
                let word = |name: &str| properties[name].as_str().unwrap_or_default();
                if self.conversation.asked.len() < REMEMBERED_MAX {
                    let about = line(word("permission"), NAME_BYTES_MAX);
                    let call = properties["tool"]["callID"].as_str().unwrap_or_default();
                    let call = line(call, NAME_BYTES_MAX);
                    self.conversation
                        .asked
                        .push((line(word("id"), NAME_BYTES_MAX), about, call));
                }
            }
            "permission.replied" => self.conversation.replied(properties, seen),
            _ => {}
        }
    }

    /// Reads a line of `opencode run --format json`. The process ends with its turn, after the step that
    /// calls no tool.
    fn line_of_run(&mut self, kind: &str, value: &Value, seen: &mut Vec<AgentEvent>) -> Option<()> {
        let part = &value["part"];
        match kind {
            "step_start" | "text" | "reasoning" | "tool_use" | "step_finish" => {
                let session = value["sessionID"].as_str()?;
                self.conversation.is_ours(session, seen);
                read_part(&mut self.conversation, part, seen);
                let reason = part["reason"].as_str();
                if kind == "step_finish" && matches!(reason, Some("stop" | "length")) {
                    self.conversation.end(seen);
                }
            }
            "error" => {
                self.conversation.trouble(&value["error"], seen);
                self.conversation.end(seen);
            }
            _ => return None,
        }
        Some(())
    }
}
