//! What is known of one process while its lines come in, and which line is read by whom.

use std::collections::VecDeque;

use super::message::{Pending, Usage, member};
use super::result::Costs;
use super::scan::{Raw, Scan, Walk};
use super::system::ping;
use super::window::Windows;
use crate::report::Standing;
use crate::{Observation, Reading, SessionInfo, TurnResult};

/// How much is kept of a line that is not understood.
const NOT_UNDERSTOOD_BYTES_MAX: usize = 4096;

/// How long an id or a name can be.
const NAME_BYTES_MAX: usize = 256;

/// Most lines of a talkative agent begin like this, and nothing in them is needed: the text comes again when its block
/// is finished.
const DELTA: &[u8] = br#"{"type":"stream_event","event":{"type":"content_block_delta""#;

/// Reads the output of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoder {
    pub(super) session: SessionInfo,
    pub(super) windows: Windows,
    pub(super) pending: Vec<(String, Pending)>,
    pub(super) costs: Costs,
    pub(super) turn: Turn,
    latest: Latest,
    /// The message that comes in pieces, with the numbers so far: more exact than those of its finished blocks.
    streamed: Streamed,
    /// The window where the agent does not tell.
    assumed_window: Option<u64>,
    /// The calls of agents below this one that were counted last.
    pub(super) below: VecDeque<String>,
    readings: u64,
    unknown_lines: u64,
}

/// What was seen since the last result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// A request was rejected by the allowance, and when that is renewed.
    pub rejected: Option<Option<tachikoma_core::Timestamp>>,
    /// The agent's word for the last failed request.
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

/// What kind of line it is.
struct Head<'a> {
    kind: &'a [u8],
    subtype: &'a [u8],
}

impl Decoder {
    /// Returns a decoder for a process that goes on with a conversation that has cost so much before. Newer versions
    /// tell the two apart themselves; this is for those that do not.
    #[must_use]
    pub fn resuming(session_cost_usd: f64) -> Self {
        Self {
            costs: Costs::after(session_cost_usd),
            ..Self::default()
        }
    }

    /// Returns a decoder that takes a model's window for this size unless the agent says otherwise.
    #[must_use]
    pub fn assuming(window_tokens: Option<u64>) -> Self {
        Self {
            assumed_window: window_tokens,
            ..Self::default()
        }
    }

    /// Reads one line and adds what it says to `seen`. A line that is not understood is counted and kept, bounded.
    pub fn observe(&mut self, line: &[u8], seen: &mut Vec<Observation>) {
        let line = line.trim_ascii();
        // A line that was cut off ends elsewhere, but for the rare one that was cut at a bracket.
        if line.ends_with(b"}") {
            if line.starts_with(DELTA) {
                return;
            }
            let before = seen.len();
            if self.read(line, seen).is_some() {
                return;
            }
            seen.truncate(before);
        } else if line.is_empty() {
            return;
        }
        self.unknown_lines += 1;
        let head = line.get(..NOT_UNDERSTOOD_BYTES_MAX).unwrap_or(line);
        let text = String::from_utf8_lossy(head).into_owned();
        seen.push(Observation::NotUnderstood(text));
    }

    fn read(&mut self, line: &[u8], seen: &mut Vec<Observation>) -> Option<()> {
        let Some(head) = Head::at_start(line) else {
            return self.read_without_head(line, seen);
        };
        self.read_as(&head, line, seen)
    }

    /// Newer versions write the type of results late. Where it turns out to be something else, it is read again.
    fn read_without_head(&mut self, line: &[u8], seen: &mut Vec<Observation>) -> Option<()> {
        if self.result(line, seen)? {
            return Some(());
        }
        self.read_as(&Head::anywhere(line)?, line, seen)
    }

    fn read_as(&mut self, head: &Head<'_>, line: &[u8], seen: &mut Vec<Observation>) -> Option<()> {
        match head.kind {
            b"assistant" => self.assistant(line, seen),
            b"user" => self.user(line, seen),
            b"stream_event" => self.stream_event(line, seen),
            b"system" => self.system(head.subtype, line, seen),
            b"result" => self.result(line, seen).map(|_| ()),
            b"rate_limit_event" => self.rate_limit(line, seen),
            b"control_response" => self.control_response(line, seen),
            b"control_request" => self.control_request(line, seen),
            b"conversation_reset" => self.conversation_reset(line, seen),
            b"keep_alive" => ping(seen),
            // Nothing in them is needed: marks of prompts on their way, canceled requests, the seconds that a tool has run.
            b"command_lifecycle" | b"control_cancel_request" | b"tool_progress" => Some(()),
            _ => None,
        }
    }

