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

/// How often it is asked whether a prompt arrived, and given again where it did not.
const TRIES_MAX: u32 = 3;

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Begins a turn.
    pub(super) async fn prompt(
        &mut self,
        conversation: &mut Conversation,
        text: &str,
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
        let cut = if std::mem::take(&mut conversation.resumed) {
            cut_turn(conversation, &id, text)
                .await
                .map_err(|e| lost(&e))?
        } else {
            None
        };
        let again = cut.is_some();
        let message = cut.unwrap_or_else(|| conversation.message_id());
        let mut body = self.body(text, Some(&message));
        body["messageID"] = message.as_str().into();
        let turn = Turn::new(message.clone());
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
        let (Some(id), Some(_)) = (&conversation.id, &conversation.turn) else {
            return Ok(());
        };
        let mut body = self.body(text, None);
        body["noReply"] = true.into();
        let path = format!("/session/{id}/message");
        let request = Request::post(&path, Some(&body), PROMPT_PATIENCE);
        match conversation.client.ask(request).await {
            Err(error) if error.is_absence() && !error.is_open() => Err(lost(&error)),
            // A word that was not heard is no reason to end anything.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn body(&self, text: &str, message: Option<&str>) -> Value {
        let mut part = json!({"type": "text", "text": text});
        if let Some(message) = message {
            // A part without an id would be added each time.
            let part_id = message.replacen("msg_", "prt_", 1);
            part["id"] = part_id.into();
        }
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

/// Returns the message of the last turn if that turn was cut and this is its prompt: given again under its id, it goes on
/// where it was, and the prompt is in the conversation once.
async fn cut_turn(
    conversation: &Conversation,
    id: &str,
    text: &str,
) -> Result<Option<String>, ClientError> {
    let path = format!("/session/{id}/message");
    let request = Request {
        query: &[("limit", "1")],
        ..Request::get(&path, PATIENCE)
    };
    let last = conversation.client.ask(request).await?;
    let info = &last[0]["info"];
    let asked = match word(&info["role"]) {
        "user" => word(&info["id"]),
        // One that is complete, or was ended by someone, is over. Behind a tool call there would have been more.
        "assistant" if info["error"].is_null() && is_open(info) => word(&info["parentID"]),
        _ => return Ok(None),
    };
    if asked.is_empty() {
        return Ok(None);
    }
    let path = format!("/session/{id}/message/{asked}");
    let prompt = match conversation.client.ask(Request::get(&path, PATIENCE)).await {
        Ok(prompt) => prompt,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error),
    };
    let part = &prompt["parts"][0];
    // Only what a bridge gave it has a part of the same name.
    let ours = word(&part["id"]) == asked.replacen("msg_", "prt_", 1);
    Ok((ours && part["text"] == text).then(|| asked.to_owned()))
}

fn is_open(info: &Value) -> bool {
    info["time"]["completed"].is_null() || info["finish"] == "tool-calls"
}
