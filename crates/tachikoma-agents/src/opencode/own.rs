//! What runner and bridge say to each other beyond the server's own events: one JSON object per line.

use serde::{Deserialize, Serialize};

use crate::Message;

/// What the runner says to the bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// The next turn.
    Prompt {
        /// The whole prompt.
        text: String,
        /// The iteration that it begins, if it begins one.
        iteration: Option<u32>,
    },
    /// A word in the middle of a turn; between turns it is dropped.
    Aside {
        /// The word.
        text: String,
    },
    /// The turn is to end.
    Interrupt,
    /// Answer with [`Own::Here`] once the conversation is open.
    AreYouThere,
    /// Answer with [`Own::Cost`].
    WhatCost,
}

/// Returns a message as the line to write.
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
    // Strings in an object can always be written.
    serde_json::to_string(&order).unwrap_or_default() + "\n"
}

/// What the bridge says for itself, in the form of the server's events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "properties")]
pub enum Own {
    /// The conversation is open.
    #[serde(rename = "tachikoma.session")]
    Session {
        /// The server's id of it.
        id: String,
        /// The server's version.
        version: Option<String>,
        /// The model that was asked for, as `provider/model`.
        model: Option<String>,
        /// What the agent may do unasked.
        permission: String,
    },
    /// How much fits into a model's context.
    #[serde(rename = "tachikoma.window")]
    Window {
        /// The model, as `provider/model`.
        model: String,
        /// Tokens that fit.
        window: u64,
    },
    /// The answer to [`Order::AreYouThere`].
    #[serde(rename = "tachikoma.here")]
    Here {},
    /// What the conversation has cost so far: the answer to [`Order::WhatCost`].
    #[serde(rename = "tachikoma.cost")]
    Cost {
        /// In dollars.
        usd: Option<f64>,
    },
    /// A conversation was taken up again: what it has used, turns that were cut included.
    #[serde(rename = "tachikoma.taken_up")]
    TakenUp {
        /// In dollars.
        usd: f64,
        /// As the server counts them.
        tokens: serde_json::Value,
    },
    /// The server has taken a prompt.
    #[serde(rename = "tachikoma.prompted")]
    Prompted {
        /// The message, by the id that the bridge gave it.
        message: String,
        /// Whether it was there already, and its turn, which was cut, goes on.
        again: bool,
    },
    /// The model is answering; said now and then.
    #[serde(rename = "tachikoma.answering")]
    Answering {},
    /// The server is waited for.
    #[serde(rename = "tachikoma.waiting")]
    Waiting {
        /// What it does instead.
        why: String,
    },
    /// The service of the model takes nothing for so long that the turn was ended.
    #[serde(rename = "tachikoma.limited")]
    Limited {
        /// What the service says.
        message: String,
        /// When it takes requests again, in milliseconds since the epoch.
        until: i64,
    },
    /// The turn failed before the server made anything of it.
    #[serde(rename = "tachikoma.failed")]
    Failed {
        /// What happened.
        message: String,
        /// Whether the conversation is not known any more.
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
