//! Conversations of the fake server. Messages are stored between servers, running turns are not.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Mask of the time in an id: its lowest 36 bits.
const TIME_MASK: u64 = (1 << 36) - 1;

/// Interval at which a running turn is checked.
pub(super) const TICK: Duration = Duration::from_millis(2);

/// All conversations of the fake server, and the clients that listen to its events.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    kept: Mutex<Kept>,
    listeners: Mutex<Vec<Sender<String>>>,
    file: Option<PathBuf>,
    /// How far the clock was set forward, in milliseconds.
    ahead: AtomicU64,
}

/// State that is stored between servers.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// Messages in the order of their start: `{"info":...,"parts":[...]}`.
    conversations: BTreeMap<String, Vec<Value>>,
    numbers: u64,
    /// Running turns by conversation. A new server has none.
    #[serde(skip)]
    busy: BTreeMap<String, Stopping>,
    /// Conversations with an aborted turn that has not ended yet.
    #[serde(skip)]
    ending: Vec<String>,
    /// Conversations of sub-agents, each with its parent.
    #[serde(skip)]
    parents: BTreeMap<String, String>,
    /// Open permission requests.
    #[serde(skip)]
    asked: Vec<Value>,
}

/// Whether a running turn has to end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    #[default]
    No,
    Yes,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time in milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

impl Conversations {
    /// Reads the conversations of an earlier server from this directory, unless `forgotten` is true.
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
        // The file is replaced atomically, because tests kill the server at any time.
        let new = file.with_extension("new");
        fs::write(&new, text).expect("the state can be written");
        fs::rename(&new, file).expect("the state can be written");
    }

    /// Returns an id that sorts after all earlier ones.
    pub fn id(&self, prefix: &str) -> String {
        let mut kept = lock(&self.kept);
        kept.numbers += 1;
        let millis = (now() + self.ahead.load(Ordering::Relaxed)) & TIME_MASK;
        let number = kept.numbers;
        format!("{prefix}_{:09x}{:03x}{number:014}", millis, number % 4096)
    }

    /// Sets the clock forward.
    pub fn step_clock(&self, millis: u64) {
        self.ahead.store(millis, Ordering::Relaxed);
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

    /// Returns all messages of a conversation.
    pub fn messages(&self, id: &str) -> Vec<Value> {
        let kept = lock(&self.kept);
        kept.conversations.get(id).cloned().unwrap_or_default()
    }

    /// Returns the cost of all steps of a conversation in dollars, and their tokens.
    pub fn used(&self, id: &str) -> (f64, u64) {
        let messages = self.messages(id);
        let parts = messages
            .iter()
            .filter_map(|message| message["parts"].as_array());
        parts.flatten().fold((0.0, 0), |(cost, tokens), part| {
            (
                cost + part["cost"].as_f64().unwrap_or_default(),
                tokens + part["tokens"]["total"].as_u64().unwrap_or_default(),
            )
        })
    }

    /// Adds or replaces a message, and sends the event.
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

    /// Starts a turn, unless one is running.
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
        self.tell_idle(id);
    }

    /// First step of an abort: the server no longer reports the turn as running, although it still is.
    pub fn let_go(&self, id: &str) {
        let mut kept = lock(&self.kept);
        kept.busy.remove(id);
        kept.ending.push(id.to_owned());
        drop(kept);
        self.tell_idle(id);
    }

    /// Second step of an abort, some time later: the turn has ended.
    pub fn is_over(&self, id: &str) {
        self.tell_idle(id);
        let mut kept = lock(&self.kept);
        let ending = kept.ending.iter().position(|known| known == id);
        ending.map(|at| kept.ending.swap_remove(at));
    }

    fn tell_idle(&self, id: &str) {
        let idle = json!({"sessionID": id, "status": {"type": "idle"}});
        self.tell("session.status", &idle);
        self.tell("session.idle", &json!({"sessionID": id}));
    }

    /// Aborts a turn, and waits until it has ended.
    pub fn stop(&self, id: &str) {
        if let Some(stopping) = lock(&self.kept).busy.get_mut(id) {
            *stopping = Stopping::Yes;
        }
        // A turn that has ended meanwhile is neither stopping nor ending.
        while self.is_stopping(id) || self.is_ending(id) {
            thread::park_timeout(TICK);
        }
    }

    /// Aborts all turns.
    pub fn stop_all(&self) {
        let busy: Vec<String> = lock(&self.kept).busy.keys().cloned().collect();
        for id in busy {
            self.stop(&id);
        }
    }

    fn is_ending(&self, id: &str) -> bool {
        lock(&self.kept).ending.iter().any(|known| known == id)
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

    /// Sends an event to all listeners.
    pub fn tell(&self, kind: &str, properties: &Value) {
        let event = json!({"id": self.id("evt"), "type": kind, "properties": properties});
        let event = event.to_string();
        lock(&self.listeners).retain(|listener| listener.send(event.clone()).is_ok());
    }

    /// Ends all event streams.
    pub fn hang_up(&self) {
        lock(&self.listeners).clear();
    }

    /// Creates the conversation of a sub-agent and returns its id.
    pub fn bear(&self, parent: &str) -> String {
        let id = self.begin();
        let mut kept = lock(&self.kept);
        kept.parents.insert(id.clone(), parent.to_owned());
        id
    }

    pub fn children(&self, parent: &str) -> Value {
        let kept = lock(&self.kept);
        let children = kept.parents.iter().filter(|(_, of)| *of == parent);
        children
            .map(|(id, of)| json!({"id": id, "parentID": of}))
            .collect()
    }

    /// Creates a permission request and returns its id.
    pub fn ask(&self, session: &str) -> String {
        let id = self.id("per");
        let question = json!({
            "id": id, "sessionID": session, "permission": "bash", "patterns": ["ls"], "metadata": {"command": "ls"},
        });
        lock(&self.kept).asked.push(question.clone());
        self.tell("permission.asked", &question);
        id
    }

    pub fn asked(&self) -> Value {
        lock(&self.kept).asked.iter().cloned().collect()
    }

    /// Removes an answered permission request; `None` if it does not exist.
    pub fn replied(&self, id: &str) -> Option<()> {
        let mut kept = lock(&self.kept);
        let at = kept.asked.iter().position(|asked| asked["id"] == *id)?;
        kept.asked.swap_remove(at);
        Some(())
    }

    pub fn listen(&self) -> Receiver<String> {
        let (sender, receiver) = channel();
        let hello = json!({"id": self.id("evt"), "type": "server.connected", "properties": {}});
        // Sending cannot fail here, because the receiver still exists.
        let _ = sender.send(hello.to_string());
        lock(&self.listeners).push(sender);
        receiver
    }
}
