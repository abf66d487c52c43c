//! Reads the output of one process line by line: each kind of line has its reader.

use super::conversation::Conversation;
use super::scan::members;
use super::{message, result, system};
use crate::AgentEvent;
use crate::report::Standing;

/// Maximum number of bytes that are kept of a line that is not understood.
const NOT_UNDERSTOOD_BYTES_MAX: usize = 4096;

/// Most lines in streaming mode begin like this and are ignored: the whole text follows when its block
/// is finished.
const DELTA: &[u8] = br#"{"type":"stream_event","event":{"type":"content_block_delta""#;

/// Reads the output of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoder {
    conversation: Conversation,
    unknown_lines: u64,
}

/// The kind of a line.
struct Head<'a> {
    kind: &'a [u8],
    subtype: &'a [u8],
}

impl Decoder {
    /// Returns a decoder that assumes this context window unless the agent reports it.
    #[must_use]
    pub fn assuming(window_tokens: Option<u64>) -> Self {
        let mut decoder = Self::default();
        decoder.conversation.assumed_window = window_tokens;
        decoder
    }

    /// Reads one line and adds its events to `seen`. A line that is not understood is counted, and its start is reported.
    pub fn decode(&mut self, line: &[u8], seen: &mut Vec<AgentEvent>) {
        let line = line.trim_ascii();
        // A truncated line usually does not end with a brace.
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
        seen.push(AgentEvent::NotUnderstood(text));
    }

    fn read(&mut self, line: &[u8], seen: &mut Vec<AgentEvent>) -> Option<()> {
        let head = match Head::at_start(line) {
            Some(head) => head,
            // Newer versions write the type of a result at the end of the line.
            None if result::result(&mut self.conversation, line, seen)? => return Some(()),
            None => Head::anywhere(line)?,
        };
        match head.kind {
            b"assistant" => message::assistant(&mut self.conversation, line, seen),
            b"user" => message::user(&mut self.conversation, line, seen),
            b"stream_event" => self.conversation.stream_event(line, seen),
            b"system" => system::system(&mut self.conversation, head.subtype, line, seen),
            b"result" => result::result(&mut self.conversation, line, seen).map(|_| ()),
            b"rate_limit_event" => system::rate_limit(&mut self.conversation, line, seen),
            b"control_response" => system::control_response(&mut self.conversation, line, seen),
            b"control_request" => system::control_request(line, seen),
            b"conversation_reset" => self.conversation.conversation_reset(line, seen),
            b"keep_alive" => {
                seen.push(AgentEvent::Ping);
                Some(())
            }
            // These lines are not needed: states of prompts, canceled requests, the running time of a tool.
            b"command_lifecycle" | b"control_cancel_request" | b"tool_progress" => Some(()),
            _ => None,
        }
    }

    /// Returns the session, context, cost and number of unknown lines that the decoder has found so far.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            unknown_lines: self.unknown_lines,
            readings: self.conversation.readings,
            reading: self.conversation.reading(),
            session: self.conversation.session.clone(),
            window: self.conversation.window(),
            cost_usd: self.conversation.costs.run_usd(),
        }
    }
}

impl<'a> Head<'a> {
    /// Reads the type at the start of the line, where most lines have it. This is faster than a search.
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
        let [kind, subtype] = members(line, [b"type", b"subtype"])?;
        Some(Self {
            kind: kind.bare()?,
            subtype: subtype.bare().unwrap_or_default(),
        })
    }
}

/// Splits a word of plain characters from the text after its closing quote.
fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'_';
    let end = bytes.iter().position(|byte| !plain(byte))?;
    let (word, rest) = bytes.split_at(end);
    Some((word, rest.strip_prefix(b"\"")?))
}
