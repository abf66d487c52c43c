//! A turn under way: what the server tells of it, and what is asked where it does not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tachikoma_agents::opencode::{Own, ids};
use tokio::io::AsyncWrite;

use super::find::health;
use super::messages::{PAGES, is_abort, page};
use super::open::is_busy;
use super::session_tree::{permit, refuse};
use super::{Bridge, Conversation, End, REQUEST_TIMEOUT, lost, word};
use crate::client::{ClientError, Request, StreamEnd};
use tachikoma_runtime::clock::monotonic;

/// How often a turn is asked about, in case that an event was missed: the end of one is told only once.
const LOOK: Duration = Duration::from_secs(10);

/// How soon, when there is a reason to believe so.
const LOOK_SOON: Duration = Duration::from_secs(1);

/// Looks in a row that find nobody at work on a turn that is not complete.
const IDLE_LOOKS_MAX: u32 = 3;

/// Streams in a row that end without an event.
const RECONNECTS_MAX: u32 = 5;

/// The server tries again by itself after 2, 4, 8, 16 and 30 seconds. Who is told to wait for longer than this waits for a
/// limit, and the loop does that better: visibly, and across restarts.
const RETRY_MAX: Duration = Duration::from_secs(45);

/// A server that compacts by itself tries again and again where that does not help.
const OVERFLOWS_MAX: u32 = 3;

/// How often the runner is told that the model is answering.
const ANSWERING: Duration = Duration::from_secs(5);

/// What is handed on of a line that makes no sense.
const GARBAGE_BYTES_MAX: usize = 4096;

/// A turn under way.
#[derive(Debug)]
pub(super) struct Turn {
    /// Our message.
    pub message: String,
    /// The iteration that it began, if it began one.
    pub iteration: Option<u32>,
    /// The prompt, if it began no iteration: it is given again when the server dies.
    pub text: Option<String>,
    /// What was said in the middle of it: answers belong to what was said last.
    pub asides: Vec<String>,
    /// Id of the newest message of the turn before its prompt was given again: it belongs to the attempt that was cut. Empty for a
    /// prompt that is given for the first time.
    pub after: String,
    /// Whether the server told of an error, or we ended it.
    failed: bool,
    /// Whether we ended it.
    interrupted: bool,
    /// Whether the server says that someone else did. That may have been an earlier turn.
    aborted: bool,
    /// Whether the stream was cut meanwhile, so that something may have been missed.
    deaf: bool,
    limited: bool,
    overflows: u32,
    idle_looks: u32,
    next_look: Instant,
    answering_said: Option<Instant>,
    /// The message whose end was handed on.
    finished: String,
}

impl Turn {
    pub fn new(message: String, iteration: Option<u32>) -> Self {
        Self {
            message,
            iteration,
            text: None,
            asides: Vec::new(),
            after: String::new(),
            failed: false,
            interrupted: false,
            aborted: false,
            deaf: false,
            limited: false,
            overflows: 0,
            idle_looks: 0,
            next_look: monotonic() + LOOK,
            answering_said: None,
            finished: String::new(),
        }
    }

    /// Judges the turn by its newest message, while the server does not work on it.
    fn judge(&self, info: &Value, told: bool) -> Verdict {
        if self.failed {
            return Verdict::Over;
        }
        let is_answer = self.is_answer(info) && info["summary"] != true;
        if !is_answer || info["time"]["completed"].is_null() && info["error"].is_null() {
            return Verdict::Open;
        }
        let calls = info["finish"] == "tool-calls";
        match () {
            () if is_abort(&info["error"]) || calls && self.aborted => Verdict::Aborted,
            () if calls && !told => Verdict::Open,
            () => Verdict::Over,
        }
    }

    /// Returns whether the newest message of the turn is an answer that this attempt got.
    fn is_answer(&self, info: &Value) -> bool {
        info["role"] == "assistant" && word(&info["id"]) != self.after
    }

    /// Returns the prompt, if it began no iteration and was not interrupted.
    pub fn to_repeat(&self) -> Option<String> {
        self.text.clone().filter(|_| !self.interrupted)
    }

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

    fn look_soon(&mut self) {
        self.next_look = self.next_look.min(monotonic() + LOOK_SOON);
    }
}

/// What became of a turn.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It came to its end.
    Over,
    /// Someone else ended it.
    Aborted,
    /// That is not known yet.
    Open,
}

/// Returns whether the server wrote a message of the user's role itself, to compact the conversation or to go on after that.
fn is_of_compaction(message: &Value) -> bool {
    let mut parts = message["parts"].as_array().into_iter().flatten();
    parts.any(|part| part["type"] == "compaction" || part["synthetic"] == true)
}

