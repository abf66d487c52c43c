//! Matches messages of the server to the prompt that was sent, by id. Neither the order of ids nor the time of a message says what it
//! answers: the server's clock may be set while it runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;
use tachikoma_agents::opencode::ids;
use uuid::Uuid;

use super::{Conversation, str_of};
use crate::client::{ClientError, Failure, Request};
use tachikoma_runtime::clock::monotonic;

/// How many messages of a conversation are asked for, until one of the turn is among them: it is mostly the last one. After a
/// compaction or a change of the clock it is further back. A message has up to some 100 KiB.
pub(super) const PAGES: [usize; 3] = [2, 20, 200];

/// Messages that are remembered, so that late events of an earlier turn are recognized. They come within a second of its end.
const REMEMBERED_MAX: usize = 64;

/// The server's clock, read from its ids, for ids of our own. They have to sort after all that are in the conversation: older
/// versions of OpenCode skip a prompt that sorts before an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock {
    /// Time in the newest id that was received, in milliseconds.
    millis: u64,
    /// When that id was received.
    at: Instant,
    /// The latest time of any id that was received or sent.
    latest: u64,
}

impl ServerClock {
    /// Reads the clock from an id that was made just now; `None` if it does not have a time.
    pub fn of(id: &str) -> Option<Self> {
        let millis = ids::millis_of(id)?;
        Some(Self {
            millis,
            at: monotonic(),
            latest: millis,
        })
    }

    /// Takes an id into account that was made just now.
    pub fn heard(&mut self, id: &str) {
        if let Some(now) = Self::of(id) {
            self.follow(now);
        }
    }

    pub fn follow(&mut self, now: Self) {
        let latest = self.latest.max(now.latest);
        *self = Self { latest, ..now };
    }

    /// Takes an id into account that may be old.
    pub fn saw(&mut self, id: &str) {
        self.latest = self.latest.max(ids::millis_of(id).unwrap_or_default());
    }

    /// Returns an id for a message that begins now.
    pub fn message_id(&mut self) -> String {
        let passed = self.at.elapsed().max(Duration::from_millis(1));
        let passed = u64::try_from(passed.as_millis()).unwrap_or_default();
        self.latest = self.millis.saturating_add(passed).max(self.latest + 1);
        ids::at("msg", self.latest, Uuid::new_v4().as_u128())
    }
}

/// Which message answers which, for the latest messages.
#[derive(Debug, Default)]
pub(super) struct AnswerIndex {
    /// Ids of answers, each with the id of the message that it answers.
    parents: VecDeque<(String, String)>,
    /// Ids of our messages in turns that are over.
    past: VecDeque<String>,
}

impl AnswerIndex {
    /// Remembers an announced message.
    pub fn heard(&mut self, info: &Value) {
        let (id, parent) = (str_of(&info["id"]), str_of(&info["parentID"]));
        if info["role"] == "assistant" && !self.parents.iter().any(|(known, _)| known == id) {
            self.parents.push_back((id.to_owned(), parent.to_owned()));
        }
        if self.parents.len() > REMEMBERED_MAX {
            self.parents.pop_front();
        }
    }

    /// Remembers our messages of a turn that is over.
    pub fn turn_is_over(&mut self, messages: impl IntoIterator<Item = String>) {
        self.past.extend(messages);
        while self.past.len() > REMEMBERED_MAX {
            self.past.pop_front();
        }
    }

    /// Returns whether an event belongs to an answer to a prompt of an earlier turn. A repeated prompt is not one.
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

/// Returns the last messages of a conversation, in the server's order; `None` if the server does not answer with a list that can be
/// read.
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

/// Returns whether the error says that a turn was ended, by the bridge or by another client.
pub(super) fn is_abort(error: &Value) -> bool {
    error["name"] == "MessageAbortedError"
}
