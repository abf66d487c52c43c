//! Converts a turn to OpenAI chat completions, which OpenCode and many other clients use, as one message or as a stream.

use serde_json::{Value, json};

use super::message::{StreamEvent, input, pieces, tool_id};
use crate::scenario::{Turn, Usage};

/// Name of the events between which a slow model pauses.
const DELTA: &str = "content_block_delta";

/// Returns the token counts as the `usage` object of the chat completions API.
fn usage(usage: &Usage) -> Value {
    let prompt = usage.input + usage.cache_read + usage.cache_creation;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
    })
}

/// Converts the stop reason of a turn to OpenAI's `finish_reason`. Unknown reasons are passed on unchanged.
fn finish_reason(turn: &Turn) -> &str {
    match turn.stop_reason() {
        "end_turn" => "stop",
        "tool_use" => "tool_calls",
        "max_tokens" => "length",
        "refusal" => "content_filter",
        other => other,
    }
}

fn calls(turn: &Turn, id: &str) -> Vec<Value> {
    let calls = turn.tools.iter().enumerate().map(|(index, tool)| {
        // OpenCode has the same tools with lower-case names.
        let name = tool.name.to_lowercase();
        let function = json!({"name": name, "arguments": input(tool).to_string()});
        json!({"index": index, "id": tool_id(id, index), "type": "function", "function": function})
    });
    calls.collect()
}

/// Returns the answer as one message.
pub(super) fn message(turn: &Turn, id: &str, model: &str) -> Value {
    let mut message = json!({"role": "assistant", "content": turn.text});
    if !turn.tools.is_empty() {
        message["tool_calls"] = calls(turn, id).into();
    }
    json!({
        "id": id, "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(turn)}],
        "usage": usage(&turn.usage),
    })
}

/// Returns the answer as a stream. The last event has the token counts.
pub(super) fn events(turn: &Turn, id: &str, model: &str) -> Vec<StreamEvent> {
    let chunk = |delta: Value, finish: Value| {
        json!({
            "id": id, "object": "chat.completion.chunk", "created": 1, "model": model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        })
    };
    let event = |name: &'static str, data: Value| StreamEvent { name, data };
    let start = json!({"role": "assistant", "content": ""});
    let mut events = vec![event("start", chunk(start, Value::Null))];
    for (field, text) in [
        ("reasoning_content", &turn.thinking),
        ("content", &turn.text),
    ] {
        for piece in pieces(text.as_deref().unwrap_or_default(), turn.chunk) {
            events.push(event(DELTA, chunk(json!({ field: piece }), Value::Null)));
        }
    }
    for call in calls(turn, id) {
        let delta = json!({"tool_calls": [call]});
        events.push(event(DELTA, chunk(delta, Value::Null)));
    }
    let mut end = chunk(json!({}), finish_reason(turn).into());
    end["usage"] = usage(&turn.usage);
    events.push(event("end", end));
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_completion_stream_has_the_content_of_the_message() {
        let turn = Turn::text("grüße, Welt")
            .and_tool("Bash", json!({"command": "echo ü"}))
            .in_pieces(2, 0)
            .using(Usage::cached(100));
        let mut text = String::new();
        let events = events(&turn, "msg_1", "m");
        for event in &events {
            let delta = &event.data["choices"][0]["delta"];
            text.push_str(delta["content"].as_str().unwrap_or_default());
        }
        let whole = message(&turn, "msg_1", "m");
        let said = &whole["choices"][0]["message"];
        assert_eq!(said["content"], text);
        assert_eq!(said["tool_calls"][0]["function"]["name"], "bash");
        let last = &events.last().expect("an end").data;
        assert_eq!(last["usage"], whole["usage"]);
        assert_eq!(last["usage"]["total_tokens"], turn.usage.context());
        assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    }
}
