//! A running turn: handles its events, and regularly asks the server for its state, because an event may be missed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tachikoma_agents::opencode::{Own, ids};
use tokio::io::AsyncWrite;

use super::find::HEALTH_TIMEOUT;
use super::messages::{PAGES, is_abort, page};
use super::open::is_busy;
use super::session_tree::{answer_permission, reject_question};
use super::{Bridge, Conversation, End, str_of};
use crate::client::{ClientError, StreamEnd, unless_absent};
use tachikoma_runtime::clock::monotonic;

/// Time between two checks of a turn. The server reports the end of a turn only once, and that event may be missed.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Time to the next check if the turn has probably ended.
const CHECK_SOON: Duration = Duration::from_secs(1);

/// Maximum number of consecutive checks that find an idle server and an incomplete turn.
const IDLE_CHECKS_MAX: u32 = 3;

/// Maximum number of consecutive event streams that end without an event.
const RECONNECTS_MAX: u32 = 5;

/// Longest retry delay of the server that is accepted. It retries after 2, 4, 8, 16 and 30 seconds; a longer delay is a usage
/// limit. The loop waits for limits itself, because it shows the wait and continues it after a restart.
const RETRY_MAX: Duration = Duration::from_secs(45);

/// Number of context overflows after which a turn is aborted. A server that compacts would retry forever.
const OVERFLOWS_MAX: u32 = 3;

/// Time between two reports that the model is answering.
const ANSWERING_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum length in bytes of the part of an invalid event that is passed on.
const GARBAGE_BYTES_MAX: usize = 4096;

/// A prompt that the server has received.
#[derive(Debug)]
pub(super) struct SentPrompt {
    /// Id of the message with the prompt.
    pub message: String,
    /// Iteration that the prompt started; `None` for other requests, such as one for a hand-off.
    pub iteration: Option<u32>,
    /// Text of the prompt if it did not start an iteration. It is sent again when the server dies.
    pub text: Option<String>,
    /// Id of the newest message of the interrupted attempt, if the prompt was sent again; otherwise `None`.
    pub earlier_answer: Option<String>,
    /// Ids of the messages that were added during the turn. The server answers the newest one.
    pub asides: Vec<String>,
}

impl SentPrompt {
    /// Returns the newest message of a list that belongs to the turn: the prompt, an added message, a message that the server wrote to
    /// itself to continue after a compaction, or an answer to one of them.
    pub fn newest_of<'a>(&self, list: &'a [Value]) -> Option<&'a Value> {
        let is_ours = |id: &str| id == self.message || self.asides.iter().any(|aside| aside == id);
        let mut own: Vec<&str> = Vec::new();
        let mut begun = false;
        let mut newest = None;
        for message in list {
            let info = &message["info"];
            let id = str_of(&info["id"]);
            let belongs = if info["role"] == "assistant" {
                let parent = str_of(&info["parentID"]);
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

    /// Returns whether a message of the turn is an answer to this attempt, not to an earlier one.
    fn is_answer(&self, info: &Value) -> bool {
        info["role"] == "assistant" && Some(str_of(&info["id"])) != self.earlier_answer.as_deref()
    }
}

/// A running turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub prompt: SentPrompt,
    /// Whether the server reported an error, or the bridge aborted the turn.
    failed: bool,
    /// Whether the bridge aborted the turn.
    interrupted: bool,
    /// Whether the server reported that another client aborted a turn, which may have been an earlier one.
    aborted: bool,
    /// Whether the event stream was interrupted during the turn, so that events may be missing.
    missed_events: bool,
    /// Whether the turn was aborted because of a usage limit.
    limited: bool,
    overflows: u32,
    /// Number of consecutive checks that found an idle server.
    idle_checks: u32,
    next_check: Instant,
    /// When the bridge last reported that the model is answering; `None` before the first report.
    answering_reported: Option<Instant>,
    /// Id of the last complete message that was passed on.
    finished: String,
}

impl Turn {
    pub fn new(prompt: SentPrompt) -> Self {
        Self {
            prompt,
            failed: false,
            interrupted: false,
            aborted: false,
            missed_events: false,
            limited: false,
            overflows: 0,
            idle_checks: 0,
            next_check: monotonic() + CHECK_INTERVAL,
            answering_reported: None,
            finished: String::new(),
        }
    }

