//! Messages to Claude Code on its stdin: one JSON object per line. Other text would end the process.

use serde_json::json;

use crate::{ARE_YOU_THERE, Message, WHAT_COST};

/// Returns a message as the line to write.
#[must_use]
pub fn line(message: &Message<'_>) -> String {
    let value = match message {
        // During a turn the agent reads the message after the running tool call.
        Message::Prompt { text: prompt, .. } | Message::Aside(prompt) => json!({
            "type": "user",
            "message": { "role": "user", "content": prompt },
        }),
        Message::Interrupt => request("interrupt", &json!({ "subtype": "interrupt" })),
        // The agent answers without a request to the model. The answer contains the size of the context window.
        Message::AreYouThere => request(
            ARE_YOU_THERE,
            &json!({ "subtype": "get_context_usage", "detail": "summary" }),
        ),
        // The agent answers at once, even during a turn. Older versions answer with an error.
        Message::WhatCost => request(WHAT_COST, &json!({ "subtype": "get_session_cost" })),
    };
    let mut line = value.to_string();
    line.push('\n');
    line
}

fn request(id: &str, request: &serde_json::Value) -> serde_json::Value {
    json!({ "type": "control_request", "request_id": id, "request": request })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line() {
        let prompt = "two\nlines, \"quotes\", \u{2028} and \0";
        for message in [
            Message::Prompt {
                text: prompt,
                iteration: None,
            },
            Message::Aside(prompt),
            Message::Interrupt,
            Message::AreYouThere,
            Message::WhatCost,
        ] {
            let line = line(&message);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            let value: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
            if let Message::Prompt { .. } | Message::Aside(_) = message {
                assert_eq!(value["message"]["content"], prompt);
            }
        }
    }
}
