//! Messages between the runner and the bridge, besides the server's events: one JSON object per line.

use serde::{Deserialize, Serialize};

use crate::Message;

/// A message from the runner to the bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Starts the next turn.
    Prompt {
        /// Text of the whole prompt.
        text: String,
        /// The iteration that the prompt begins; `None` if it begins none.
        iteration: Option<u32>,
    },
    /// A message during a turn; between turns it is dropped.
    Aside {
        /// Text of the message.
        text: String,
    },
    /// Interrupts the turn.
    Interrupt,
    /// Asks for [`Own::Here`] once the conversation is open.
    AreYouThere,
    /// Asks for [`Own::Cost`].
    WhatCost,
}

/// Returns the line that the runner writes to the stdin of the bridge for a message.
#[must_use]
pub fn line(message: &Message<'_>) -> String {
    let order = match message {
        Message::Prompt { text, iteration } => Order::Prompt {
            text: (*text).to_owned(),
            iteration: *iteration,
        },
        Message::Aside(text) => Order::Aside {
            text: (*text).to_owned(),
        },
        Message::Interrupt => Order::Interrupt,
        Message::AreYouThere => Order::AreYouThere,
        Message::WhatCost => Order::WhatCost,
    };
    // An object of strings can always be serialized.
    serde_json::to_string(&order).unwrap_or_default() + "\n"
}

/// A message of the bridge, in the format of the server's events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "properties")]
pub enum Own {
    /// The conversation is open.
    #[serde(rename = "tachikoma.session")]
    Session {
        /// The server's id of the conversation.
        id: String,
        /// Version of the server.
        version: Option<String>,
        /// The requested model, as `provider/model`.
        model: Option<String>,
        /// Permission mode of the conversation.
        permission: String,
    },
    /// The context window of a model.
    #[serde(rename = "tachikoma.window")]
    Window {
        /// The model, as `provider/model`.
        model: String,
        /// Tokens that fit into the model's context window.
        window: u64,
    },
    /// The bridge answers [`Order::AreYouThere`].
    #[serde(rename = "tachikoma.here")]
    Here {},
    /// The cost of the conversation so far: the answer to [`Order::WhatCost`].
    #[serde(rename = "tachikoma.cost")]
    Cost {
        /// Cost of the conversation in dollars; `None` if it is unknown.
        usd: Option<f64>,
    },
    /// A conversation was resumed. The fields are its usage so far, including turns that were cut.
    #[serde(rename = "tachikoma.taken_up")]
    TakenUp {
        /// Cost of the conversation so far, in dollars.
        usd: f64,
        /// Token counts of the conversation, in the server's format.
        tokens: serde_json::Value,
    },
    /// The server has accepted a prompt.
    #[serde(rename = "tachikoma.prompted")]
    Prompted {
        /// The id that the bridge gave to the message.
        message: String,
        /// Whether the message already existed on the server, so that its turn continues.
        again: bool,
    },
    /// The model is answering; sent from time to time.
    #[serde(rename = "tachikoma.answering")]
    Answering {},
    /// The bridge waits for the server.
    #[serde(rename = "tachikoma.waiting")]
    Waiting {
        /// Why the bridge has to wait for the server, as text for the user.
        why: String,
    },
    /// The usage limit of the model's service lasts so long that the turn was ended.
    #[serde(rename = "tachikoma.limited")]
    Limited {
        /// The message of the service.
        message: String,
        /// When the limit is reset, in milliseconds since the epoch.
        until: i64,
    },
    /// The turn failed before the server accepted it.
    #[serde(rename = "tachikoma.failed")]
    Failed {
        /// Error message.
        message: String,
        /// Whether the conversation no longer exists.
        lost: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line_that_the_bridge_reads() {
        let text = "two\nlines, \"quotes\", \u{2028} and \0";
        for (message, expected) in [
            (
                Message::Prompt {
                    text,
                    iteration: Some(7),
                },
                Order::Prompt {
                    text: text.into(),
                    iteration: Some(7),
                },
            ),
            (Message::Aside(text), Order::Aside { text: text.into() }),
            (Message::Interrupt, Order::Interrupt),
            (Message::AreYouThere, Order::AreYouThere),
            (Message::WhatCost, Order::WhatCost),
        ] {
            let line = line(&message);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            let read: Order = serde_json::from_str(&line).expect("an order");
            assert_eq!(read, expected);
        }
    }
}
