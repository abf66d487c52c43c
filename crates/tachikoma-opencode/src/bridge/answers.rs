//! Matches messages of the server to the prompt that was sent, by id. Neither the order of ids nor the time of a message says what it
//! answers: the server's clock may be set while it runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;
use tachikoma_agents::opencode::ids;
use uuid::Uuid;

use super::open::PATIENCE;
use super::turn::Turn;
use super::{Conversation, word};
use crate::client::{ClientError, Request};
use tachikoma_runtime::clock::monotonic;

/// How many messages of a conversation are asked for, until one of the turn is among them: it is mostly the last one. After a
/// compaction or a change of the clock it is further back. A message has up to some 100 KiB.
pub(super) const PAGES: [usize; 3] = [2, 20, 200];

/// Messages that are remembered, so that late events of an earlier turn are recognized. They come within a second of its end.
const REMEMBERED_MAX: usize = 64;

/// The server's clock, as its ids tell it, for ids of our own. They have to sort after all that are in the conversation: older
/// versions of OpenCode skip a prompt that sorts before an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock {
    /// Time of the newest id that was heard, in milliseconds.
    millis: u64,
    /// When it was heard.
    at: Instant,
    /// The latest time of any id that was heard or given.
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
pub(super) struct Answers {
    /// Ids of answers, each with the id of the message that it answers.
    parents: VecDeque<(String, String)>,
    /// Ids of our messages in turns that are over.
    past: VecDeque<String>,
}

impl Answers {
    /// Takes an announced message in.
    pub fn heard(&mut self, info: &Value) {
        let (id, parent) = (word(&info["id"]), word(&info["parentID"]));
        if info["role"] == "assistant" && !self.parents.iter().any(|(known, _)| known == id) {
            self.parents.push_back((id.to_owned(), parent.to_owned()));
        }
        if self.parents.len() > REMEMBERED_MAX {
            self.parents.pop_front();
        }
    }

    pub fn turn_is_over(&mut self, turn: &Turn) {
        self.past.push_back(turn.message.clone());
        self.past.extend(turn.asides.iter().cloned());
        while self.past.len() > REMEMBERED_MAX {
            self.past.pop_front();
        }
    }

    /// Returns whether an event tells of an answer to a prompt of a turn that is over. A prompt that is given again is not.
    pub fn is_of_earlier_turn(&self, kind: &str, properties: &Value) -> bool {
        let message = match kind {
            "message.updated" => word(&properties["info"]["id"]),
            "message.part.updated" => word(&properties["part"]["messageID"]),
            "message.part.delta" => word(&properties["messageID"]),
            _ => return false,
        };
        let mut parents = self.parents.iter();
        parents.any(|(id, parent)| id == message && self.past.contains(parent))
    }
}

impl Turn {
    /// Returns the newest message of a list that belongs to the turn: our prompt, what was said in the middle of the turn, what the
    /// server told itself to go on with after a compaction, or an answer to one of them.
    pub(super) fn newest_of<'a>(&self, list: &'a [Value]) -> Option<&'a Value> {
        let is_ours = |id: &str| id == self.message || self.asides.iter().any(|aside| aside == id);
        let mut own: Vec<&str> = Vec::new();
        let mut begun = false;
        let mut newest = None;
        for message in list {
            let info = &message["info"];
            let id = word(&info["id"]);
            let belongs = if info["role"] == "assistant" {
                let parent = word(&info["parentID"]);
                is_ours(parent) || own.contains(&parent)
            } else if is_ours(id) {
                begun = true;
                true
            } else {
                let is_own = begun && is_of_compaction(message);
                own.extend(is_own.then_some(id));
                is_own
            };
            if belongs {
                newest = Some(message);
            }
        }
        newest
    }
}

/// Returns whether the server wrote a message of the user's role itself, to compact the conversation or to go on after that.
fn is_of_compaction(message: &Value) -> bool {
    let mut parts = message["parts"].as_array().into_iter().flatten();
    parts.any(|part| part["type"] == "compaction" || part["synthetic"] == true)
}

/// Returns the newest message of the turn under way; null where there is none.
pub(super) async fn newest_message(
    conversation: &mut Conversation,
    id: &str,
) -> Result<Value, ClientError> {
    for limit in PAGES {
        let Some(list) = page(conversation, id, limit).await? else {
            break;
        };
        let newest = conversation.turn.as_ref();
        if let Some(newest) = newest.and_then(|turn| turn.newest_of(&list)) {
            return Ok(newest.clone());
        }
        if list.len() < limit {
            break;
        }
    }
    Ok(Value::Null)
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
        ..Request::get(&path, PATIENCE)
    };
    let list = match conversation.client.ask(request).await {
        Ok(Value::Array(list)) => list,
        Ok(_) | Err(ClientError::TooLong { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    for message in &list {
        conversation.clock.saw(word(&message["info"]["id"]));
    }
    Ok(Some(list))
}
