//! Requests to the model, and their kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::scenario::Usage;

/// Text in the client's request for a summary of its conversation.
const COMPACTION_MARK: &str = "create a detailed summary of";

/// Marks around text that the client, not the user, adds to a conversation.
const REMINDER: (&str, &str) = ("<system-reminder>", "</system-reminder>");

/// Marks around a message that the user sent during a turn. It is in a reminder, at the end of a tool's result.
const FOLDED: (&str, &str) = (
    "The user sent a new message while you were working:\n",
    "\n\nThis is how Claude Code",
);

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The conversation with the user.
    Main,
    /// A conversation that the `Agent` tool started.
    Subagent,
    /// A request to summarize the conversation so far.
    Compaction,
    /// An internal request of the client, which has no tools.
    Helper,
    /// A token count.
    CountTokens,
}

/// The API of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// The Messages API of Anthropic.
    #[default]
    Messages,
    /// The chat completions of OpenAI.
    Completions,
}

/// A request to the model.
#[derive(Debug, Clone)]
pub struct Request {
    /// API that the client used for the request.
    pub dialect: Dialect,
    /// Kind of the request.
    pub kind: Kind,
    /// Name of the model.
    pub model: String,
    /// Whether the client requested a stream.
    pub stream: bool,
    /// Number of messages in the conversation.
    pub messages: usize,
    /// Number of messages of the user that are not tool results.
    pub prompts: usize,
    /// Number of tool results in the conversation.
    pub tool_results: u64,
    /// The first text of the user.
    pub first_user: String,
    /// The last text of the user, without reminders and tool results, but with messages sent during a tool call.
    pub last_user: String,
    /// Session id that the client sent; `None` if it sent none.
    pub session: Option<String>,
    /// Headers with lower-case names.
    pub headers: BTreeMap<String, String>,
    /// Body of the request as JSON.
    pub body: Value,
}

impl Request {
    /// Parses a body. `agent_prompts` are the prompts that the model gave to sub-agents.
    pub(super) fn new(
        counting: bool,
        headers: BTreeMap<String, String>,
        body: Value,
        agent_prompts: &[String],
    ) -> Self {
        let none = Vec::new();
        let messages = body["messages"].as_array().unwrap_or(&none);
        let of_user = |message: &&Value| message["role"] == "user";
        let first_user = messages.iter().find(of_user).map(said);
        let last_user = messages.iter().rfind(of_user).map(said);
        let (first_user, last_user) = (
            first_user.unwrap_or_default(),
            last_user.unwrap_or_default(),
        );
        let has_tools = body["tools"]
            .as_array()
            .is_some_and(|tools| !tools.is_empty());
        // Newer clients mark requests of sub-agents with a header. For older ones the prompt is compared.
        let for_subagent = headers.contains_key("x-claude-code-agent-id")
            || agent_prompts
                .iter()
                .any(|prompt| first_user.contains(prompt));
        let kind = if counting {
            Kind::CountTokens
        } else if last_user.contains(COMPACTION_MARK) {
            Kind::Compaction
        } else if !has_tools {
            Kind::Helper
        } else if for_subagent {
            Kind::Subagent
        } else {
            Kind::Main
        };
        let results = |message: &Value| tool_results(message);
        let prompts = messages.iter().filter(of_user);
        Self {
            dialect: Dialect::default(),
            kind,
            model: body["model"].as_str().unwrap_or_default().to_owned(),
            stream: body["stream"] == true,
            messages: messages.len(),
            prompts: prompts.filter(|message| results(message) == 0).count(),
            tool_results: messages.iter().map(results).sum(),
            session: session(&headers, &body),
            first_user,
            last_user,
            headers,
            body,
        }
    }
}

/// Returns the session id: newer clients send it in a header, older ones as part of the user id.
fn session(headers: &BTreeMap<String, String>, body: &Value) -> Option<String> {
    if let Some(id) = headers.get("x-claude-code-session-id") {
        return Some(id.clone());
    }
    let user = body["metadata"]["user_id"].as_str()?;
    let (_, id) = user.split_once("session_")?;
    Some(id.trim_start_matches("id\":\"").chars().take(36).collect())
}

/// Returns the text of a message that the user wrote, without tool results and reminders.
fn said(message: &Value) -> String {
    let mut said = Vec::new();
    match &message["content"] {
        Value::String(text) => hear(text, true, &mut said),
        Value::Array(blocks) => {
            for block in blocks {
                let is_result = block["type"] == "tool_result";
                let (text, inner) = (&block["text"], &block["content"]);
                let inner_texts = inner.as_array().into_iter().flatten();
                let inner_texts = inner_texts.map(|block| &block["text"]);
                let texts = [text, inner].into_iter().chain(inner_texts);
                for text in texts.filter_map(Value::as_str) {
                    hear(text, !is_result, &mut said);
                }
            }
        }
        _ => {}
    }
    said.join("\n")
}

