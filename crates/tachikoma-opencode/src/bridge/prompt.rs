//! Giving the server a prompt: once, whatever happens on the way.

use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_agents::opencode::Own;
use tokio::io::AsyncWrite;

use super::messages::{PAGES, is_abort, page};
use super::turn::Turn;
use super::{Bridge, Conversation, End, REQUEST_TIMEOUT, lost, word};
use crate::client::{ClientError, Request};
use tachikoma_core::error_chain as chain;

/// The server takes a prompt at once, and works on it later.
const PROMPT_PATIENCE: Duration = Duration::from_secs(10);

/// Under this name a message has the iteration that it belongs to.
pub(super) const MARK: &str = "tachikoma";

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
        let (message, after) = match before {
            Earlier::None => (conversation.clock.message_id(), None),
            Earlier::Cut { prompt, last } => (prompt, Some(last)),
            Earlier::Done { turn, last } => {
                conversation.turn = Some(turn);
                return self.over(conversation, &id, &last).await;
            }
        };
        let again = after.is_some();
        let mut turn = Turn::new(message.clone(), iteration);
        turn.after = after.unwrap_or_default();
        turn.text = iteration.is_none().then(|| text.to_owned());
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
        let message = conversation.clock.message_id();
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
            .ask(Request::get(&there, REQUEST_TIMEOUT))
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
    /// Its turn was cut.
    Cut {
        /// Its prompt.
        prompt: String,
        /// The last message that there is.
        last: String,
    },
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
    conversation: &mut Conversation,
    id: &str,
    iteration: u32,
) -> Result<Earlier, ClientError> {
    for limit in PAGES {
        let Some(list) = page(conversation, id, limit).await? else {
            return Ok(Earlier::None);
        };
        let Some(mark) = list.iter().rev().find_map(mark_of) else {
            // There is nothing before the first message.
            if list.len() < limit {
                return Ok(Earlier::None);
            }
            continue;
        };
        if mark["iteration"] != iteration {
            return Ok(Earlier::None);
        }
        let mut turn = Turn::new(word(&mark["prompt"]).to_owned(), Some(iteration));
        let same = |message: &&Value| {
            mark_of(message).is_some_and(|other| other["prompt"] == mark["prompt"])
        };
        let marked = list.iter().filter(same);
        turn.asides = marked
            .map(|message| word(&message["info"]["id"]).to_owned())
            .collect();
        return Ok(match turn.newest_of(&list) {
            Some(newest) => judged(turn, newest.clone()),
            None => Earlier::None,
        });
    }
    Ok(Earlier::None)
}

/// Returns what we wrote on a message of ours.
fn mark_of(message: &Value) -> Option<&Value> {
    let mark = &message["parts"][0]["metadata"][MARK];
    (message["info"]["role"] == "user" && mark["prompt"].is_string()).then_some(mark)
}

/// Judges a turn of an earlier bridge by the newest message that belongs to it.
fn judged(turn: Turn, newest: Value) -> Earlier {
    let info = &newest["info"];
    let is_answer = info["role"] == "assistant";
    let error = &info["error"];
    // Of what was said before a summary the model hears nothing any more.
    let is_summary = is_answer && info["summary"] == true && info["time"]["completed"].is_number();
    if is_summary || !(error.is_null() || is_abort(error)) {
        return Earlier::None;
    }
    if !is_answer || is_open(info) || is_abort(error) {
        return Earlier::Cut {
            prompt: turn.message,
            last: word(&info["id"]).to_owned(),
        };
    }
    Earlier::Done { turn, last: newest }
}

/// One that is not complete was cut. Behind a tool call there would have been more.
fn is_open(info: &Value) -> bool {
    info["time"]["completed"].is_null() || info["finish"] == "tool-calls"
}
