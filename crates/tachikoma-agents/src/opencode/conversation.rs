//! State of one conversation. The decoder and the reader of parts update it.

use serde_json::Value;
use tachikoma_core::Timestamp;

use super::failure::Trouble;
use super::ids;
use super::own::Own;
use crate::agent_event::rounded;
use crate::{
    ARE_YOU_THERE, AgentEvent, FailureClass, Reading, Retry, SessionInfo, TurnOutcome, TurnResult,
};

/// Maximum number of bytes that are kept of a line that is not understood.
pub(super) const NOT_UNDERSTOOD_BYTES_MAX: usize = 4096;

/// Limit of an id or a name in bytes.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// Maximum size in bytes of a turn's final text. The whole text is in the transcript, and only its end is evaluated.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Number of attempts that an OpenCode server makes for one request.
const ATTEMPTS: u64 = 6;

/// Maximum number of summaries and of permission requests that are remembered.
pub(super) const REMEMBERED_MAX: usize = 32;

/// State of the conversation of one agent process, from the lines that were read so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    pub session: SessionInfo,
    pub turn: Turn,
    /// Ids of the running tool calls.
    pub running: Vec<String>,
    windows: Vec<(String, u64)>,
    pub assumed_window: Option<u64>,
    pub latest: Option<Reading>,
    model: Option<String>,
    /// Ids of messages that are summaries, not answers.
    summaries: Vec<String>,
    /// Permissions that were requested: the id of the request, the permission, and the tool call.
    pub asked: Vec<(String, String, String)>,
    pub session_cost: f64,
    pub cost: f64,
    pub readings: u64,
}

/// State of the current turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Turn {
    /// Whether a turn has begun.
    pub open: bool,
    /// Id of the message of the last text. The text so far follows.
    message: String,
    text: String,
    trouble: Option<Trouble>,
    /// Error message and reset time of the usage limit; `None` without a limit.
    limited: Option<(String, Timestamp)>,
    cost: f64,
    steps: u64,
    /// Whether the last step called a tool, so that another step should follow.
    calling: bool,
    tokens: u64,
    denials: usize,
}

impl Conversation {
    pub fn own(&mut self, own: Own, seen: &mut Vec<AgentEvent>) {
        match own {
            Own::Session {
                id,
                version,
                model,
                permission,
            } => {
                self.model = model.clone().or(self.model.take());
                let permission_mode = Some(permission);
                self.known(
                    SessionInfo {
                        session_id: line(&id, NAME_BYTES_MAX),
                        model,
                        version,
                        permission_mode,
                    },
                    seen,
                );
            }
            Own::Window { model, window } => {
                let known = self.windows.iter().any(|known| known.0 == model);
                if window > 0 && !known && self.windows.len() < REMEMBERED_MAX {
                    self.windows.push((model.clone(), window));
                    self.model.get_or_insert_with(|| model.clone());
                    seen.push(AgentEvent::WindowKnown { model, window });
                }
            }
            Own::Here {} => seen.push(AgentEvent::ControlAnswered {
                request_id: ARE_YOU_THERE.to_owned(),
                answer: Ok(String::new()),
            }),
            Own::TakenUp { usd, tokens: used } => seen.push(AgentEvent::TakenUp {
                usd: usd.max(0.0),
                tokens: tokens(&used),
            }),
            Own::Cost { usd } => seen.push(AgentEvent::Cost(usd.filter(|usd| *usd >= 0.0))),
            Own::Prompted { .. } => self.turn.open = true,
            Own::Limited { message, until } => {
                self.turn.limited = Some((message, Timestamp::from_millis(until)));
            }
            Own::Failed { message, lost } => {
                let class = if lost {
                    FailureClass::Lost
                } else {
                    FailureClass::Other
                };
                self.turn.trouble = Some(Trouble {
                    class: Some(class),
                    message,
                    ..Trouble::default()
                });
                self.end(seen);
            }
            Own::Waiting { why } => {
                seen.push(AgentEvent::AwaitingServer(line(
                    &why,
                    NOT_UNDERSTOOD_BYTES_MAX,
                )));
            }
            Own::Answering {} => {}
        }
    }