/// Returns the newest message of the turn under way; null where there is none.
async fn newest_message(conversation: &mut Conversation, id: &str) -> Result<Value, ClientError> {
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

/// Waits until a turn is to be asked about.
pub(super) async fn due(turn: Option<&Turn>) {
    match turn {
        Some(turn) => tokio::time::sleep_until(turn.next_look.into()).await,
        None => std::future::pending().await,
    }
}

impl Conversation {
    pub(super) async fn abort(&self) -> Result<(), ClientError> {
        let Some(id) = &self.id else { return Ok(()) };
        let path = format!("/session/{id}/abort");
        self.client
            .ask(Request::post(&path, None, REQUEST_TIMEOUT))
            .await?;
        Ok(())
    }

    /// Ends what still goes on: nobody is left to hear of it.
    pub(super) async fn leave(&self) -> Result<(), ClientError> {
        let Some(id) = &self.id else { return Ok(()) };
        if self.turn.is_some() || is_busy(&self.client, id).await? {
            self.abort().await?;
        }
        Ok(())
    }

    fn is_ours(&self, session: &str) -> bool {
        self.id.as_deref() == Some(session)
    }
}

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Ends the turn under way. Its end is told as any other.
    pub(super) async fn interrupt(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let Some(turn) = &mut conversation.turn else {
            return Ok(());
        };
        turn.failed = true;
        turn.interrupted = true;
        turn.look_soon();
        match conversation.abort().await {
            Err(error) if error.is_absence() => Err(lost(&error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Says what the conversation has cost. Where that cannot be said now, it is asked again behind the next call.
    pub(super) async fn cost(&mut self, conversation: &Conversation) -> Result<(), End> {
        let usd = match &conversation.id {
            Some(id) => {
                let path = format!("/session/{id}");
                let session = conversation
                    .client
                    .ask(Request::get(&path, REQUEST_TIMEOUT))
                    .await;
                let Ok(session) = session else { return Ok(()) };
                session["cost"].as_f64()
            }
            None => Some(0.0),
        };
        self.say(&Own::Cost { usd }).await
    }

    /// Takes one event.
    pub(super) async fn heard(
        &mut self,
        conversation: &mut Conversation,
        data: &str,
    ) -> Result<(), End> {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            let end = data.floor_char_boundary(GARBAGE_BYTES_MAX);
            return self.print(data.get(..end).unwrap_or_default()).await;
        };
        let (kind, properties) = (word(&event["type"]), &event["properties"]);
        if kind != "server.connected" {
            conversation.reconnected = 0;
        }
        conversation.clock.heard(word(&event["id"]));
        if kind == "session.created" {
            conversation.session_tree.add_child(&properties["info"]);
        }
        let session = word(&properties["sessionID"]);
        if !conversation.session_tree.contains(session) {
            return Ok(());
        }
        let request = word(&properties["id"]);
        let answered = match kind {
            "permission.asked" => permit(&conversation.client, properties, &self.options).await,
            "question.asked" => refuse(&conversation.client, request).await,
            _ => Ok(()),
        };
        answered.map_err(|error| lost(&error))?;
        if !conversation.is_ours(session) {
            return Ok(());
        }
        self.ours(conversation, kind, &event, data).await
    }

    async fn ours(
        &mut self,
        conversation: &mut Conversation,
        kind: &str,
        event: &Value,
        data: &str,
    ) -> Result<(), End> {
        let properties = &event["properties"];
        if kind == "message.updated" {
            conversation.clock.saw(word(&properties["info"]["id"]));
            conversation.answer_index.heard(&properties["info"]);
        }
        let Some(turn) = &mut conversation.turn else {
            // The rest of a turn that is over.
            return Ok(());
        };
        if conversation
            .answer_index
            .is_of_earlier_turn(kind, properties)
        {
            return Ok(());
        }
        turn.idle_looks = 0;
        match kind {
            "message.updated" => {
                let info = &properties["info"];
                if info["role"] == "assistant" {
                    let model = format!("{}/{}", word(&info["providerID"]), word(&info["modelID"]));
                    self.tell_window(conversation, &model).await?;
                }
            }
            "message.part.delta" => return self.answering(conversation).await,
            "message.part.updated" if properties["part"]["type"] == "step-finish" => {
                word(&properties["part"]["messageID"]).clone_into(&mut turn.finished);
            }
            "session.status" => self.retrying(conversation, event).await?,
            "session.error" if is_abort(&properties["error"]) && !turn.interrupted => {
                turn.aborted = true;
                turn.look_soon();
                return Ok(());
            }
            "session.error" => self.failed(conversation, &properties["error"]).await?,
            // It may be the end of the turn before: one that is ended says so twice.
            "session.idle" => return self.judge(conversation, true).await,
            _ => {}
        }
        if conversation.filter.passes(kind, properties) {
            self.print(data).await?;
        }
        Ok(())
    }

    async fn answering(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let Some(turn) = &mut conversation.turn else {
            return Ok(());
        };
        if turn
            .answering_said
            .is_some_and(|said| said.elapsed() < ANSWERING)
        {
            return Ok(());
        }
        turn.answering_said = Some(monotonic());
        self.say(&Own::Answering {}).await
    }

    /// Ends a turn that would wait for a limit.
    async fn retrying(
        &mut self,
        conversation: &mut Conversation,
        event: &Value,
    ) -> Result<(), End> {
        let status = &event["properties"]["status"];
        let Some(turn) = conversation.turn.as_mut().filter(|turn| !turn.limited) else {
            return Ok(());
        };
        let next = status["next"].as_u64().unwrap_or_default();
        let delay = ids::millis_until(word(&event["id"]), next).unwrap_or_default();
        if status["type"] != "retry" || Duration::from_millis(delay) <= RETRY_MAX {
            return Ok(());
        }
        turn.limited = true;
        let message = word(&status["message"]).to_owned();
        let until = i64::try_from(next).unwrap_or_default();
        self.say(&Own::Limited { message, until }).await?;
        self.interrupt(conversation).await
    }

    async fn failed(&mut self, conversation: &mut Conversation, error: &Value) -> Result<(), End> {
        let Some(turn) = &mut conversation.turn else {
            return Ok(());
        };
        turn.failed = true;
        turn.look_soon();
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

    /// The stream ended. A server that is still there is listened to again; what was missed is asked for.
    pub(super) async fn stream_ended(
        &mut self,
        conversation: &mut Conversation,
        end: &StreamEnd,
    ) -> Result<(), End> {
        conversation.reconnected += 1;
        let why = end.to_string();
        if conversation.reconnected > RECONNECTS_MAX || health(&conversation.client).await.is_err()
        {
            return Err(End::Lost(why));
        }
        conversation.listen_again().await?;
        let counted = conversation.refresh_session_tree().await;
        counted.map_err(|error| lost(&error))?;
        if let Some(turn) = &mut conversation.turn {
            turn.deaf = true;
            turn.look_soon();
        }
        Ok(())
    }

    /// Asks what became of a turn.
    pub(super) async fn look(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let answered = conversation.answer_pending(&self.options).await;
        if let Some(turn) = &mut conversation.turn {
            turn.next_look = monotonic() + LOOK;
        }
        match answered {
            Err(error) if error.is_absence() => Err(lost(&error)),
            // What cannot be answered now may be at the next look.
            Ok(()) | Err(_) => self.judge(conversation, false).await,
        }
    }

    /// Ends a turn that is over; `told` says whether the server told that one is.
    async fn judge(&mut self, conversation: &mut Conversation, told: bool) -> Result<(), End> {
        let Some(id) = conversation.id.clone() else {
            return Ok(());
        };
        let busy = is_busy(&conversation.client, &id).await;
        let last = match busy {
            Ok(true) => {
                if let Some(turn) = &mut conversation.turn {
                    turn.idle_looks = 0;
                }
                return Ok(());
            }
            Ok(false) => newest_message(conversation, &id).await,
            Err(error) => Err(error),
        };
        let last = match last {
            Ok(last) => last,
            Err(error) if error.is_absence() => return Err(lost(&error)),
            // As above.
            Err(_) => return Ok(()),
        };
        let Some(turn) = &mut conversation.turn else {
            return Ok(());
        };
        let info = &last["info"];
        match turn.judge(info, told) {
            Verdict::Over if told && !turn.deaf => {
                // All of it was heard.
                word(&info["id"]).clone_into(&mut turn.finished);
                self.over(conversation, &id, &last).await
            }
            Verdict::Over => self.over(conversation, &id, &last).await,
            Verdict::Aborted => Err(End::Lost("someone else ended the turn".to_owned())),
            Verdict::Open => {
                turn.idle_looks += 1;
                turn.next_look = monotonic() + LOOK_SOON;
                if turn.idle_looks > IDLE_LOOKS_MAX {
                    let why = "it does not work on the prompt any more";
                    return Err(End::Lost(why.to_owned()));
                }
                Ok(())
            }
        }
    }

    /// A turn is over, and nobody said so: what was missed is told in the server's own words.
    pub(super) async fn over(
        &mut self,
        conversation: &mut Conversation,
        id: &str,
        last: &Value,
    ) -> Result<(), End> {
        let Some(turn) = conversation.turn.take() else {
            return Ok(());
        };
        let messages = std::iter::once(&turn.message).chain(&turn.asides);
        conversation.answer_index.turn_is_over(messages.cloned());
        let info = &last["info"];
        let event = |kind: &str, properties: Value| {
            json!({"type": kind, "properties": properties}).to_string()
        };
        let missed = turn.finished != word(&info["id"]) && turn.is_answer(info);
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