/// Splits a text into text of the user, messages sent during a tool call, and reminders, which are dropped.
fn hear(text: &str, is_users: bool, said: &mut Vec<String>) {
    let mut own = String::new();
    let mut rest = text;
    while let Some((before, reminder, after)) = between(rest, REMINDER) {
        own.push_str(before);
        if let Some((_, words, _)) = between(reminder, FOLDED) {
            said.push(words.to_owned());
        }
        rest = after;
    }
    own.push_str(rest);
    if is_users && !own.trim().is_empty() {
        said.push(own.trim().to_owned());
    }
}

/// Returns the text before, between and after two marks.
fn between<'a>(text: &'a str, (open, close): (&str, &str)) -> Option<(&'a str, &'a str, &'a str)> {
    let (before, rest) = text.split_once(open)?;
    let (inside, after) = rest.split_once(close)?;
    Some((before, inside, after))
}

fn tool_results(message: &Value) -> u64 {
    // In chat completions, each tool result is one message.
    if message["role"] == "tool" {
        return 1;
    }
    let blocks = message["content"].as_array();
    let results = blocks
        .into_iter()
        .flatten()
        .filter(|block| block["type"] == "tool_result");
    results.count() as u64
}

/// A line of the log: a request and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Time of the request in milliseconds since the start of the model.
    pub at_ms: u64,
    /// Kind of the request.
    pub kind: Kind,
    /// Name of the model.
    pub model: String,
    /// Session id that the client sent; `None` if it sent none.
    pub session: Option<String>,
    /// Whether the client requested a stream.
    pub stream: bool,
    /// Number of messages in the conversation.
    pub messages: usize,
    /// Number of messages of the user that are not tool results.
    pub prompts: usize,
    /// Number of tool results in the conversation.
    pub tool_results: u64,
    /// Last characters of the last text of the user. The beginning of a long text is left out of the log.
    pub last_user: String,
    /// Kind of the answer: `message`, `status 429`, `no_answer`, ...
    pub answer: String,
    /// The tokens of the answer; `None` if it does not contain them.
    pub usage: Option<Usage>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind_of(body: Value) -> Kind {
        let prompts = ["look at alpha".to_owned()];
        Request::new(false, BTreeMap::new(), body, &prompts).kind
    }

    #[test]
    fn kinds_of_requests_are_distinguished() {
        let tools = json!([{"name": "Bash"}]);
        let asked =
            |text: &str| json!([{"role": "user", "content": [{"type": "text", "text": text}]}]);
        let body = |text: &str| json!({"tools": tools.clone(), "messages": asked(text)});
        assert_eq!(kind_of(body("do it")), Kind::Main);
        assert_eq!(kind_of(body("now look at alpha")), Kind::Subagent);
        let compaction = "Your task is to create a detailed summary of the conversation";
        assert_eq!(kind_of(body(compaction)), Kind::Compaction);
        assert_eq!(kind_of(json!({"messages": asked("a title")})), Kind::Helper);
    }

    #[test]
    fn a_header_of_newer_clients_shows_the_kind_of_a_request() {
        let headers = [("x-claude-code-agent-id".to_owned(), "a1".to_owned())];
        let body = json!({"tools": [{}], "messages": [{"role": "user", "content": "anything"}]});
        let request = Request::new(false, headers.into(), body, &[]);
        assert_eq!(request.kind, Kind::Subagent);
    }

    #[test]
    fn text_of_the_user_is_separated_from_that_of_the_client() {
        let reminder = |text: &str| format!("<system-reminder>\n{text}\n</system-reminder>\n");
        let folded = reminder(
            "The user sent a new message while you were working:\nwrap up\n\nThis is how Claude Code does it.",
        );
        let blocks = json!([
            {"type": "tool_result", "content": format!("listing\n{folded}{}", reminder("tokens left"))},
            {"type": "text", "text": reminder("today")},
            {"type": "text", "text": "and this"},
        ]);
        let message = json!({"role": "user", "content": blocks});
        assert_eq!(said(&message), "wrap up\nand this");
    }

    #[test]
    fn messages_prompts_and_tool_results_are_counted() {
        let body = json!({
            "model": "m", "stream": true, "tools": [{}],
            "metadata": {"user_id": "user_1_account__session_0b5e0bd2-6b7f-4d0e-9a52-1a2b3c4d5e6f"},
            "messages": [
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": []},
                {"role": "user", "content": [
                    {"type": "tool_result", "content": "not this"},
                    {"type": "tool_result", "content": [{"type": "text", "text": "nor this"}]},
                ]},
                {"role": "user", "content": [{"type": "text", "text": "last"}]},
            ],
        });
        let request = Request::new(false, BTreeMap::new(), body, &[]);
        assert_eq!((request.messages, request.prompts), (4, 2));
        assert_eq!(request.tool_results, 2);
        assert_eq!(
            (request.first_user.as_str(), request.last_user.as_str()),
            ("first", "last")
        );
        assert_eq!(
            request.session.as_deref(),
            Some("0b5e0bd2-6b7f-4d0e-9a52-1a2b3c4d5e6f")
        );
    }
}
