//! State of the conversation of one process. The readers of lines update it.

use std::collections::VecDeque;

use super::scan::{Raw, Walk, member, members};
use super::window::Windows;
use crate::agent_event::rounded;
use crate::{AgentEvent, PlanChange, Reading, SessionInfo};

/// Limit of an id or a name in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The effect of a tool call, if it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The tool call writes this file.
    File(String),
    /// The tool call changes the agent's to-do list.
    Plan(PlanChange),
}

/// What is known of the conversation of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    pub session: SessionInfo,
    pub windows: Windows,
    /// Ids of running tool calls that write a file or change the to-do list, each with that effect.
    pub pending: Vec<(String, Pending)>,
    pub costs: Costs,
    pub turn: Turn,
    latest: Latest,
    /// The message that is being streamed, with its usage so far, which is more exact than that of finished blocks.
    streamed: Streamed,
    /// Context window in tokens that is assumed if the agent does not report one.
    pub assumed_window: Option<u64>,
    /// Message ids of the latest model calls of sub-agents, so that each call counts once.
    pub below: VecDeque<String>,
    /// Number of measured messages. Repeated reports of one message count once.
    pub readings: u64,
}

/// State of the current turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Set if the usage limit rejected a request. The inner value is the time of the reset; `None` if it is unknown.
    pub rejected: Option<Option<tachikoma_core::Timestamp>>,
    /// The agent's name of the last error of a request.
    pub error: String,
    /// Whether the agent sent a request to the model: an answer or a failed request was seen.
    pub requested: bool,
}

/// The latest reading.
#[derive(Clone, Debug, Default, PartialEq)]
struct Latest {
    id: String,
    model: String,
    tokens: u64,
    estimated: bool,
    answering: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Streamed {
    id: String,
    model: String,
    usage: Usage,
}

impl Conversation {
    /// Returns the latest reading; `None` before the first and after the conversation was emptied.
    pub fn reading(&self) -> Option<Reading> {
        (self.latest != Latest::default()).then(|| self.latest_reading())
    }

    /// Returns the context window of the model that answers now or next; `None` if it is unknown.
    pub fn window(&self) -> Option<u64> {
        let wanted = self.session.model.as_deref();
        let assumed = self.assumed_window;
        match self.latest.model.as_str() {
            "" => wanted.and_then(|model| self.windows.of(model, None, assumed)),
            model => self.windows.of(model, wanted, assumed),
        }
    }

    fn latest_reading(&self) -> Reading {
        Reading {
            tokens: self.latest.tokens,
            window: self.window(),
            model: Some(self.latest.model.clone()).filter(|model| !model.is_empty()),
            estimated: self.latest.estimated,
            answering: self.latest.answering,
        }
    }

    /// Reads the usage of a message of the main thread. A finished block reports the usage at the start of its message.
    pub fn message_measured(
        &mut self,
        id: Raw<'_>,
        model: Raw<'_>,
        usage: Raw<'_>,
        seen: &mut Vec<AgentEvent>,
    ) {
        let id = id.bare().unwrap_or_default();
        if !id.is_empty() && id == self.streamed.id.as_bytes() {
            return;
        }
        let mut counted = Usage::default();
        counted.update(usage);
        let model = model.line(NAME_BYTES_MAX).unwrap_or_default();
        let id = String::from_utf8_lossy(id);
        // The first block of a call counts for the whole call, because without streaming nothing else reports the end of the call.
        let again = !id.is_empty() && self.latest.id == id;
        self.measured(&id, &model, counted.tokens(), false, seen);
        if !again && counted.tokens() > 0 {
            seen.push(AgentEvent::CallEnded(counted.tokens()));
        }
    }

    fn measured(
        &mut self,
        id: &str,
        model: &str,
        tokens: u64,
        answering: bool,
        seen: &mut Vec<AgentEvent>,
    ) {
        // A request is never empty. A service that does not count tokens reports 0.
        if tokens == 0 {
            return;
        }
        let again = !id.is_empty() && self.latest.id == id;
        if !again {
            self.readings += 1;
        } else if self.latest.tokens == tokens && self.latest.answering == answering {
            return;
        }
        self.latest.answering = answering;
        self.latest.id.clear();
        self.latest.id.push_str(id);
        self.latest.model.clear();
        self.latest.model.push_str(model);
        self.latest.tokens = tokens;
        self.latest.estimated = false;
        seen.push(AgentEvent::Measured(self.latest_reading()));
    }

    /// Takes the agent's estimate of the context after a compaction. The next message has the exact number.
    pub fn estimated(&mut self, tokens: u64, seen: &mut Vec<AgentEvent>) {
        self.latest.id.clear();
        self.latest.tokens = tokens;
        self.latest.estimated = true;
        self.latest.answering = false;
        seen.push(AgentEvent::Measured(self.latest_reading()));
    }