    /// Determines the state of the turn from its newest message, while the server is idle. `reported` is whether the server
    /// reported the end of a turn.
    fn judge(&self, info: &Value, reported: bool) -> Verdict {
        if self.failed {
            return Verdict::Over;
        }
        let is_answer = self.prompt.is_answer(info) && info["summary"] != true;
        if !is_answer || info["time"]["completed"].is_null() && info["error"].is_null() {
            return Verdict::Open;
        }
        let calls = info["finish"] == "tool-calls";
        match () {
            () if is_abort(&info["error"]) || calls && self.aborted => Verdict::Aborted,
            () if calls && !reported => Verdict::Open,
            () => Verdict::Over,
        }
    }

    /// Returns the prompt if it did not start an iteration and was not interrupted.
    pub fn prompt_to_repeat(&self) -> Option<String> {
        self.prompt.text.clone().filter(|_| !self.interrupted)
    }

    fn check_soon(&mut self) {
        self.next_check = self.next_check.min(monotonic() + CHECK_SOON);
    }
}

/// The state of a turn.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The turn is complete.
    Over,
    /// Another client aborted the turn.
    Aborted,
    /// It is not known yet whether the turn is complete.
    Open,
}

/// Returns whether the server wrote a message with the role of the user to compact the conversation, or to continue after that.
fn is_of_compaction(message: &Value) -> bool {
    let mut parts = message["parts"].as_array().into_iter().flatten();
    parts.any(|part| part["type"] == "compaction" || part["synthetic"] == true)
}

/// Returns the newest message of the running turn; null if there is none.
async fn newest_message(conversation: &mut Conversation, id: &str) -> Result<Value, ClientError> {
    for limit in PAGES {
        let Some(list) = page(conversation, id, limit).await? else {
            break;
        };
        let newest = conversation.turn.as_ref();
        if let Some(newest) = newest.and_then(|turn| turn.prompt.newest_of(&list)) {
            return Ok(newest.clone());
        }
        if list.len() < limit {
            break;
        }
    }
    Ok(Value::Null)
}

/// Waits until the next check of a turn is due.
pub(super) async fn check_due(turn: Option<&Turn>) {
    match turn {
        Some(turn) => tokio::time::sleep_until(turn.next_check.into()).await,
        None => std::future::pending().await,
    }
}

impl Conversation {
    pub(super) async fn abort(&self) -> Result<(), ClientError> {
        let Some(id) = &self.id else { return Ok(()) };
        let path = format!("/session/{id}/abort");
        self.client.post(&path, None).await?;
        Ok(())
    }

    /// Aborts the turn of the conversation if this bridge or the server still works on one.
    pub(super) async fn leave(&self) -> Result<(), ClientError> {
        let Some(id) = &self.id else { return Ok(()) };
        if self.turn.is_some() || is_busy(&self.client, id).await? {
            self.abort().await?;
        }
        Ok(())
    }

