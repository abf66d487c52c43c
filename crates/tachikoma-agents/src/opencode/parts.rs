//! Parts of a message: text, tool calls, the ends of steps, changed files.

use serde_json::Value;

use super::conversation::{Conversation, line};
use crate::{Observation, PlanChange, PlanItem};

/// What a call is called for, in one line.
const ABOUT_BYTES_MAX: usize = 200;

/// What is kept of the end of a tool's output.
const TAIL_BYTES_MAX: usize = 2048;

/// As long as a path can be.
const PATH_BYTES_MAX: usize = 4096;

/// Calls in flight that are kept in mind.
const RUNNING_MAX: usize = 256;

/// Files that one step is said to have changed; the work tree knows the rest.
const FILES_MAX: usize = 100;

/// Things to do that are read.
const PLAN_ITEMS_MAX: usize = 100;

/// The members of a tool's input that say best what it is called for, the best one first.
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

/// A part as it is now. Text counts when it is complete.
pub(super) fn read_part(
    conversation: &mut Conversation,
    part: &Value,
    seen: &mut Vec<Observation>,
) {
    let message = part["messageID"].as_str().unwrap_or_default();
    match part["type"].as_str() {
        Some("text") if part["time"]["end"].is_number() => {
            // A server that compacts tells itself to go on.
            if conversation.is_summary(message) || part["synthetic"] == true {
                return;
            }
            let text = part["text"].as_str().unwrap_or_default();
            conversation.said(message, text);
            if !text.is_empty() {
                seen.push(Observation::Said(text.to_owned()));
            }
        }
        Some("tool") => tool(conversation, part, seen),
        Some("step-start") => conversation.turn.open = true,
        Some("step-finish") => conversation.step_finished(part, seen),
        Some("patch") => {
            let files = part["files"].as_array().into_iter().flatten();
            let paths = files.filter_map(Value::as_str).take(FILES_MAX);
            seen.extend(paths.map(|path| Observation::FileTouched(line(path, PATH_BYTES_MAX))));
        }
        Some("compaction") => seen.push(Observation::Compacted {
            automatic: part["auto"] == true,
            tokens_before: conversation.tokens(),
        }),
        // Thoughts, files that were given, snapshots: nothing in them is needed.
        Some(_) | None => {}
    }
}

fn tool(conversation: &mut Conversation, part: &Value, seen: &mut Vec<Observation>) {
    conversation.turn.open = true;
    let word = |value: &Value| line(value.as_str().unwrap_or_default(), ABOUT_BYTES_MAX);
    let (id, name, state) = (word(&part["callID"]), word(&part["tool"]), &part["state"]);
    let (failed, output) = match state["status"].as_str() {
        Some("running") => return tool_started(conversation, id, name, &state["input"], seen),
        // A command that failed was run well, for OpenCode.
        Some("completed") => {
            let exit = state["metadata"]["exit"].as_i64();
            (exit.is_some_and(|code| code != 0), &state["output"])
        }
        Some("error") => (true, &state["error"]),
        // Its arguments are still on their way.
        Some(_) | None => return,
    };
    if let Some(at) = conversation.running.iter().position(|known| *known == id) {
        conversation.running.swap_remove(at);
    } else {
        // `opencode run` tells of a call only when it is over.
        seen.push(Observation::ToolStarted {
            id: id.clone(),
            name: name.clone(),
            about: about(&state["input"]),
        });
        let path = state["input"]["filePath"].as_str();
        if let Some(path) = path.filter(|_| !failed && matches!(&*name, "write" | "edit")) {
            seen.push(Observation::FileTouched(line(path, PATH_BYTES_MAX)));
        }
    }
    let output = output.as_str().unwrap_or_default();
    let start = output.ceil_char_boundary(output.len().saturating_sub(TAIL_BYTES_MAX));
    let tail = output.get(start..).unwrap_or_default().to_owned();
    seen.push(Observation::ToolEnded { id, failed, tail });
}

fn tool_started(
    conversation: &mut Conversation,
    id: String,
    name: String,
    input: &Value,
    seen: &mut Vec<Observation>,
) {
    if conversation.running.contains(&id) || conversation.running.len() >= RUNNING_MAX {
        return;
    }
    conversation.running.push(id.clone());
    let about = about(input);
    seen.push(Observation::ToolStarted { id, name, about });
}

/// The agent's list of things to do.
pub(super) fn plan(todos: &Value) -> Observation {
    let todos = todos.as_array().into_iter().flatten().take(PLAN_ITEMS_MAX);
    let word = |value: &Value| line(value.as_str().unwrap_or_default(), ABOUT_BYTES_MAX);
    let items = todos.map(|item| PlanItem {
        text: word(&item["content"]),
        status: word(&item["status"]),
    });
    Observation::PlanChanged(PlanChange::All(items.collect()))
}

fn about(input: &Value) -> String {
    let best = ABOUT_KEYS.iter().find_map(|key| input[*key].as_str());
    line(best.unwrap_or_default(), ABOUT_BYTES_MAX)
}