    /// Reads a piece of a streamed message.
    pub fn stream_event(&mut self, line: &[u8], seen: &mut Vec<AgentEvent>) -> Option<()> {
        let [event, parent] = members(line, [b"event", b"parent_tool_use_id"])?;
        let names: [&[u8]; 4] = [b"type", b"message", b"usage", b"delta"];
        let [kind, message, usage, delta] = members(event.bytes(), names)?;
        if kind.bare() == Some(b"ping") {
            seen.push(AgentEvent::Ping);
            return Some(());
        }
        if parent.is_some() {
            return Some(());
        }
        let (answering, ended) = match kind.bare()? {
            b"message_start" => {
                self.message_started(message)?;
                (true, false)
            }
            b"message_delta" => {
                self.streamed.usage.update(usage);
                // An answer without a tool call is the last one of its turn, so the turn is about to end.
                (
                    member(delta, b"stop_reason").bare() != Some(b"tool_use"),
                    true,
                )
            }
            _ => return Some(()),
        };
        let Streamed { id, model, usage } = std::mem::take(&mut self.streamed);
        self.measured(&id, &model, usage.tokens(), answering, seen);
        if ended && usage.tokens() > 0 {
            seen.push(AgentEvent::CallEnded(usage.tokens()));
        }
        self.streamed = Streamed { id, model, usage };
        Some(())
    }

    fn message_started(&mut self, message: Raw<'_>) -> Option<()> {
        self.turn.requested = true;
        let mut streamed = Streamed::default();
        message.scan().object(|key, scan| {
            let value = scan.value()?;
            match key {
                b"id" => streamed.id = value.string().unwrap_or_default(),
                b"model" => streamed.model = value.line(NAME_BYTES_MAX).unwrap_or_default(),
                b"usage" => streamed.usage.update(value),
                _ => {}
            }
            Some(Walk::On)
        })?;
        self.streamed = streamed;
        Some(())
    }

    /// The answer to `/context` contains the window.
    pub fn context_usage(&mut self, usage: Raw<'_>, seen: &mut Vec<AgentEvent>) {
        let window = member(usage, b"raw_max_tokens").count();
        let model = self.answering_model();
        self.learn_window(&model, window, seen);
    }

    /// Returns the model of the latest message, or the requested model.
    pub fn answering_model(&self) -> String {
        let latest = Some(&self.latest.model).filter(|model| !model.is_empty());
        latest
            .or(self.session.model.as_ref())
            .cloned()
            .unwrap_or_default()
    }

    pub fn learn_window(&mut self, model: &str, window: Option<u64>, seen: &mut Vec<AgentEvent>) {
        if let Some(window) = window
            && self.windows.learn(model, window)
        {
            let model = model.to_owned();
            seen.push(AgentEvent::WindowKnown { model, window });
        }
    }

    /// Handles the reset of the conversation. Its context size is unknown until the next message.
    pub fn conversation_reset(&mut self, line: &[u8], seen: &mut Vec<AgentEvent>) -> Option<()> {
        let [session, new] = members(line, [b"session_id", b"new_conversation_id"])?;
        let session_id = new
            .line(NAME_BYTES_MAX)
            .or_else(|| session.line(NAME_BYTES_MAX));
        if let Some(id) = &session_id {
            id.clone_into(&mut self.session.session_id);
        }
        self.latest = Latest::default();
        self.streamed = Streamed::default();
        seen.push(AgentEvent::SessionReset { session_id });
        Some(())
    }

    /// Handles the start of a turn, perhaps in another conversation.
    pub fn init(&mut self, line: &[u8], seen: &mut Vec<AgentEvent>) -> Option<()> {
        let names: [&[u8]; 4] = [
            b"session_id",
            b"model",
            b"claude_code_version",
            b"permissionMode",
        ];
        let fields = members(line, names)?;
        let [id, model, version, mode] = fields.map(|field| field.line(NAME_BYTES_MAX));
        let info = SessionInfo {
            session_id: id.unwrap_or_default(),
            model,
            version,
            permission_mode: mode,
        };
        if info != self.session {
            if info.session_id != self.session.session_id {
                self.latest = Latest::default();
            }
            seen.push(AgentEvent::SessionKnown(info.clone()));
            self.session = info;
        }
        Some(())
    }
}

/// Token counts of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    input: u64,
    cache_read: u64,
    cache_creation: u64,
    output: u64,
}

impl Usage {
    /// Takes the reported fields; other fields stay unchanged.
    pub fn update(&mut self, usage: Raw<'_>) {
        let mut found = 0;
        // A value that is not an object has no fields.
        let _ = usage.scan().object(|key, scan| {
            let field = match key {
                b"input_tokens" => &mut self.input,
                b"cache_read_input_tokens" => &mut self.cache_read,
                b"cache_creation_input_tokens" => &mut self.cache_creation,
                b"output_tokens" => &mut self.output,
                _ => return scan.skip(),
            };
            if let Some(count) = scan.value()?.count() {
                *field = count;
            }
            found += 1;
            Some(if found == 4 { Walk::Done } else { Walk::On })
        });
    }

    /// Returns how many tokens of the context the message uses.
    pub fn tokens(self) -> u64 {
        self.input + self.cache_read + self.cache_creation + self.output
    }
}

/// The cost of a process. The totals that the agent reports include earlier processes of the conversation and earlier turns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// The total of the conversation at the last result; `None` before the first result.
    total: Option<f64>,
    run: f64,
}

impl Costs {
    /// Takes a new total of the conversation, and the cost since the last result if it is known. Returns the cost of the turn.
    pub fn add(&mut self, total: Option<f64>, reported: Option<f64>) -> f64 {
        let since = match (total, self.total) {
            // A lower total belongs to another conversation.
            (Some(total), Some(before)) if total >= before => Some(total - before),
            (total, _) => total,
        };
        let cost = reported.or(since).unwrap_or_default().max(0.0);
        self.total = total.or(self.total);
        self.run += cost;
        cost
    }

    /// Returns the cost of this process, without rounding errors.
    pub fn run_usd(&self) -> f64 {
        rounded(self.run)
    }
}
