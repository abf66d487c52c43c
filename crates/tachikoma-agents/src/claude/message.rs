//! Messages: the text of the model, its tool calls, and their results.

use super::conversation::{Conversation, Pending, Usage};
use super::limit;
use super::scan::{Raw, Scan, Walk, member, members};
use crate::{AgentEvent, PlanChange, PlanItem};

/// Model name of messages that Claude Code itself creates. Their usage is zero and is ignored.
const SYNTHETIC: &[u8] = b"<synthetic>";

/// Maximum size of the description of a tool call in bytes.
const ABOUT_BYTES_MAX: usize = 200;

/// Maximum number of bytes that are kept of a tool's output: enough to see why it failed.
const TAIL_BYTES_MAX: usize = 1024;

/// Maximum size of a path in bytes, as in operating systems.
const PATH_BYTES_MAX: usize = 4096;

/// Maximum number of items of the agent's to-do list that are kept.
const PLAN_ITEMS_MAX: usize = 100;

/// Maximum number of running tool calls that are remembered. The agent runs about ten at once.
const PENDING_MAX: usize = 256;

/// Maximum number of sub-agents' calls that are remembered: about ten run at once, and each call has a few lines.
const BELOW_MAX: usize = 32;

/// Fields of a tool's input that describe its purpose, the best first.
const ABOUT_KEYS: [&[u8]; 11] = [
    b"command",
    b"file_path",
    b"notebook_path",
    b"pattern",
    b"url",
    b"query",
    b"path",
    b"subject",
    b"description",
    b"prompt",
    b"skill",
];

#[derive(Default)]
struct Message<'a> {
    id: Raw<'a>,
    model: Raw<'a>,
    content: Raw<'a>,
    usage: Raw<'a>,
}

impl<'a> Message<'a> {
    fn take(&mut self, scan: &mut Scan<'a>) -> Option<Walk> {
        scan.object(|key, scan| {
            let field = match key {
                b"id" => &mut self.id,
                b"model" => &mut self.model,
                b"content" => &mut self.content,
                b"usage" => &mut self.usage,
                _ => return scan.skip(),
            };
            *field = scan.value()?;
            Some(Walk::On)
        })
    }
}

/// Reads one finished block of a message of the model, or a message that the agent itself created.
pub(super) fn assistant(
    conversation: &mut Conversation,
    line: &[u8],
    seen: &mut Vec<AgentEvent>,
) -> Option<()> {
    let mut message = Message::default();
    let (mut parent, mut error, mut context) = (Raw::default(), Raw::default(), Raw::default());
    let mut error_params = Raw::default();
    Scan::new(line).object(|key, scan| {
        let field = match key {
            b"message" => return message.take(scan),
            b"parent_tool_use_id" => &mut parent,
            b"error" => &mut error,
            b"api_error_params" => &mut error_params,
            b"context_usage" => &mut context,
            _ => return scan.skip(),
        };
        *field = scan.value()?;
        Some(Walk::On)
    })?;
    let main = !parent.is_some();
    conversation.context_usage(context, seen);
    if error.is_some() {
        conversation.turn.requested = true;
        if main {
            note_rejection(conversation, error_params);
            request_failed(conversation, error, message.content, seen);
        }
        return Some(());
    }
    if message.model.bare() == Some(SYNTHETIC) {
        return Some(());
    }
    conversation.turn.requested = true;
    if main {
        conversation.message_measured(message.id, message.model, message.usage, seen);
    } else {
        call_below(conversation, message.id, message.usage, seen);
    }
    blocks(conversation, message.content, main, seen)
}

/// Counts a model call of a sub-agent once, although each finished block of it reports the call.
fn call_below(
    conversation: &mut Conversation,
    id: Raw<'_>,
    usage: Raw<'_>,
    seen: &mut Vec<AgentEvent>,
) {
    let id = id.line(ABOUT_BYTES_MAX).unwrap_or_default();
    let mut counted = Usage::default();
    counted.update(usage);
    if counted.tokens() == 0 || conversation.below.contains(&id) {
        return;
    }
    if conversation.below.len() >= BELOW_MAX {
        conversation.below.pop_front();
    }
    conversation.below.push_back(id);
    seen.push(AgentEvent::CallEnded(counted.tokens()));
}

/// Reads the reset time of a usage limit from the parameters of a failed request. A second rejection in a row comes without a
/// `rate_limit_event`, so that only these parameters have the time.
fn note_rejection(conversation: &mut Conversation, error_params: Raw<'_>) {
    let info = member(error_params, b"rate_limit_info");
    if member(info, b"status").bare() == Some(b"rejected") {
        let resets_at = member(info, b"resetsAt").count().and_then(limit::moment);
        conversation.turn.rejected = Some(resets_at.or(conversation.turn.rejected.flatten()));
    }
}

fn request_failed(
    conversation: &mut Conversation,
    error: Raw<'_>,
    content: Raw<'_>,
    seen: &mut Vec<AgentEvent>,
) {
    let error = error.line(ABOUT_BYTES_MAX).unwrap_or_default();
    conversation.turn.error.clone_from(&error);
    let text = last_text(content, TAIL_BYTES_MAX);
    seen.push(AgentEvent::RequestFailed { error, text });
}

/// Reads the blocks of a message. Text of a sub-agent is not part of the conversation, but the files that it writes count.
fn blocks(
    conversation: &mut Conversation,
    content: Raw<'_>,
    main: bool,
    seen: &mut Vec<AgentEvent>,
) -> Option<()> {
    content.scan().array(|scan| {
        let names: [&[u8]; 5] = [b"type", b"text", b"id", b"name", b"input"];
        let [kind, text, id, name, input] = members(scan.value()?.bytes(), names)?;
        match kind.bare() {
            Some(b"text") if main => {
                let text = text.string().unwrap_or_default();
                seen.push(AgentEvent::Said(text));
            }
            Some(b"tool_use") => tool_started(conversation, id, name, input, main, seen),
            _ => {}
        }
        Some(())
    })
}

