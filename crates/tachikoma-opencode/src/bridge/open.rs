//! Opening the conversation: a fresh one, or one that an earlier bridge had.

use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_agents::opencode::{Own, rules};
use tokio::io::AsyncWrite;

use super::filter::Filter;
use super::messages::{AnswerIndex, PAGES, ServerClock, page};
use super::session_tree::SessionTree;
use super::{Bridge, Conversation, End, REQUEST_TIMEOUT, lost, word};
use crate::client::{Client, ClientError, EventStream, Request};
use tachikoma_runtime::clock::monotonic;

/// How long a turn that was ended may take to be over.
const QUIET_PATIENCE: Duration = Duration::from_secs(10);

/// How often it is asked whether it is.
const QUIET_POLL: Duration = Duration::from_millis(100);

/// What the conversation is called: with a name of its own, the model is not asked for one.
const TITLE: &str = "tachikoma";

/// A stream of events that has begun.
struct Listening {
    events: EventStream,
    clock: ServerClock,
}

impl<O: AsyncWrite + Unpin> Bridge<O> {
    /// Finds the server and opens the conversation there.
    pub(super) async fn open(&mut self) -> Result<Conversation, End> {
        let found = self.find().await?;
        let client = found.client;
        // First of all, so that nothing is missed.
        let listening = listen(&client).await?;
        let mut conversation = Conversation {
            client,
            events: listening.events,
            clock: listening.clock,
            answer_index: AnswerIndex::default(),
            version: found.version,
            id: None,
            gone: false,
            asked_windows: None,
            windows: Vec::new(),
            session_tree: SessionTree::default(),
            filter: Filter::default(),
            turn: None,
            resumed: false,
            reconnected: 0,
        };
        match self.options.resume.clone() {
            Some(id) => {
                self.take_up(&mut conversation, id).await?;
                // What is told of a turn under way is counted with that turn.
                if self.recoveries == 0 {
                    self.tell_use(&conversation).await?;
                }
            }
            None => self.begin(&mut conversation).await?,
        }
        Ok(conversation)
    }

    /// Begins a fresh conversation.
    pub(super) async fn begin(&mut self, conversation: &mut Conversation) -> Result<(), End> {
        let body = json!({"title": TITLE, "permission": rules(self.options.permission, &self.options.allow)});
        let request = Request::post("/session", Some(&body), REQUEST_TIMEOUT);
        let session = conversation
            .client
            .ask(request)
            .await
            .map_err(|e| lost(&e))?;
        let id = word(&session["id"]);
        if id.is_empty() {
            return Err(End::GaveUp(format!(
                "{} made a conversation without an id",
                conversation.client.address()
            )));
        }
        self.opened(conversation, id.to_owned()).await
    }

    async fn take_up(&mut self, conversation: &mut Conversation, id: String) -> Result<(), End> {
        let path = format!("/session/{id}");
        // The rules may be others than those it was begun with.
        let body = json!({"permission": rules(self.options.permission, &self.options.allow)});
        let request = Request {
            method: reqwest::Method::PATCH,
            ..Request::post(&path, Some(&body), REQUEST_TIMEOUT)
        };
        match conversation.client.ask(request).await {
            Ok(_) => {}
            Err(error) if error.is_missing() => {
                conversation.gone = true;
                return Ok(());
            }
            Err(error) => return Err(lost(&error)),
        }
        conversation.resumed = true;
        let ended = quiet(&conversation.client, &id).await;
        if ended.map_err(|e| lost(&e))? {
            // What is told of that turn is not told to whoever begins to listen now.
            conversation.listen_again().await?;
        }
        // The next prompt's id has to sort after all that are there.
        if let Err(error) = page(conversation, &id, PAGES[0]).await
            && error.is_absence()
        {
            return Err(lost(&error));
        }
        self.opened(conversation, id).await
    }

    /// Tells what a conversation has used: of turns that were cut nothing was told. A server that does not say it is no reason not to
    /// work with it.
    async fn tell_use(&mut self, conversation: &Conversation) -> Result<(), End> {
        let Some(id) = &conversation.id else {
            return Ok(());
        };
        let path = format!("/session/{id}");
        let session = conversation
            .client
            .ask(Request::get(&path, REQUEST_TIMEOUT))
            .await;
        let session = session.unwrap_or_default();
        match session["cost"].as_f64() {
            Some(usd) => {
                let tokens = session["tokens"].clone();
                self.say(&Own::TakenUp { usd, tokens }).await
            }
            None => Ok(()),
        }
    }