    fn is_id(&self, session: &str) -> bool {
        self.id.as_deref() == Some(session)
    }
}

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Aborts the running turn. Its end is reported like that of any other turn.
    pub(super) async fn interrupt(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let Some(turn) = &mut conversation.turn else {
            return Ok(());
        };
        turn.failed = true;
        turn.interrupted = true;
        turn.check_soon();
        unless_absent(conversation.abort().await)?;
        Ok(())
    }

    /// Reports the cost of the conversation. If the server does not answer, the runner asks again later.
    pub(super) async fn report_cost(&mut self, conversation: &Conversation) -> Result<(), End> {
        let usd = match &conversation.id {
            Some(id) => {
                let path = format!("/session/{id}");
                let session = conversation.client.get(&path).await;
                let Ok(session) = session else { return Ok(()) };
                session["cost"].as_f64()
            }
            None => Some(0.0),
        };
        self.report(&Own::Cost { usd }).await
    }

    /// Handles an event of the server.
    pub(super) async fn server_event(
        &mut self,
        conversation: &mut Conversation,
        data: &str,
    ) -> Result<(), End> {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            let end = data.floor_char_boundary(GARBAGE_BYTES_MAX);
            return self.print(data.get(..end).unwrap_or_default()).await;
        };
        let (kind, properties) = (str_of(&event["type"]), &event["properties"]);
        if kind != "server.connected" {
            conversation.reconnected = 0;
        }
        conversation.clock.heard(str_of(&event["id"]));
        if kind == "session.created" {
            conversation.session_tree.add_child(&properties["info"]);
        }
        let session = str_of(&properties["sessionID"]);
        if !conversation.session_tree.contains(session) {
            return Ok(());
        }
        let request = str_of(&properties["id"]);
        let answered = match kind {
            "permission.asked" => {
                answer_permission(&conversation.client, properties, &self.options).await
            }
            "question.asked" => reject_question(&conversation.client, request).await,
            _ => Ok(()),
        };
        answered?;
        if !conversation.is_id(session) {
            return Ok(());
        }
        self.conversation_event(conversation, kind, &event, data)
            .await
    }

    /// Handles an event of the conversation itself, not of a sub-agent.
    async fn conversation_event(
        &mut self,
        conversation: &mut Conversation,
        kind: &str,
        event: &Value,
        data: &str,
    ) -> Result<(), End> {
        let properties = &event["properties"];
        if kind == "message.updated" {
            conversation.clock.saw(str_of(&properties["info"]["id"]));
            conversation.answer_index.heard(&properties["info"]);
        }
        let Some(turn) = &mut conversation.turn else {
            // No turn is running, so the event belongs to a turn that has ended.
            return Ok(());
        };
        if conversation
            .answer_index
            .is_of_earlier_turn(kind, properties)
        {
            return Ok(());
        }
        turn.idle_checks = 0;
        match kind {
            "message.updated" => {
                let info = &properties["info"];
                if info["role"] == "assistant" {
                    let model = format!(
                        "{}/{}",
                        str_of(&info["providerID"]),
                        str_of(&info["modelID"])
                    );
                    self.report_window(conversation, &model).await?;
                }
            }
            "message.part.delta" => return self.report_answering(conversation).await,
            "message.part.updated" if properties["part"]["type"] == "step-finish" => {
                str_of(&properties["part"]["messageID"]).clone_into(&mut turn.finished);
            }
            "session.status" => self.end_if_limited(conversation, event).await?,
            "session.error" if is_abort(&properties["error"]) && !turn.interrupted => {
                turn.aborted = true;
                turn.check_soon();
                return Ok(());
            }
            "session.error" => self.error_event(conversation, &properties["error"]).await?,
            // This may be the end of the previous turn, because the server reports the end of an aborted turn twice.
            "session.idle" => return self.judge(conversation, true).await,
            _ => {}
        }
        if conversation.filter.passes(kind, properties) {
            self.print(data).await?;
        }
        Ok(())
    }

    async fn report_answering(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let Some(turn) = &mut conversation.turn else {
            return Ok(());
        };
        if turn
            .answering_reported
            .is_some_and(|said| said.elapsed() < ANSWERING_INTERVAL)
        {
            return Ok(());
        }
        turn.answering_reported = Some(monotonic());
        self.report(&Own::Answering {}).await
    }

    /// Aborts a turn if the server waits for a usage limit.
    async fn end_if_limited(
        &mut self,
        conversation: &mut Conversation,
        event: &Value,
    ) -> Result<(), End> {
        let status = &event["properties"]["status"];
        let Some(turn) = conversation.turn.as_mut().filter(|turn| !turn.limited) else {
            return Ok(());
        };
        let next = status["next"].as_u64().unwrap_or_default();
        let delay = ids::millis_until(str_of(&event["id"]), next).unwrap_or_default();
        if status["type"] != "retry" || Duration::from_millis(delay) <= RETRY_MAX {
            return Ok(());
        }
        turn.limited = true;
        let message = str_of(&status["message"]).to_owned();
        let until = i64::try_from(next).unwrap_or_default();
        self.report(&Own::Limited { message, until }).await?;
        self.interrupt(conversation).await
    }

    async fn error_event(
        &mut self,
        conversation: &mut Conversation,
        error: &Value,
    ) -> Result<(), End> {
        let Some(turn) = &mut conversation.turn else {
            return Ok(());
        };
        turn.failed = true;
        turn.check_soon();
        if error["name"] != "ContextOverflowError" {
            return Ok(());
        }
        turn.overflows += 1;
        let most = if self.options.managed {
            1
        } else {
            OVERFLOWS_MAX
        };
        if turn.overflows == most {
            return self.interrupt(conversation).await;
        }
        Ok(())
    }

    /// Opens a new event stream if the server still runs, and checks the turn for missed events.
    pub(super) async fn stream_ended(
        &mut self,
        conversation: &mut Conversation,
        end: &StreamEnd,
    ) -> Result<(), End> {
        conversation.reconnected += 1;
        let why = end.to_string();
        let health = conversation.client.health(HEALTH_TIMEOUT).await;
        if conversation.reconnected > RECONNECTS_MAX || health.is_err() {
            tracing::warn!(cause = why, "OpenCode's server is gone");
            return Err(End::Lost(why));
        }
        tracing::info!(cause = why, "reconnecting to OpenCode's event stream");
        conversation.reconnect().await?;
        conversation.refresh_session_tree().await?;
        if let Some(turn) = &mut conversation.turn {
            turn.missed_events = true;
            turn.check_soon();
        }
        Ok(())
    }

    /// Asks the server for the state of the running turn.
    pub(super) async fn check_turn(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let answered = conversation.answer_pending(&self.options).await;
        if let Some(turn) = &mut conversation.turn {
            turn.next_check = monotonic() + CHECK_INTERVAL;
        }
        // A request that cannot be answered now may be answered at the next check.
        unless_absent(answered)?;
        self.judge(conversation, false).await
    }

    /// Ends the running turn if it is complete. `reported` is whether the server reported the end of a turn.
    async fn judge(&mut self, conversation: &mut Conversation, reported: bool) -> Result<(), End> {
        let Some(id) = conversation.id.clone() else {
            return Ok(());
        };
        let busy = is_busy(&conversation.client, &id).await;
        let last = match busy {
            Ok(true) => {
                if let Some(turn) = &mut conversation.turn {
                    turn.idle_checks = 0;
                }
                return Ok(());
            }
            Ok(false) => newest_message(conversation, &id).await,
            Err(error) => Err(error),
        };
        // If the server did not answer, the next check asks it again.
        let (Some(last), Some(turn)) = (unless_absent(last)?, &mut conversation.turn) else {
            return Ok(());
        };
        let info = &last["info"];
        match turn.judge(info, reported) {
            Verdict::Over if reported && !turn.missed_events => {
                // The end of this message was received, so no event was missed.
                str_of(&info["id"]).clone_into(&mut turn.finished);
                self.over(conversation, &id, &last).await
            }
            Verdict::Over => self.over(conversation, &id, &last).await,
            Verdict::Aborted => Err(End::Lost("another client aborted the turn".to_owned())),
            Verdict::Open => {
                turn.idle_checks += 1;
                turn.next_check = monotonic() + CHECK_SOON;
                if turn.idle_checks > IDLE_CHECKS_MAX {
                    let why = "the server no longer works on the prompt";
                    return Err(End::Lost(why.to_owned()));
                }
                Ok(())
            }
        }
    }

    /// Ends a turn. Events that were missed are printed as if the server had sent them.
    pub(super) async fn over(
        &mut self,
        conversation: &mut Conversation,
        id: &str,
        last: &Value,
    ) -> Result<(), End> {
        let Some(turn) = conversation.turn.take() else {
            return Ok(());
        };
        let messages = std::iter::once(&turn.prompt.message).chain(&turn.prompt.asides);
        conversation.answer_index.turn_is_over(messages.cloned());
        let info = &last["info"];
        let event = |kind: &str, properties: Value| {
            json!({"type": kind, "properties": properties}).to_string()
        };
        let missed = turn.finished != str_of(&info["id"]) && turn.prompt.is_answer(info);
        if missed {
            let message = json!({"sessionID": id, "info": info});
            self.print(&event("message.updated", message)).await?;
            for part in last["parts"].as_array().into_iter().flatten() {
                let part = json!({"sessionID": id, "part": part});
                if conversation.filter.passes("message.part.updated", &part) {
                    self.print(&event("message.part.updated", part)).await?;
                }
            }
        }
        if missed && !info["error"].is_null() {
            let error = json!({"sessionID": id, "error": info["error"]});
            self.print(&event("session.error", error)).await?;
        }
        let idle = json!({"sessionID": id});
        self.print(&event("session.idle", idle)).await
    }
}