    /// Returns how many lines were not understood.
    #[must_use]
    pub fn unknown_lines(&self) -> u64 {
        self.unknown_lines
    }

    /// Returns what is known by now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            unknown_lines: self.unknown_lines,
            readings: self.readings,
            reading: self.reading(),
            session: self.session.clone(),
            window: self.window(),
            cost_usd: self.cost_usd(),
        }
    }

    /// Returns how many messages were measured; repeated reports of one are one.
    #[must_use]
    pub fn readings(&self) -> u64 {
        self.readings
    }

    /// Returns the latest reading; none before the first and after the conversation was emptied.
    #[must_use]
    pub fn reading(&self) -> Option<Reading> {
        (self.latest != Latest::default()).then(|| self.latest_reading())
    }

    /// Returns the conversation, as far as it is known.
    #[must_use]
    pub fn session(&self) -> &SessionInfo {
        &self.session
    }

    /// Returns the window of the model that answers, or will.
    #[must_use]
    pub fn window(&self) -> Option<u64> {
        let wanted = self.session.model.as_deref();
        let assumed = self.assumed_window;
        match self.latest.model.as_str() {
            "" => wanted.and_then(|model| self.windows.of(model, None, assumed)),
            model => self.windows.of(model, wanted, assumed),
        }
    }

    /// Returns what this process has cost so far.
    #[must_use]
    pub fn cost_usd(&self) -> f64 {
        self.costs.run_usd()
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

    /// A finished block of a message of the main thread tells the message's usage as it was when it began.
    pub(super) fn message_measured(
        &mut self,
        id: Raw<'_>,
        model: Raw<'_>,
        usage: Raw<'_>,
        seen: &mut Vec<Observation>,
    ) {
        let id = id.bare().unwrap_or_default();
        if !id.is_empty() && id == self.streamed.id.as_bytes() {
            return;
        }
        let mut counted = Usage::default();
        counted.update(usage);
        let model = model.line(NAME_BYTES_MAX).unwrap_or_default();
        let id = String::from_utf8_lossy(id);
        // The first block of a call stands for all of it: without pieces nothing else tells its end.
        let again = !id.is_empty() && self.latest.id == id;
        self.measured(&id, &model, counted.tokens(), false, seen);
        if !again && counted.tokens() > 0 {
            seen.push(Observation::CallEnded(counted.tokens()));
        }
    }

    fn measured(
        &mut self,
        id: &str,
        model: &str,
        tokens: u64,
        answering: bool,
        seen: &mut Vec<Observation>,
    ) {
        // No request is empty: a service that counts nothing says 0.
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
        seen.push(Observation::Measured(self.latest_reading()));
    }

    /// The agent says how full the context is after a summary replaced it; only the next message knows.
    pub(super) fn estimated(&mut self, tokens: u64, seen: &mut Vec<Observation>) {
        self.latest.id.clear();
        self.latest.tokens = tokens;
        self.latest.estimated = true;
        self.latest.answering = false;
        seen.push(Observation::Measured(self.latest_reading()));
    }

    /// A piece of a message.
    fn stream_event(&mut self, line: &[u8], seen: &mut Vec<Observation>) -> Option<()> {
        let (mut event, mut parent) = (Raw::default(), Raw::default());
        Scan::new(line).object(|key, scan| {
            let field = match key {
                b"event" => &mut event,
                b"parent_tool_use_id" => &mut parent,
                _ => return scan.skip(),
            };
            *field = scan.value()?;
            Some(Walk::On)
        })?;
        let (mut kind, mut message, mut usage) = (Raw::default(), Raw::default(), Raw::default());
        let mut delta = Raw::default();
        event.scan().object(|key, scan| {
            let field = match key {
                b"type" => &mut kind,
                b"message" => &mut message,
                b"usage" => &mut usage,
                b"delta" => &mut delta,
                _ => return scan.skip(),
            };
            *field = scan.value()?;
            Some(Walk::On)
        })?;
        if kind.bare() == Some(b"ping") {
            return ping(seen);
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
                // An answer that calls no tool is the last one of its turn: it is over with the result.
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
            seen.push(Observation::CallEnded(usage.tokens()));
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

    /// The answer to `/context` tells the window.
    pub(super) fn context_usage(&mut self, usage: Raw<'_>, seen: &mut Vec<Observation>) {
        if !usage.is_some() {
            return;
        }
        let mut window = None;
        let _ = usage.scan().object(|key, scan| {
            let value = scan.value()?;
            if key == b"raw_max_tokens" {
                window = value.count();
            }
            Some(Walk::On)
        });
        let model = self.answering_model();
        self.learn_window(&model, window, seen);
    }

    /// The model of the latest message, else the one that was asked for.
    pub(super) fn answering_model(&self) -> String {
        let latest = Some(&self.latest.model).filter(|model| !model.is_empty());
        latest
            .or(self.session.model.as_ref())
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn learn_window(
        &mut self,
        model: &str,
        window: Option<u64>,
        seen: &mut Vec<Observation>,
    ) {
        if let Some(window) = window
            && self.windows.learn(model, window)
        {
            let model = model.to_owned();
            seen.push(Observation::WindowKnown { model, window });
        }
    }

    pub(super) fn note_error(&mut self, error: &str) {
        error.clone_into(&mut self.turn.error);
    }

    /// The conversation was emptied. What was known of its fill is not true any more.
    fn conversation_reset(&mut self, line: &[u8], seen: &mut Vec<Observation>) -> Option<()> {
        let (mut session, mut new) = (Raw::default(), Raw::default());
        Scan::new(line).object(|key, scan| {
            let value = scan.value()?;
            match key {
                b"session_id" => session = value,
                b"new_conversation_id" => new = value,
                _ => {}
            }
            Some(Walk::On)
        })?;
        let session_id = new
            .line(NAME_BYTES_MAX)
            .or_else(|| session.line(NAME_BYTES_MAX));
        if let Some(id) = &session_id {
            id.clone_into(&mut self.session.session_id);
        }
        self.latest = Latest::default();
        self.streamed = Streamed::default();
        seen.push(Observation::SessionReset { session_id });
        Some(())
    }

    /// A turn begins, in a conversation that is perhaps another one than before.
    pub(super) fn init(&mut self, line: &[u8], seen: &mut Vec<Observation>) -> Option<()> {
        let mut fields = [Raw::default(); 4];
        let mut found = 0;
        Scan::new(line).object(|key, scan| {
            let field = match key {
                b"session_id" => &mut fields[0],
                b"model" => &mut fields[1],
                b"claude_code_version" => &mut fields[2],
                b"permissionMode" => &mut fields[3],
                _ => return scan.skip(),
            };
            *field = scan.value()?;
            found += 1;
            Some(if found == fields.len() {
                Walk::Done
            } else {
                Walk::On
            })
        })?;
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
            seen.push(Observation::SessionKnown(info.clone()));
            self.session = info;
        }
        Some(())
    }

    pub(super) fn ended(&mut self, result: TurnResult, seen: &mut Vec<Observation>) {
        self.turn = Turn::default();
        seen.push(Observation::Resulted(Box::new(result)));
    }
}

impl<'a> Head<'a> {
    /// Most lines begin with their type.
    fn at_start(line: &'a [u8]) -> Option<Self> {
        let (kind, rest) = word(line.strip_prefix(br#"{"type":""#)?)?;
        let subtype = rest.strip_prefix(br#","subtype":""#).and_then(word);
        if kind == b"system" && subtype.is_none() {
            return Self::anywhere(line);
        }
        let subtype = subtype.map_or(&b""[..], |(subtype, _)| subtype);
        Some(Self { kind, subtype })
    }

    fn anywhere(line: &'a [u8]) -> Option<Self> {
        let (mut kind, mut subtype) = (Raw::default(), Raw::default());
        Scan::new(line).object(|key, scan| {
            let value = scan.value()?;
            match key {
                b"type" => kind = value,
                b"subtype" => subtype = value,
                _ => {}
            }
            Some(Walk::On)
        })?;
        Some(Self {
            kind: kind.bare()?,
            subtype: subtype.bare().unwrap_or_default(),
        })
    }
}

/// Splits a string of a few plain characters from what follows its closing quote.
fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'_';
    let end = bytes.iter().position(|byte| !plain(byte))?;
    let (word, rest) = bytes.split_at(end);
    Some((word, rest.strip_prefix(b"\"")?))
}
