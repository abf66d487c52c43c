//! Parts of a message: text, tool calls, ends of steps, changed files.

use serde_json::Value;

use super::conversation::{Conversation, line};
use crate::{AgentEvent, PlanChange, PlanItem};

/// Maximum size of the description of a tool call in bytes.
const ABOUT_BYTES_MAX: usize = 200;

/// Maximum number of bytes that are kept of the end of a tool's output.
const TAIL_BYTES_MAX: usize = 2048;

/// Maximum size of a path in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Maximum number of running tool calls that are remembered.
const RUNNING_MAX: usize = 256;

/// Maximum number of files that are reported for one step. A survey of the work tree finds the others.
const FILES_MAX: usize = 100;

/// Maximum number of items of the agent's to-do list that are kept.
const PLAN_ITEMS_MAX: usize = 100;

/// Fields of a tool's input that describe its purpose, the best first.
const ABOUT_KEYS: [&str; 8] = [
    "command",
    "filePath",
    "path",
    "pattern",
    "url",
    "query",
    "description",
    "prompt",
];

/// Reads a part of a message in its current state. Text is reported when it is complete.
pub(super) fn read_part(conversation: &mut Conversation, part: &Value, seen: &mut Vec<AgentEvent>) {
    let message = part["messageID"].as_str().unwrap_or_default();
    match part["type"].as_str() {
        Some("text") if part["time"]["end"].is_number() => {
            // A server that compacts a conversation sends itself a message to continue.
            if conversation.is_summary(message) || part["synthetic"] == true {
                return;
            }
            let text = part["text"].as_str().unwrap_or_default();
            conversation.said(message, text);
            if !text.is_empty() {
                seen.push(AgentEvent::Said(text.to_owned()));
            }
        }
        Some("tool") => tool(conversation, part, seen),
        Some("step-start") => conversation.turn.open = true,
        Some("step-finish") => conversation.step_finished(part, seen),
        Some("patch") => {
            let files = part["files"].as_array().into_iter().flatten();
            let paths = files.filter_map(Value::as_str).take(FILES_MAX);
            seen.extend(paths.map(|path| AgentEvent::FileTouched(line(path, PATH_BYTES_MAX))));
        }
        Some("compaction") => seen.push(AgentEvent::Compacted {
            automatic: part["auto"] == true,
            tokens_before: conversation.tokens(),
        }),
        // Reasoning, attached files and snapshots are not needed.
        Some(_) | None => {}
    }
}

fn tool(conversation: &mut Conversation, part: &Value, seen: &mut Vec<AgentEvent>) {
    conversation.turn.open = true;
    let word = |value: &Value| line(value.as_str().unwrap_or_default(), ABOUT_BYTES_MAX);
    let (id, name, state) = (word(&part["callID"]), word(&part["tool"]), &part["state"]);
    let (failed, output) = match state["status"].as_str() {
        Some("running") => return tool_started(conversation, id, name, &state["input"], seen),
        // OpenCode reports a command with a failing exit code as completed.
        Some("completed") => {
            let exit = state["metadata"]["exit"].as_i64();
            (exit.is_some_and(|code| code != 0), &state["output"])
        }
        Some("error") => (true, &state["error"]),
        // The arguments of the call are still being streamed.
        Some(_) | None => return,
    };
    if let Some(at) = conversation.running.iter().position(|known| *known == id) {
        conversation.running.swap_remove(at);
    } else {
        // `opencode run` reports a call only after it has ended.
        seen.push(AgentEvent::ToolStarted {
            id: id.clone(),
            name: name.clone(),
            about: about(&state["input"]),
        });
        let path = state["input"]["filePath"].as_str();
        if let Some(path) = path.filter(|_| !failed && matches!(&*name, "write" | "edit")) {
            seen.push(AgentEvent::FileTouched(line(path, PATH_BYTES_MAX)));
        }
    }
    let output = output.as_str().unwrap_or_default();
    let start = output.ceil_char_boundary(output.len().saturating_sub(TAIL_BYTES_MAX));
    let tail = output.get(start..).unwrap_or_default().to_owned();
    seen.push(AgentEvent::ToolEnded { id, failed, tail });
}

fn tool_started(
    conversation: &mut Conversation,
    id: String,
    name: String,
    input: &Value,
    seen: &mut Vec<AgentEvent>,
) {
    if conversation.running.contains(&id) || conversation.running.len() >= RUNNING_MAX {
        return;
    }
    conversation.running.push(id.clone());
    let about = about(input);
    seen.push(AgentEvent::ToolStarted { id, name, about });
}

/// Returns the agent's to-do list.
pub(super) fn plan(todos: &Value) -> AgentEvent {
    let todos = todos.as_array().into_iter().flatten().take(PLAN_ITEMS_MAX);
    let word = |value: &Value| line(value.as_str().unwrap_or_default(), ABOUT_BYTES_MAX);
    let items = todos.map(|item| PlanItem {
        text: word(&item["content"]),
        status: word(&item["status"]),
    });
    AgentEvent::PlanChanged(PlanChange::All(items.collect()))
}

fn about(input: &Value) -> String {
    let best = ABOUT_KEYS.iter().find_map(|key| input[*key].as_str());
    line(best.unwrap_or_default(), ABOUT_BYTES_MAX)
}