fn tool_started(
    conversation: &mut Conversation,
    id: Raw<'_>,
    name: Raw<'_>,
    input: Raw<'_>,
    main: bool,
    seen: &mut Vec<AgentEvent>,
) {
    let id = id.line(ABOUT_BYTES_MAX).unwrap_or_default();
    if let Some(pending) = pending(name.bare().unwrap_or_default(), input)
        && conversation.pending.len() < PENDING_MAX
    {
        conversation.pending.push((id.clone(), pending));
    }
    if main {
        seen.push(AgentEvent::ToolStarted {
            id,
            name: name.line(ABOUT_BYTES_MAX).unwrap_or_default(),
            about: about(input),
        });
    }
}

/// Reads a message to the model, usually results of tools.
pub(super) fn user(
    conversation: &mut Conversation,
    line: &[u8],
    seen: &mut Vec<AgentEvent>,
) -> Option<()> {
    let (mut message, mut parent) = (Message::default(), Raw::default());
    let (mut has_message, mut has_parent) = (false, false);
    Scan::new(line).object(|key, scan| {
        match key {
            b"message" => {
                message.take(scan)?;
                has_message = true;
            }
            b"parent_tool_use_id" => {
                parent = scan.value()?;
                has_parent = true;
            }
            _ => return scan.skip(),
        }
        // The line also contains the same result as an object, often the longest part. It is skipped.
        Some(if has_message && has_parent {
            Walk::Done
        } else {
            Walk::On
        })
    })?;
    if message.content.bare().is_some() {
        return Some(());
    }
    let main = !parent.is_some();
    message.content.scan().array(|scan| {
        let names: [&[u8]; 4] = [b"type", b"tool_use_id", b"is_error", b"content"];
        let [kind, id, failed, content] = members(scan.value()?.bytes(), names)?;
        if kind.bare() == Some(b"tool_result") {
            let id = id.line(ABOUT_BYTES_MAX).unwrap_or_default();
            tool_ended(conversation, id, failed.is_true(), content, main, seen);
        }
        Some(())
    })
}

fn tool_ended(
    conversation: &mut Conversation,
    id: String,
    failed: bool,
    content: Raw<'_>,
    main: bool,
    seen: &mut Vec<AgentEvent>,
) {
    if let Some(at) = conversation
        .pending
        .iter()
        .position(|(pending, _)| *pending == id)
    {
        match conversation.pending.swap_remove(at).1 {
            _ if failed => {}
            Pending::File(path) => seen.push(AgentEvent::FileTouched(path)),
            Pending::Plan(change) => seen.push(AgentEvent::PlanChanged(change)),
        }
    }
    if main {
        let tail = content
            .tail(TAIL_BYTES_MAX)
            .unwrap_or_else(|| last_text(content, TAIL_BYTES_MAX));
        seen.push(AgentEvent::ToolEnded { id, failed, tail });
    }
}

/// Returns the end of the last text block; empty if there is none.
fn last_text(content: Raw<'_>, max_bytes: usize) -> String {
    let mut last = Raw::default();
    // A value that is not a list has no text.
    let _ = content.scan().array(|scan| {
        let [text] = members(scan.value()?.bytes(), [b"text"])?;
        if text.is_some() {
            last = text;
        }
        Some(())
    });
    last.tail(max_bytes).unwrap_or_default()
}

fn about(input: Raw<'_>) -> String {
    let mut best = (ABOUT_KEYS.len(), Raw::default());
    // An input that is not an object has no purpose.
    let _ = input.scan().object(|key, scan| {
        let value = scan.value()?;
        let rank = ABOUT_KEYS.iter().position(|known| *known == key);
        if let Some(rank) = rank.filter(|rank| *rank < best.0) {
            best = (rank, value);
        }
        Some(if best.0 == 0 { Walk::Done } else { Walk::On })
    });
    best.1.line(ABOUT_BYTES_MAX).unwrap_or_default()
}

fn pending(tool: &[u8], input: Raw<'_>) -> Option<Pending> {
    let member = |wanted: &[u8]| member(input, wanted);
    let line = |wanted: &[u8]| member(wanted).line(ABOUT_BYTES_MAX);
    match tool {
        b"Write" | b"Edit" | b"MultiEdit" => {
            member(b"file_path").line(PATH_BYTES_MAX).map(Pending::File)
        }
        b"NotebookEdit" => member(b"notebook_path")
            .line(PATH_BYTES_MAX)
            .map(Pending::File),
        b"TodoWrite" => Some(Pending::Plan(PlanChange::All(items(member(b"todos"))))),
        b"TaskCreate" => Some(Pending::Plan(PlanChange::Added(PlanItem {
            text: line(b"subject")?,
            status: "pending".to_owned(),
        }))),
        b"TaskUpdate" => Some(Pending::Plan(PlanChange::Updated {
            id: line(b"taskId")?,
            status: line(b"status")?,
        })),
        _ => None,
    }
}

fn items(todos: Raw<'_>) -> Vec<PlanItem> {
    let mut items = Vec::new();
    let _ = todos.scan().array(|scan| {
        let item = scan.value()?;
        if items.len() < PLAN_ITEMS_MAX {
            let line = |wanted: &[u8]| member(item, wanted).line(ABOUT_BYTES_MAX);
            items.push(PlanItem {
                text: line(b"content").unwrap_or_default(),
                status: line(b"status").unwrap_or_default(),
            });
        }
        Some(())
    });
    items
}