    pub fn session_created(&mut self, info: &Value, seen: &mut Vec<AgentEvent>) {
        // A sub-agent's conversation has a parent. After a message of the bridge our conversation is known already.
        if info["parentID"].is_string() || self.session.permission_mode.is_some() {
            return;
        }
        let word = |name: &str| info[name].as_str().map(|word| line(word, NAME_BYTES_MAX));
        let session = SessionInfo {
            session_id: word("id").unwrap_or_default(),
            version: word("version"),
            ..SessionInfo::default()
        };
        self.known(session, seen);
    }

    /// Returns whether a conversation belongs to this agent. If none is known yet, this one becomes the agent's.
    pub fn is_ours(&mut self, session: &str, seen: &mut Vec<AgentEvent>) -> bool {
        if self.session.session_id.is_empty() {
            let session_id = line(session, NAME_BYTES_MAX);
            self.known(
                SessionInfo {
                    session_id,
                    ..SessionInfo::default()
                },
                seen,
            );
        }
        self.session.session_id == session
    }

    pub fn known(&mut self, session: SessionInfo, seen: &mut Vec<AgentEvent>) {
        if session == self.session {
            return;
        }
        if session.session_id != self.session.session_id {
            self.latest = None;
            self.turn = Turn::default();
            self.running.clear();
        }
        seen.push(AgentEvent::SessionKnown(session.clone()));
        self.session = session;
    }

    pub fn message(&mut self, info: &Value) {
        if info["role"] != "assistant" {
            return;
        }
        self.turn.open = true;
        if let (Some(provider), Some(model)) =
            (info["providerID"].as_str(), info["modelID"].as_str())
        {
            self.model = Some(line(&format!("{provider}/{model}"), NAME_BYTES_MAX));
        }
        if info["summary"] == true
            && let Some(id) = info["id"].as_str()
            && !self.is_summary(id)
        {
            if self.summaries.len() >= REMEMBERED_MAX {
                self.summaries.remove(0);
            }
            self.summaries.push(line(id, NAME_BYTES_MAX));
        }
    }

    pub fn is_summary(&self, message: &str) -> bool {
        self.summaries.iter().any(|known| known == message)
    }

    /// Appends to the final text of a turn, which is that of its last message.
    pub fn said(&mut self, message: &str, text: &str) {
        self.turn.open = true;
        if self.turn.message != message {
            self.turn.message = line(message, NAME_BYTES_MAX);
            self.turn.text.clear();
        } else if !self.turn.text.is_empty() {
            self.turn.text.push('\n');
        }
        self.turn.text.push_str(text);
        let excess = self.turn.text.len().saturating_sub(TEXT_BYTES_MAX);
        let excess = self.turn.text.ceil_char_boundary(excess);
        self.turn.text.drain(..excess);
    }

    /// Handles the end of a request to the model. The event reports the usage. The tool calls of the request have ended by then.
    pub fn step_finished(&mut self, part: &Value, seen: &mut Vec<AgentEvent>) {
        self.turn.open = true;
        self.turn.steps += 1;
        self.turn.calling = part["reason"] == "tool-calls";
        let cost = part["cost"].as_f64().filter(|cost| *cost >= 0.0);
        self.turn.cost += cost.unwrap_or_default();
        self.cost += cost.unwrap_or_default();
        let tokens = tokens(&part["tokens"]);
        self.turn.tokens += tokens;
        // A request is never empty. A service that does not count tokens reports 0. A summary does not measure the context.
        let message = part["messageID"].as_str().unwrap_or_default();
        if tokens == 0 {
            return;
        }
        seen.push(AgentEvent::CallEnded(tokens));
        if self.is_summary(message) {
            return;
        }
        self.readings += 1;
        let reading = Reading {
            tokens,
            window: self.window(),
            model: self.model.clone(),
            estimated: false,
            // A step without a tool call is the last one of its turn.
            answering: !self.turn.calling,
        };
        self.latest = Some(reading.clone());
        seen.push(AgentEvent::Measured(reading));
    }

    pub fn tokens(&self) -> u64 {
        self.latest.as_ref().map_or(0, |latest| latest.tokens)
    }

    pub fn window(&self) -> Option<u64> {
        let told = self.windows.iter().rfind(|(model, _)| {
            self.model
                .as_deref()
                .is_none_or(|wanted| wanted == model.as_str())
        });
        told.map(|(_, window)| *window).or(self.assumed_window)
    }

