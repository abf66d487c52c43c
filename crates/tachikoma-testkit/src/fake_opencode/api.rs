//! The API of the fake server for conversations.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::Server;
use super::conversations::now;
use super::routes::JSON;
use crate::model::http::{Raw, send_piece, start_stream};

/// Interval of heartbeats in an event stream.
const HEARTBEAT: Duration = Duration::from_secs(1);

type Answer = (u16, &'static str, String);

impl Server {
    /// Answers a request about conversations; `None` for other requests.
    pub(super) fn converse(self: &Arc<Self>, request: &Raw) -> Option<Answer> {
        let ok = |body: Value| (200, JSON, body.to_string());
        let words: Vec<&str> = request.path.split('/').skip(1).collect();
        let body = || serde_json::from_slice::<Value>(&request.body).unwrap_or_default();
        let known = |id: &str| self.conversations.knows(id);
        let answer = match (request.method.as_str(), &words[..]) {
            ("GET", ["config", "providers"]) => {
                let limit = json!({"context": 100_000, "output": 8_000});
                let models = json!({"fake-1": {"limit": limit}});
                ok(json!({"providers": [{"id": "fake", "models": models}], "default": {}}))
            }
            ("GET", ["permission"]) => ok(self.conversations.asked()),
            ("GET", ["question"]) => ok(json!([])),
            ("POST", ["permission", question, "reply"]) => {
                match self.conversations.replied(question) {
                    Some(()) => ok(json!(true)),
                    None => (404, JSON, json!({"name": "NotFoundError"}).to_string()),
                }
            }
            ("POST", ["session"]) => {
                let id = self.conversations.begin();
                ok(json!({"id": id, "title": body()["title"]}))
            }
            (_, ["session", id, ..]) if *id != "status" && !known(id) => {
                let error = json!({"name": "NotFoundError", "data": {"message": format!("Session not found: {id}")}});
                (404, JSON, error.to_string())
            }
            ("GET" | "PATCH", ["session", id]) if *id != "status" => {
                let (cost, tokens) = self.conversations.used(id);
                ok(json!({"id": id, "cost": cost, "tokens": {"input": tokens}}))
            }
            ("POST", ["session", id, "abort"]) => {
                self.conversations.stop(id);
                ok(json!(true))
            }
            ("POST", ["session", id, "prompt_async"]) => return Some(self.prompt(id, &body())),
            ("POST", ["session", id, "message"]) => ok(self.said(id, &body())),
            ("GET", ["session", id, "children"]) => ok(self.conversations.children(id)),
            ("GET", ["session", _, "message"]) if self.misbehavior.messages.is_some() => {
                let answer = self.misbehavior.messages.clone().unwrap_or_default();
                (200, JSON, answer)
            }
            ("GET", ["session", id, "message"]) => {
                let messages = self.conversations.messages(id);
                let limit = request
                    .query
                    .split('&')
                    .find_map(|w| w.strip_prefix("limit="));
                let limit = limit
                    .and_then(|limit| limit.parse().ok())
                    .unwrap_or(usize::MAX);
                let skipped = messages.len().saturating_sub(limit);
                ok(messages.into_iter().skip(skipped).collect())
            }
            ("GET", ["session", id, "message", wanted]) => {
                let messages = self.conversations.messages(id);
                match messages.into_iter().find(|m| m["info"]["id"] == *wanted) {
                    Some(message) => ok(message),
                    None => (404, JSON, json!({"name": "NotFoundError"}).to_string()),
                }
            }
            _ => return None,
        };
        Some(answer)
    }

    /// Stores a prompt and returns its message.
    fn said(&self, session: &str, body: &Value) -> Value {
        let id = match body["messageID"].as_str() {
            Some(id) => id.to_owned(),
            None => self.conversations.id("msg"),
        };
        let info =
            json!({"id": id, "role": "user", "sessionID": session, "time": {"created": now()}});
        let message = json!({"info": info, "parts": body["parts"]});
        self.conversations.put(session, message.clone());
        message
    }

    fn prompt(self: &Arc<Self>, session: &str, body: &Value) -> Answer {
        let number = self.prompts.fetch_add(1, Ordering::Relaxed);
        // Status 0 is never sent: the connection is closed instead.
        let unanswered = (0, JSON, String::new());
        if number < self.misbehavior.loses_prompts {
            return unanswered;
        }
        if let Some((prompts, millis)) = self.misbehavior.clock_step
            && number >= prompts
        {
            self.conversations.step_clock(millis);
        }
        let message = self.said(session, body);
        let id = message["info"]["id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        self.note("prompted", &id);
        if self.conversations.occupy(session) {
            let (server, session) = (Arc::clone(self), session.to_owned());
            // The thread ends with its turn or with the program.
            thread::spawn(move || server.work(&session, &id));
        }
        if number < self.misbehavior.swallows_answers {
            return unanswered;
        }
        (204, JSON, String::new())
    }

    /// Sends events until the client closes the connection, or ends the stream early if that is configured.
    pub(super) fn stream(&self, stream: &mut TcpStream) -> io::Result<()> {
        let events = self.conversations.listen();
        start_stream(stream, &BTreeMap::new())?;
        let mut sent = 0;
        loop {
            let event = match events.recv_timeout(HEARTBEAT) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    let id = self.conversations.id("evt");
                    json!({"id": id, "type": "server.heartbeat", "properties": {}}).to_string()
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            send_piece(stream, &format!("data: {event}\n\n"))?;
            sent += 1;
            if let Some(garbage) = &self.misbehavior.garbage {
                send_piece(stream, &format!("data: {garbage}\n\n"))?;
            }
            if self.misbehavior.cuts_streams_after == Some(sent)
                && self.cuts.fetch_add(1, Ordering::Relaxed) < CUTS_MAX
            {
                return Ok(());
            }
        }
    }
}

/// How often a stream is ended early.
const CUTS_MAX: u32 = 3;
