//! Conversations of the fake server, as far as a client needs them: what was said outlives the server that it was said to,
//! and what a server was doing does not.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The lowest 36 bits of the time are in an id.
const TIME_MASK: u64 = (1 << 36) - 1;

/// All conversations, and who listens.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    kept: Mutex<Kept>,
    listeners: Mutex<Vec<Sender<String>>>,
    file: Option<PathBuf>,
}

/// What outlives a server.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// Messages in the order in which they were begun: `{"info":...,"parts":[...]}`.
    conversations: BTreeMap<String, Vec<Value>>,
    numbers: u64,
    /// What is under way; a server that begins knows of nothing.
    #[serde(skip)]
    busy: BTreeMap<String, Stopping>,
}

/// Whether a turn is to end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    #[default]
    No,
    Yes,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds since the epoch.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

impl Conversations {
    /// Those that an earlier server kept in this directory, unless they are forgotten.
    pub fn kept_in(state: Option<&PathBuf>, forgotten: bool) -> Self {
        let file = state.map(|state| state.join("conversations.json"));
        let text = file
            .as_ref()
            .filter(|_| !forgotten)
            .and_then(|file| fs::read_to_string(file).ok());
        let kept = text.and_then(|text| serde_json::from_str(&text).ok());
        Self {
            kept: Mutex::new(kept.unwrap_or_default()),
            file,
            ..Self::default()
        }
    }

    fn keep(&self, kept: &Kept) {
        let Some(file) = &self.file else { return };
        let text = serde_json::to_string(kept).expect("plain data");
        // Whole or not at all: a server is killed at any moment.
        let new = file.with_extension("new");
        fs::write(&new, text).expect("the state can be written");
        fs::rename(&new, file).expect("the state can be written");
    }

    /// An id that sorts behind all earlier ones.
    pub fn id(&self, prefix: &str) -> String {
        let mut kept = lock(&self.kept);
        kept.numbers += 1;
        let (millis, number) = (now() & TIME_MASK, kept.numbers);
        format!("{prefix}_{:09x}{:03x}{number:014}", millis, number % 4096)
    }

    pub fn begin(&self) -> String {
        let id = self.id("ses");
        let mut kept = lock(&self.kept);
        kept.conversations.insert(id.clone(), Vec::new());
        self.keep(&kept);
        id
    }

    pub fn knows(&self, id: &str) -> bool {
        lock(&self.kept).conversations.contains_key(id)
    }

    /// Everything that was said.
    pub fn messages(&self, id: &str) -> Vec<Value> {
        let kept = lock(&self.kept);
        kept.conversations.get(id).cloned().unwrap_or_default()
    }

    /// Puts a message in, or in the place of the one with its id, and tells everyone.
    pub fn put(&self, id: &str, message: Value) {
        let info = message["info"].clone();
        let mut kept = lock(&self.kept);
        let messages = kept.conversations.entry(id.to_owned()).or_default();
        let known = messages.iter_mut().find(|m| m["info"]["id"] == info["id"]);
        match known {
            Some(known) => *known = message,
            None => messages.push(message),
        }
        self.keep(&kept);
        drop(kept);
        self.tell("message.updated", &json!({"sessionID": id, "info": info}));
    }

    /// Takes a turn up, unless one is under way.
    pub fn occupy(&self, id: &str) -> bool {
        let mut kept = lock(&self.kept);
        let free = !kept.busy.contains_key(id);
        if free {
            kept.busy.insert(id.to_owned(), Stopping::No);
        }
        free
    }

    pub fn release(&self, id: &str) {
        lock(&self.kept).busy.remove(id);
        let idle = json!({"sessionID": id, "status": {"type": "idle"}});
        self.tell("session.status", &idle);
        self.tell("session.idle", &json!({"sessionID": id}));
    }

    pub fn stop(&self, id: &str) {
        if let Some(stopping) = lock(&self.kept).busy.get_mut(id) {
            *stopping = Stopping::Yes;
        }
    }

    pub fn is_stopping(&self, id: &str) -> bool {
        lock(&self.kept).busy.get(id) == Some(&Stopping::Yes)
    }

    pub fn busy(&self) -> Value {
        let kept = lock(&self.kept);
        let busy = kept
            .busy
            .keys()
            .map(|id| (id.clone(), json!({"type": "busy"})));
        Value::Object(busy.collect())
    }

    /// Tells everyone who listens.
    pub fn tell(&self, kind: &str, properties: &Value) {
        let event = json!({"id": self.id("evt"), "type": kind, "properties": properties});
        let event = event.to_string();
        lock(&self.listeners).retain(|listener| listener.send(event.clone()).is_ok());
    }

    pub fn listen(&self) -> Receiver<String> {
        let (sender, receiver) = channel();
        let hello = json!({"id": self.id("evt"), "type": "server.connected", "properties": {}});
        // It is ours.
        let _ = sender.send(hello.to_string());
        lock(&self.listeners).push(sender);
        receiver
    }
}