    pub fn status(&mut self, event: &str, status: &Value, seen: &mut Vec<AgentEvent>) {
        match status["type"].as_str() {
            Some("busy") => self.turn.open = true,
            Some("retry") => {
                self.turn.open = true;
                let next = status["next"].as_u64();
                let delay = next.and_then(|next| ids::millis_until(event, next));
                let message = status["message"].as_str().unwrap_or_default();
                seen.push(AgentEvent::Retrying(Retry {
                    attempt: status["attempt"].as_u64().unwrap_or_default(),
                    attempts_max: ATTEMPTS,
                    delay_ms: delay.unwrap_or_default(),
                    status: None,
                    error: line(message, NAME_BYTES_MAX),
                }));
            }
            Some(_) | None => {}
        }
    }

    pub fn trouble(&mut self, error: &Value, seen: &mut Vec<AgentEvent>) {
        self.turn.open = true;
        let trouble = Trouble::of(error);
        if trouble.class != Some(FailureClass::Interrupted) {
            seen.push(AgentEvent::RequestFailed {
                error: trouble.name.clone(),
                text: trouble.message.clone(),
            });
        }
        // The error before the interruption is the cause of the failure.
        let ended = trouble.class == Some(FailureClass::Interrupted);
        if !ended || self.turn.trouble.is_none() {
            self.turn.trouble = Some(trouble);
        }
    }

    pub fn replied(&mut self, properties: &Value, seen: &mut Vec<AgentEvent>) {
        let id = properties["requestID"].as_str().unwrap_or_default();
        let Some(at) = self.asked.iter().position(|(asked, ..)| asked == id) else {
            return;
        };
        let (_, tool, id) = self.asked.swap_remove(at);
        if properties["reply"] == "reject" {
            self.turn.denials += 1;
            seen.push(AgentEvent::PermissionDenied { tool, id });
        }
    }

    /// Ends the turn, and reports its result.
    pub fn end(&mut self, seen: &mut Vec<AgentEvent>) {
        let turn = std::mem::take(&mut self.turn);
        self.running.clear();
        let trouble = turn.trouble.unwrap_or_default();
        let failure = match &turn.limited {
            Some(_) => Some(FailureClass::UsageLimit),
            // A turn that is interrupted between two steps does not report the interruption.
            None if turn.calling => trouble.class.or(Some(FailureClass::Interrupted)),
            None => trouble.class,
        };
        let outcome = match failure {
            None => TurnOutcome::Ok,
            Some(FailureClass::UsageLimit) => TurnOutcome::UsageLimit,
            Some(FailureClass::Interrupted) => TurnOutcome::DuringExecution,
            Some(_) => TurnOutcome::ApiError,
        };
        let words = match &turn.limited {
            Some((message, _)) => message.clone(),
            None => trouble.message,
        };
        seen.push(AgentEvent::Resulted(Box::new(TurnResult {
            failure,
            outcome,
            limit_resets_at: turn.limited.map(|(_, until)| until),
            api_error: Some(trouble.name).filter(|name| !name.is_empty()),
            api_error_status: trouble.status,
            num_turns: Some(turn.steps),
            tokens: turn.tokens,
            cost_usd: rounded(turn.cost),
            session_cost_usd: rounded(self.session_cost.max(turn.cost)),
            permission_denials: turn.denials,
            ..TurnResult::plain(failure.is_none(), failure.map_or(turn.text, |_| words))
        })));
    }
}

fn tokens(tokens: &Value) -> u64 {
    let count = |value: &Value| value.as_u64().filter(|count| *count < 1 << 48);
    if let Some(total) = count(&tokens["total"]).filter(|total| *total > 0) {
        return total;
    }
    let cache = &tokens["cache"];
    let parts = [
        &tokens["input"],
        &tokens["output"],
        &cache["read"],
        &cache["write"],
    ];
    parts.into_iter().filter_map(count).sum()
}

/// Returns the start of a text as one line.
pub(super) fn line(text: &str, max_bytes: usize) -> String {
    let end = text.floor_char_boundary(max_bytes);
    let head = text.get(..end).unwrap_or_default();
    head.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
