//! Matches messages of the server with the prompt that was sent, by id. Neither the order of ids nor the time of a message shows
//! what it answers, because the server's clock may be changed while it runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;
use tachikoma_agents::opencode::ids;
use uuid::Uuid;

use super::{Conversation, str_of};
use crate::client::{ClientError, Failure, Request};
use tachikoma_runtime::clock::monotonic;

/// How many of the last messages are requested, in this order, until one of the current turn is among them. It is usually the last
/// message. After a compaction or a clock change it is further back. A message has up to some 100 KiB.
pub(super) const PAGES: [usize; 3] = [2, 20, 200];

/// Maximum number of remembered messages, by which late events of an earlier turn are recognized. They come within a second of its end.
const REMEMBERED_MAX: usize = 64;

/// The server's clock, derived from its ids, to generate ids. Generated ids must sort after all ids in the conversation: older
/// versions of OpenCode skip a prompt that sorts before an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock {
    /// Time in the newest received id, in milliseconds.
    millis: u64,
    /// When that id was received.
    at: Instant,
    /// The latest time in any id that was received or sent, in milliseconds.
    latest: u64,
}

impl ServerClock {
    /// Creates a clock from an id that the server has just generated; `None` if the id contains no time.
    pub fn of(id: &str) -> Option<Self> {
        let millis = ids::millis_of(id)?;
        Some(Self {
            millis,
            at: monotonic(),
            latest: millis,
        })
    }

    /// Updates the clock with an id that the server has just generated.
    pub fn heard(&mut self, id: &str) {
        if let Some(now) = Self::of(id) {
            self.follow(now);
        }
    }

    pub fn follow(&mut self, now: Self) {
        let latest = self.latest.max(now.latest);
        *self = Self { latest, ..now };
    }

    /// Updates the latest time with an id that may be old.
    pub fn saw(&mut self, id: &str) {
        self.latest = self.latest.max(ids::millis_of(id).unwrap_or_default());
    }

    /// Generates the id of a message that is sent now.
    pub fn message_id(&mut self) -> String {
        let passed = self.at.elapsed().max(Duration::from_millis(1));
        let passed = u64::try_from(passed.as_millis()).unwrap_or_default();
        self.latest = self.millis.saturating_add(passed).max(self.latest + 1);
        ids::at("msg", self.latest, Uuid::new_v4().as_u128())
    }
}

/// Records which of the latest messages answers which prompt.
#[derive(Debug, Default)]
pub(super) struct AnswerIndex {
    /// Ids of answers, each with the id of the message that it answers.
    parents: VecDeque<(String, String)>,
    /// Ids of the prompts of turns that have ended.
    past: VecDeque<String>,
}

impl AnswerIndex {
    /// Records a message that the server announced.
    pub fn heard(&mut self, info: &Value) {
        let (id, parent) = (str_of(&info["id"]), str_of(&info["parentID"]));
        if info["role"] == "assistant" && !self.parents.iter().any(|(known, _)| known == id) {
            self.parents.push_back((id.to_owned(), parent.to_owned()));
        }
        if self.parents.len() > REMEMBERED_MAX {
            self.parents.pop_front();
        }
    }

    /// Records that the turn of these prompts has ended.
    pub fn turn_is_over(&mut self, messages: impl IntoIterator<Item = String>) {
        self.past.extend(messages);
        while self.past.len() > REMEMBERED_MAX {
            self.past.pop_front();
        }
    }

    /// Returns whether an event belongs to the answer to a prompt of an earlier turn. A repeated prompt does not count as earlier.
    pub fn is_of_earlier_turn(&self, kind: &str, properties: &Value) -> bool {
        let message = match kind {
            "message.updated" => str_of(&properties["info"]["id"]),
            "message.part.updated" => str_of(&properties["part"]["messageID"]),
            "message.part.delta" => str_of(&properties["messageID"]),
            _ => return false,
        };
        let mut parents = self.parents.iter();
        parents.any(|(id, parent)| id == message && self.past.contains(parent))
    }
}

/// Returns the last messages of a conversation, in the server's order; `None` if the answer of the server is not a readable list.
pub(super) async fn page(
    conversation: &mut Conversation,
    id: &str,
    limit: usize,
) -> Result<Option<Vec<Value>>, ClientError> {
    let path = format!("/session/{id}/message");
    let limit = limit.to_string();
    let request = Request {
        query: &[("limit", &limit)],
        ..Request::get(&path)
    };
    let list = match conversation.client.ask(request).await {
        Ok(Value::Array(list)) => list,
        Ok(_)
        | Err(ClientError {
            failure: Failure::TooLong,
            ..
        }) => return Ok(None),
        Err(error) => return Err(error),
    };
    for message in &list {
        conversation.clock.saw(str_of(&message["info"]["id"]));
    }
    Ok(Some(list))
}

/// Returns whether an error means that the bridge or another client aborted a turn.
pub(super) fn is_abort(error: &Value) -> bool {
    error["name"] == "MessageAbortedError"
}
