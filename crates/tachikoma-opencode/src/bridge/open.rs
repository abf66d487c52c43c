//! Opens a conversation: creates one, or resumes one that an earlier bridge created.

use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_agents::opencode::{Own, rules};
use tokio::io::AsyncWrite;

use super::filter::Filter;
use super::messages::{AnswerIndex, PAGES, ServerClock, page};
use super::session_tree::SessionTree;
use super::{Bridge, ContextWindows, Conversation, End, Origin, str_of};
use crate::client::{Client, ClientError, EventStream, REQUEST_TIMEOUT, Request, unless_absent};
use tachikoma_runtime::clock::monotonic;

/// Time limit for the end of a turn after it was aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two checks whether an aborted turn has ended.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Title of the conversation. Without a title the server asks the model for one.
const TITLE: &str = "tachikoma";

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Finds the server and opens the conversation there.
    pub(super) async fn open(&mut self) -> Result<Conversation, End> {
        let found = self.find().await?;
        let client = found.client;
        // The event stream is opened before the conversation, so that no event is missed.
        let (events, clock) = listen(&client).await?;
        let mut conversation = Conversation {
            client,
            events,
            clock,
            answer_index: AnswerIndex::default(),
            version: found.version,
            id: None,
            origin: Origin::Fresh,
            windows: ContextWindows::default(),
            session_tree: SessionTree::default(),
            filter: Filter::default(),
            turn: None,
            reconnected: 0,
        };
        match self.options.resume.clone() {
            Some(id) => {
                self.resume(&mut conversation, id).await?;
                // If a prompt is repeated, its cost is reported with its turn.
                if self.recoveries == 0 {
                    self.report_use(&conversation).await?;
                }
            }
            None => self.create(&mut conversation).await?,
        }
        Ok(conversation)
    }

    /// Creates a conversation.
    pub(super) async fn create(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let body = json!({"title": TITLE, "permission": rules(self.options.permission, &self.options.allow)});
        let session = conversation.client.post("/session", Some(&body)).await?;
        let id = str_of(&session["id"]);
        if id.is_empty() {
            return Err(End::GaveUp(format!(
                "{} created a conversation without an id",
                conversation.client.address()
            )));
        }
        self.opened(conversation, id.to_owned()).await
    }

    async fn resume(&mut self, conversation: &mut Conversation, id: String) -> Result<(), End> {
        let path = format!("/session/{id}");
        // The permission rules may have changed since the conversation was created.
        let body = json!({"permission": rules(self.options.permission, &self.options.allow)});
        let request = Request {
            method: hyper::Method::PATCH,
            ..Request::post(&path, Some(&body))
        };
        match conversation.client.ask(request).await {
            Ok(_) => {}
            Err(error) if error.is_missing() => {
                conversation.origin = Origin::Gone;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        conversation.origin = Origin::Resumed;
        if abort_turn(&conversation.client, &id).await? {
            // The old stream may still contain events of the aborted turn. A new one does not.
            conversation.reconnect().await?;
        }
        // Reading the newest messages updates the clock, because the id of the next prompt has to sort after all ids of the conversation.
        unless_absent(page(conversation, &id, PAGES[0]).await)?;
        self.opened(conversation, id).await
    }

    /// Reports the cost and tokens of a resumed conversation, because interrupted turns did not report them. If the server does
    /// not know them, the conversation is used anyway.
    async fn report_use(&mut self, conversation: &Conversation) -> Result<(), End> {
        let Some(id) = &conversation.id else {
            return Ok(());
        };
        let path = format!("/session/{id}");
        let session = conversation.client.get(&path).await;
        let session = session.unwrap_or_default();
        match session["cost"].as_f64() {
            Some(usd) => {
                let tokens = session["tokens"].clone();
                self.report(&Own::TakenUp { usd, tokens }).await
            }
            None => Ok(()),
        }
    }

    async fn opened(&mut self, conversation: &mut Conversation, id: String) -> Result<(), End> {
        if conversation.id.is_none() {
            let client = conversation.client.clone();
            // The task does not have to be aborted, because its request has a timeout.
            conversation.windows.request = Some(tokio::spawn(context_windows(client)));
        }
        conversation.session_tree = SessionTree::of(&id);
        conversation.id = Some(id.clone());
        tracing::info!(
            resumed = conversation.origin == Origin::Resumed,
            "OpenCode session opened"
        );
        self.report(&Own::Session {
            id,
            version: conversation.version.clone(),
            model: self.options.model.clone(),
            permission: self.options.permission.word().to_owned(),
        })
        .await
    }

    /// Reports the context size of a model, once.
    pub(super) async fn report_window(
        &mut self,
        conversation: &mut Conversation,
        model: &str,
    ) -> Result<(), End> {
        let windows = &mut conversation.windows;
        if let Some(request) = windows.request.take() {
            windows.unreported = request.await.unwrap_or_default();
        }
        let mut unreported = windows.unreported.iter();
        let Some(at) = unreported.position(|(name, _)| name == model) else {
            return Ok(());
        };
        let (model, window) = windows.unreported.swap_remove(at);
        self.report(&Own::Window { model, window }).await
    }
}

impl Conversation {
    /// Replaces the event stream by a new one.
    pub(super) async fn reconnect(&mut self) -> Result<(), End> {
        let (events, clock) = listen(&self.client).await?;
        self.events = events;
        self.clock.follow(clock);
        Ok(())
    }
}

/// Opens an event stream and reads the server's clock from its first event.
async fn listen(client: &Client) -> Result<(EventStream, ServerClock), End> {
    let mut events = client.events().await?;
    let first = tokio::time::timeout(REQUEST_TIMEOUT, events.next()).await;
    let data = match first {
        Ok(Ok(data)) => data,
        Ok(Err(end)) => return Err(End::Lost(end.to_string())),
        Err(_) => {
            return Err(End::Lost(
                "the event stream of the server does not begin".to_owned(),
            ));
        }
    };
    let event: Value = serde_json::from_str(&data).unwrap_or_default();
    let Some(clock) = ServerClock::of(str_of(&event["id"])) else {
        return Err(End::GaveUp(format!(
            "the event stream of {} begins with {:?}: this is not an OpenCode server, or its version is not supported",
            client.address(),
            data.get(..data.floor_char_boundary(100))
                .unwrap_or_default()
        )));
    };
    Ok((events, clock))
}

/// Aborts the running turn of a conversation and waits for its end. Returns whether there was one.
async fn abort_turn(client: &Client, id: &str) -> Result<bool, ClientError> {
    let until = monotonic() + ABORT_TIMEOUT;
    let mut aborted = false;
    while is_busy(client, id).await? && monotonic() < until {
        if !aborted {
            let path = format!("/session/{id}/abort");
            client.post(&path, None).await?;
            aborted = true;
        }
        tokio::time::sleep(ABORT_POLL_INTERVAL).await;
    }
    Ok(aborted)
}

/// Asks whether a conversation has a running turn.
pub(super) async fn is_busy(client: &Client, id: &str) -> Result<bool, ClientError> {
    let status = client.get("/session/status").await?;
    Ok(status.get(id).is_some())
}

/// Asks for the context size of each model. Returns an empty list if the server does not answer.
async fn context_windows(client: Client) -> Vec<(String, u64)> {
    let asked = client.get("/config/providers").await;
    let answer = asked.unwrap_or_default();
    let mut windows = Vec::new();
    for provider in answer["providers"].as_array().into_iter().flatten() {
        let models = provider["models"].as_object().into_iter().flatten();
        for (name, model) in models {
            let limit = |name: &str| model["limit"][name].as_u64().filter(|limit| *limit > 0);
            // Some models accept less input than their context size.
            let window = [limit("context"), limit("input")]
                .into_iter()
                .flatten()
                .min();
            if let Some(window) = window {
                windows.push((format!("{}/{name}", str_of(&provider["id"])), window));
            }
        }
    }
    windows
}
