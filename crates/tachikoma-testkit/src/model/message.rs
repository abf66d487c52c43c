//! Converts a turn to the Messages API: to one message, or to stream events.

use serde_json::{Value, json};

use crate::scenario::{ToolCall, Turn, Usage};

/// One stream event.
#[derive(Debug, Clone)]
pub(crate) struct StreamEvent {
    pub name: &'static str,
    pub data: Value,
}

/// Returns the complete blocks of a message.
pub(crate) fn blocks(turn: &Turn, message_id: &str) -> Vec<Value> {
    let thinking = turn.thinking.iter().map(
        |thought| json!({"type": "thinking", "thinking": thought, "signature": "c2NyaXB0ZWQ="}),
    );
    let text = turn
        .text
        .iter()
        .map(|text| json!({"type": "text", "text": text}));
    let tools = turn.tools.iter().enumerate().map(|(index, tool)| {
        let id = tool_id(message_id, index);
        json!({"type": "tool_use", "id": id, "name": tool.name, "input": input(tool)})
    });
    thinking.chain(text).chain(tools).collect()
}

/// Returns the id of a tool call.
pub(crate) fn tool_id(message_id: &str, index: usize) -> String {
    let message = message_id.trim_start_matches("msg_");
    format!("toolu_{message}_{index}")
}

/// Returns the arguments of a tool call; an empty object if there are none.
pub(super) fn input(tool: &ToolCall) -> Value {
    if tool.input.is_null() {
        json!({})
    } else {
        tool.input.clone()
    }
}

/// Returns the token counts as the `usage` object of the Messages API.
pub(crate) fn usage(usage: &Usage, output: u64) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_creation,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": output,
    })
}

/// Returns the answer as one message.
pub(super) fn message(turn: &Turn, id: &str, model: &str) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model,
        "content": blocks(turn, id),
        "stop_reason": turn.stop_reason(), "stop_sequence": null,
        "usage": usage(&turn.usage, turn.usage.output),
    })
}

/// Returns the answer as a stream. The first event has one output token, the last but one all of them, as in the real API.
pub(crate) fn events(turn: &Turn, id: &str, model: &str) -> Vec<StreamEvent> {
    let mut events = Vec::new();
    let mut push = |name: &'static str, mut data: Value| {
        data["type"] = name.into();
        events.push(StreamEvent { name, data });
    };
    let start = json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null,
        "usage": usage(&turn.usage, turn.usage.output.min(1)),
    });
    push("message_start", json!({"message": start}));
    push("ping", json!({}));
    for (index, block) in blocks(turn, id).into_iter().enumerate() {
        let (empty, deltas) = opened(block, turn.chunk);
        let start = json!({"index": index, "content_block": empty});
        push("content_block_start", start);
        for delta in deltas {
            push(
                "content_block_delta",
                json!({"index": index, "delta": delta}),
            );
        }
        push("content_block_stop", json!({"index": index}));
    }
    let delta = json!({"stop_reason": turn.stop_reason(), "stop_sequence": null});
    let tokens = usage(&turn.usage, turn.usage.output);
    push("message_delta", json!({"delta": delta, "usage": tokens}));
    push("message_stop", json!({}));
    events
}

/// Returns a block as it is at its start, and the deltas that complete it.
fn opened(mut block: Value, chunk: usize) -> (Value, Vec<Value>) {
    let typed = |delta: &str, field: &str, piece: &str| json!({"type": delta, field: piece});
    match block["type"].as_str() {
        Some("thinking") => {
            let (thought, signature) =
                (take(&mut block, "thinking"), take(&mut block, "signature"));
            let mut deltas: Vec<Value> = pieces(&thought, chunk)
                .map(|piece| typed("thinking_delta", "thinking", piece))
                .collect();
            deltas.push(typed("signature_delta", "signature", &signature));
            (block, deltas)
        }
        Some("text") => {
            let text = take(&mut block, "text");
            let deltas = pieces(&text, chunk).map(|piece| typed("text_delta", "text", piece));
            (block, deltas.collect())
        }
        _ => {
            let input = block["input"].to_string();
            block["input"] = json!({});
            let delta = |piece| typed("input_json_delta", "partial_json", piece);
            (block, pieces(&input, chunk).map(delta).collect())
        }
    }
}

fn take(block: &mut Value, field: &str) -> String {
    let text = block[field].as_str().unwrap_or_default().to_owned();
    block[field] = "".into();
    text
}

/// Splits a text into pieces of `chunk` characters; 0 means one piece.
pub(super) fn pieces(text: &str, chunk: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = match chunk {
            0 => rest.len(),
            _ => rest
                .char_indices()
                .nth(chunk)
                .map_or(rest.len(), |(index, _)| index),
        };
        let (piece, left) = rest.split_at(end);
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_stream_has_the_content_of_the_message() {
        let turn = Turn::text("grüße, Welt")
            .thinking("hm hm")
            .and_tool("Bash", json!({"command": "echo ü"}))
            .in_pieces(2, 0);
        let (mut thought, mut text, mut input) = (String::new(), String::new(), String::new());
        for event in events(&turn, "msg_1", "m") {
            let delta = &event.data["delta"];
            thought.push_str(delta["thinking"].as_str().unwrap_or_default());
            text.push_str(delta["text"].as_str().unwrap_or_default());
            input.push_str(delta["partial_json"].as_str().unwrap_or_default());
        }
        assert_eq!((thought.as_str(), text.as_str()), ("hm hm", "grüße, Welt"));
        assert_eq!(input, r#"{"command":"echo ü"}"#);
    }

    #[test]
    fn the_last_event_has_all_output_tokens() {
        let turn = Turn::text("a").using(Usage::cached(100));
        let events = events(&turn, "msg_1", "m");
        let start = &events[0].data["message"]["usage"];
        let delta = &events[events.len() - 2].data["usage"];
        assert_eq!(
            (
                start["output_tokens"].as_u64(),
                delta["output_tokens"].as_u64()
            ),
            (Some(1), Some(7))
        );
        assert_eq!(message(&turn, "msg_1", "m")["usage"], *delta);
    }
}
