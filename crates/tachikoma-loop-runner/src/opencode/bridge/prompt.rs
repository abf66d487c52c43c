//! Giving the server a prompt: once, whatever happens on the way.

use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_agents::opencode::{Own, ids};
use tokio::io::AsyncWrite;
use uuid::Uuid;

use super::open::PATIENCE;
use super::turn::Turn;
use super::{Bridge, Conversation, End, lost, word};
use crate::error::chain;
use crate::opencode::client::{ClientError, Request};

/// The server takes a prompt at once, and works on it later.
const PROMPT_PATIENCE: Duration = Duration::from_secs(10);

/// Under this name a message has the iteration that it belongs to.
const MARK: &str = "tachikoma";

/// How often it is asked whether a prompt arrived, and given again where it did not.
const TRIES_MAX: u32 = 3;

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Begins a turn.
    pub(super) async fn prompt(
        &mut self,
        conversation: &mut Conversation,
        text: &str,
        iteration: Option<u32>,
    ) -> Result<(), End> {
        if std::mem::take(&mut conversation.gone) {
            let message = "the server does not know the conversation any more".to_owned();
            return self.fail(message, true).await;
        }
        let id = match conversation.id.clone() {
            Some(id) => id,
            None => {
                self.begin(conversation).await?;
                conversation.id.clone().unwrap_or_default()
            }
        };
        let before = match iteration.filter(|_| std::mem::take(&mut conversation.resumed)) {
            Some(iteration) => earlier(conversation, &id, iteration)
                .await
                .map_err(|e| lost(&e))?,
            None => Earlier::None,
        };
        let (message, again) = match before {
            Earlier::None => (conversation.message_id(), false),
            Earlier::Cut(message) => (message, true),
            Earlier::Done { turn, last } => {
                conversation.turn = Some(turn);
                return self.over(conversation, &id, &last).await;
            }
        };
        let turn = Turn::new(message.clone(), iteration);
        let mut body = self.body(text, &turn);
        body["messageID"] = message.as_str().into();
        // A part without an id would be added each time.
        body["parts"][0]["id"] = message.replacen("msg_", "prt_", 1).into();
        match give(conversation, &id, &message, &body).await {
            Ok(()) => {
                conversation.turn = Some(turn);
                self.say(&Own::Prompted { message, again }).await
            }
            Err(error) if error.is_missing() => {
                conversation.id = None;
                self.fail(chain(&error), true).await
            }
            Err(error) if error.is_absence() => Err(lost(&error)),
            Err(error) => self.fail(chain(&error), false).await,
        }
    }

    /// Says something in the middle of a turn: the model hears it with its next request. Between turns nobody would answer.
    pub(super) async fn aside(
        &mut self,
        conversation: &mut Conversation,
        text: &str,
    ) -> Result<(), End> {
        let message = conversation.message_id();
        let (Some(id), Some(turn)) = (&conversation.id, &mut conversation.turn) else {
            return Ok(());
        };
        let mut body = self.body(text, turn);
        body["noReply"] = true.into();
        body["messageID"] = message.as_str().into();
        turn.asides.push(message);
        let path = format!("/session/{id}/message");
        let request = Request::post(&path, Some(&body), PROMPT_PATIENCE);
        match conversation.client.ask(request).await {
            Err(error) if error.is_absence() && !error.is_open() => Err(lost(&error)),
            // A word that was not heard is no reason to end anything.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn body(&self, text: &str, turn: &Turn) -> Value {
        let mark = json!({"iteration": turn.iteration, "prompt": turn.message});
        let part = json!({"type": "text", "text": text, "metadata": {MARK: mark}});
        let mut body = json!({"parts": [part]});
        if let Some((provider, model)) = self.options.model.as_deref().and_then(split) {
            body["model"] = json!({"providerID": provider, "modelID": model});
        }
        body
    }

    async fn fail(&mut self, message: String, lost: bool) -> Result<(), End> {
        self.say(&Own::Failed { message, lost }).await
    }
}

fn split(model: &str) -> Option<(&str, &str)> {
    model.split_once('/')
}

impl Conversation {
    /// Returns an id for a message that begins now, by the server's clock.
    fn message_id(&self) -> String {
        let passed = u64::try_from(self.since.elapsed().as_millis()).unwrap_or_default();
        let now = self.server_millis.saturating_add(passed);
        ids::at("msg", now, Uuid::new_v4().as_u128())
    }
}

/// Gives a prompt to the server. Where nobody answers, the server is asked whether it has it: it has our id.
async fn give(
    conversation: &Conversation,
    id: &str,
    message: &str,
    body: &Value,
) -> Result<(), ClientError> {
    let path = format!("/session/{id}/prompt_async");
    let there = format!("/session/{id}/message/{message}");
    let mut tries = 0;
    loop {
        tries += 1;
        let request = Request::post(&path, Some(body), PROMPT_PATIENCE);
        let open = match conversation.client.ask(request).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_open() && tries < TRIES_MAX => error,
            Err(error) => return Err(error),
        };
        match conversation
            .client
            .ask(Request::get(&there, PATIENCE))
            .await
        {
            Ok(_) => return Ok(()),
            Err(error) if error.is_missing() => {}
            Err(_) => return Err(open),
        }
    }
}

/// What a server that was taken up again knows of an iteration.
enum Earlier {
    /// Nothing, or that it failed.
    None,
    /// Its turn was cut; this is its prompt.
    Cut(String),
    /// Its turn came to its end, and nobody heard of it.
    Done {
        /// The turn.
        turn: Turn,
        /// Its last message.
        last: Value,
    },
}

/// Asks what became of an iteration before. A prompt that is given again under its id is in the conversation once, and its
/// turn goes on where it was cut.
async fn earlier(
    conversation: &Conversation,
    id: &str,
    iteration: u32,
) -> Result<Earlier, ClientError> {
    let path = format!("/session/{id}/message");
    let request = Request {
        query: &[("limit", "1")],
        ..Request::get(&path, PATIENCE)
    };
    let mut last = conversation.client.ask(request).await?;
    let last = last[0].take();
    let info = &last["info"];
    let is_answer = info["role"] == "assistant";
    let asked = word(&info[if is_answer { "parentID" } else { "id" }]).to_owned();
    if asked.is_empty() || !info["error"].is_null() {
        return Ok(Earlier::None);
    }
    let path = format!("/session/{id}/message/{asked}");
    let words = match conversation.client.ask(Request::get(&path, PATIENCE)).await {
        Ok(words) => words,
        Err(error) if error.is_missing() => return Ok(Earlier::None),
        Err(error) => return Err(error),
    };
    let mark = &words["parts"][0]["metadata"][MARK];
    let prompt = word(&mark["prompt"]).to_owned();
    if mark["iteration"] != iteration || prompt.is_empty() {
        return Ok(Earlier::None);
    }
    if !is_answer || is_open(info) {
        return Ok(Earlier::Cut(prompt));
    }
    let mut turn = Turn::new(prompt, Some(iteration));
    turn.asides.push(asked);
    Ok(Earlier::Done { turn, last })
}

/// One that is not complete was cut. Behind a tool call there would have been more.
fn is_open(info: &Value) -> bool {
    info["time"]["completed"].is_null() || info["finish"] == "tool-calls"
}
