//! Sends prompts to the server, each exactly once.

use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_agents::opencode::Own;
use tokio::io::AsyncWrite;

use super::messages::{PAGES, is_abort, page};
use super::turn::{SentPrompt, Turn};
use super::{Bridge, Conversation, End, Origin, str_of};
use crate::client::{ClientError, Request};
use tachikoma_core::error_chain as chain;

/// Timeout of a prompt request. The server accepts a prompt at once and works on it later.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Metadata key that marks messages of the bridge. Its value contains the iteration.
const MARK: &str = "tachikoma";

/// How often a prompt is sent if it does not arrive.
const TRIES_MAX: u32 = 3;

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Sends a prompt, which starts a turn.
    pub(super) async fn prompt(
        &mut self,
        conversation: &mut Conversation,
        text: &str,
        iteration: Option<u32>,
    ) -> Result<(), End> {
        let origin = std::mem::replace(&mut conversation.origin, Origin::Fresh);
        if origin == Origin::Gone {
            let message = "the server no longer knows the conversation".to_owned();
            return self.fail(message, true).await;
        }
        let id = match conversation.id.clone() {
            Some(id) => id,
            None => {
                self.create(conversation).await?;
                conversation.id.clone().unwrap_or_default()
            }
        };
        let before = match iteration.filter(|_| origin == Origin::Resumed) {
            Some(iteration) => earlier(conversation, &id, iteration).await?,
            None => Earlier::None,
        };
        let (message, earlier_answer) = match before {
            Earlier::None => (conversation.clock.message_id(), None),
            Earlier::Cut { prompt, last } => (prompt, Some(last)),
            Earlier::Done { turn, last } => {
                conversation.turn = Some(turn);
                return self.over(conversation, &id, &last).await;
            }
        };
        let again = earlier_answer.is_some();
        let prompt = SentPrompt {
            message: message.clone(),
            iteration,
            text: iteration.is_none().then(|| text.to_owned()),
            earlier_answer,
            asides: Vec::new(),
        };
        let mut body = self.body(text, &prompt);
        body["messageID"] = message.as_str().into();
        // The part has a fixed id. Otherwise the server would add the part again when the prompt is repeated.
        body["parts"][0]["id"] = message.replacen("msg_", "prt_", 1).into();
        match send(conversation, &id, &message, &body).await {
            Ok(()) => {
                conversation.turn = Some(Turn::new(prompt));
                self.report(&Own::Prompted { message, again }).await
            }
            Err(error) if error.is_missing() => {
                conversation.id = None;
                self.fail(chain(&error), true).await
            }
            Err(error) if error.is_absence() => Err(error.into()),
            Err(error) => self.fail(chain(&error), false).await,
        }
    }

    /// Adds a message to the running turn. The model gets it with its next request. Does nothing if no turn is running.
    pub(super) async fn aside(
        &mut self,
        conversation: &mut Conversation,
        text: &str,
    ) -> Result<(), End> {
        let message = conversation.clock.message_id();
        let (Some(id), Some(turn)) = (&conversation.id, &mut conversation.turn) else {
            return Ok(());
        };
        let mut body = self.body(text, &turn.prompt);
        body["noReply"] = true.into();
        body["messageID"] = message.as_str().into();
        turn.prompt.asides.push(message);
        let path = format!("/session/{id}/message");
        let request = Request {
            timeout: PROMPT_TIMEOUT,
            ..Request::post(&path, Some(&body))
        };
        match conversation.client.ask(request).await {
            Err(error) if error.is_absence() && !error.may_have_arrived() => Err(error.into()),
            // If the server refuses the message, the turn continues without it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn body(&self, text: &str, prompt: &SentPrompt) -> Value {
        let mark = json!({"iteration": prompt.iteration, "prompt": prompt.message});
        let part = json!({"type": "text", "text": text, "metadata": {MARK: mark}});
        let mut body = json!({"parts": [part]});
        if let Some((provider, model)) = self
            .options
            .model
            .as_deref()
            .and_then(|name| name.split_once('/'))
        {
            body["model"] = json!({"providerID": provider, "modelID": model});
        }
        body
    }

    async fn fail(&mut self, message: String, lost: bool) -> Result<(), End> {
        self.report(&Own::Failed { message, lost }).await
    }
}

/// Sends a prompt. If the server does not answer, asks whether it has the message, and sends it again if not.
async fn send(
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
        let request = Request {
            timeout: PROMPT_TIMEOUT,
            ..Request::post(&path, Some(body))
        };
        let no_answer = match conversation.client.ask(request).await {
            Ok(_) => return Ok(()),
            Err(error) if error.may_have_arrived() && tries < TRIES_MAX => error,
            Err(error) => return Err(error),
        };
        match conversation.client.get(&there).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_missing() => {}
            Err(_) => return Err(no_answer),
        }
    }
}

/// State of an iteration that an earlier bridge started, as the server knows it.
enum Earlier {
    /// The server does not know the iteration, or it failed.
    None,
    /// The turn of the iteration was interrupted.
    Cut {
        /// Id of the prompt of the turn.
        prompt: String,
        /// Id of the last message of the turn.
        last: String,
    },
    /// The turn is complete, but its end was not reported.
    Done {
        /// The complete turn.
        turn: Turn,
        /// The last message of the turn.
        last: Value,
    },
}

/// Asks for the state of an iteration that an earlier bridge started. A prompt that is sent again with the same id is in the
/// conversation only once, and its turn continues where it was interrupted.
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
            // The list contains the first message, so there are no older ones.
            if list.len() < limit {
                return Ok(Earlier::None);
            }
            continue;
        };
        if mark["iteration"] != iteration {
            return Ok(Earlier::None);
        }
        let same = |message: &&Value| {
            mark_of(message).is_some_and(|other| other["prompt"] == mark["prompt"])
        };
        let marked = list.iter().filter(same);
        let prompt = SentPrompt {
            message: str_of(&mark["prompt"]).to_owned(),
            iteration: Some(iteration),
            text: None,
            earlier_answer: None,
            asides: marked
                .map(|message| str_of(&message["info"]["id"]).to_owned())
                .collect(),
        };
        return Ok(match prompt.newest_of(&list) {
            Some(newest) => judge_earlier(prompt, newest.clone()),
            None => Earlier::None,
        });
    }
    Ok(Earlier::None)
}

/// Returns the metadata of a message that a bridge sent; `None` for other messages.
fn mark_of(message: &Value) -> Option<&Value> {
    let mark = &message["parts"][0]["metadata"][MARK];
    (message["info"]["role"] == "user" && mark["prompt"].is_string()).then_some(mark)
}

/// Determines the state of a turn of an earlier bridge from its newest message.
fn judge_earlier(prompt: SentPrompt, newest: Value) -> Earlier {
    let info = &newest["info"];
    let is_answer = info["role"] == "assistant";
    let error = &info["error"];
    // The turn cannot continue after a summary, because the model does not get the messages before it.
    let is_summary = is_answer && info["summary"] == true && info["time"]["completed"].is_number();
    if is_summary || !(error.is_null() || is_abort(error)) {
        return Earlier::None;
    }
    if !is_answer || is_incomplete(info) || is_abort(error) {
        return Earlier::Cut {
            prompt: prompt.message,
            last: str_of(&info["id"]).to_owned(),
        };
    }
    Earlier::Done {
        turn: Turn::new(prompt),
        last: newest,
    }
}

/// Returns whether an answer is incomplete. After a tool call the model would have continued.
fn is_incomplete(info: &Value) -> bool {
    info["time"]["completed"].is_null() || info["finish"] == "tool-calls"
}