    async fn opened(&mut self, conversation: &mut Conversation, id: String) -> Result<(), End> {
        if conversation.id.is_none() {
            let client = conversation.client.clone();
            // Ends with its answer, which has a time-out.
            conversation.asked_windows = Some(tokio::spawn(windows(client)));
        }
        conversation.session_tree = SessionTree::of(&id);
        conversation.id = Some(id.clone());
        self.say(&Own::Session {
            id,
            version: conversation.version.clone(),
            model: self.options.model.clone(),
            permission: self.options.permission.word().to_owned(),
        })
        .await
    }

    /// Tells how much fits into a model's context, once.
    pub(super) async fn tell_window(
        &mut self,
        conversation: &mut Conversation,
        model: &str,
    ) -> Result<(), End> {
        if let Some(asked) = conversation.asked_windows.take() {
            conversation.windows = asked.await.unwrap_or_default();
        }
        let mut windows = conversation.windows.iter();
        let Some(at) = windows.position(|(name, _)| name == model) else {
            return Ok(());
        };
        let (model, window) = conversation.windows.swap_remove(at);
        self.say(&Own::Window { model, window }).await
    }
}

impl Conversation {
    /// Listens to a new stream in the place of the one before.
    pub(super) async fn listen_again(&mut self) -> Result<(), End> {
        let listening = listen(&self.client).await?;
        self.events = listening.events;
        self.clock.follow(listening.clock);
        Ok(())
    }
}

/// Begins to listen, and learns what time it is there.
async fn listen(client: &Client) -> Result<Listening, End> {
    let mut events = client.events(REQUEST_TIMEOUT).await.map_err(|e| lost(&e))?;
    let first = tokio::time::timeout(REQUEST_TIMEOUT, events.next()).await;
    let data = match first {
        Ok(Ok(data)) => data,
        Ok(Err(end)) => return Err(End::Lost(end.to_string())),
        Err(_) => return Err(End::Lost("its event stream does not begin".to_owned())),
    };
    let event: Value = serde_json::from_str(&data).unwrap_or_default();
    let Some(clock) = ServerClock::of(word(&event["id"])) else {
        return Err(End::GaveUp(format!(
            "the event stream of {} begins with {:?}: this is not an OpenCode server, or one of another kind",
            client.address(),
            data.get(..data.floor_char_boundary(100))
                .unwrap_or_default()
        )));
    };
    Ok(Listening { events, clock })
}

/// Ends a turn that goes on from before, and waits until it is over. Returns whether there was one.
async fn quiet(client: &Client, id: &str) -> Result<bool, ClientError> {
    let until = monotonic() + QUIET_PATIENCE;
    let mut told = false;
    while is_busy(client, id).await? && monotonic() < until {
        if !told {
            let path = format!("/session/{id}/abort");
            client
                .ask(Request::post(&path, None, REQUEST_TIMEOUT))
                .await?;
            told = true;
        }
        tokio::time::sleep(QUIET_POLL).await;
    }
    Ok(told)
}

/// Asks whether a conversation has a turn under way.
pub(super) async fn is_busy(client: &Client, id: &str) -> Result<bool, ClientError> {
    let status = client
        .ask(Request::get("/session/status", REQUEST_TIMEOUT))
        .await?;
    Ok(status.get(id).is_some())
}

/// Asks how much fits into the context of each model. A server that does not tell is no reason not to work with it.
async fn windows(client: Client) -> Vec<(String, u64)> {
    let asked = client
        .ask(Request::get("/config/providers", REQUEST_TIMEOUT))
        .await;
    let answer = asked.unwrap_or_default();
    let mut windows = Vec::new();
    for provider in answer["providers"].as_array().into_iter().flatten() {
        let models = provider["models"].as_object().into_iter().flatten();
        for (name, model) in models {
            let limit = |name: &str| model["limit"][name].as_u64().filter(|limit| *limit > 0);
            // Some take less than they hold.
            let window = [limit("context"), limit("input")]
                .into_iter()
                .flatten()
                .min();
            if let Some(window) = window {
                windows.push((format!("{}/{name}", word(&provider["id"])), window));
            }
        }
    }
    windows
}
