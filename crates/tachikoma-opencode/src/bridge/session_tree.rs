//! A conversation and those that its sub-agents have: whatever one of them asks is answered, since a question that nobody
//! answers keeps it busy for ever.

use serde_json::{Value, json};
use tachikoma_agents::Permission;
use tachikoma_agents::opencode::{DENIED, is_permitted_command};

use super::{Conversation, Options, REQUEST_TIMEOUT, word};
use crate::client::{Client, ClientError, Request};

/// Sub-agents that are known; a conversation has a handful.
const MEMBERS_MAX: usize = 256;

/// A conversation and its descendants.
#[derive(Debug, Default)]
pub(super) struct SessionTree(Vec<String>);

impl SessionTree {
    pub fn of(id: &str) -> Self {
        Self(vec![id.to_owned()])
    }

    /// Takes a new conversation in, if it is one of us.
    pub fn add_child(&mut self, info: &Value) {
        let id = word(&info["id"]);
        let is_new = self.contains(word(&info["parentID"])) && !self.contains(id);
        if is_new && self.0.len() < MEMBERS_MAX {
            self.0.push(id.to_owned());
        }
    }

    fn member(&self, number: usize) -> Option<&str> {
        self.0.get(number).map(String::as_str)
    }

    pub fn contains(&self, id: &str) -> bool {
        !id.is_empty() && self.0.iter().any(|known| known == id)
    }
}

/// Answers a question for permission. With safe permission the server also asks about permitted commands that have special
/// characters: here the whole command line is checked.
pub(super) async fn permit(
    client: &Client,
    asked: &Value,
    options: &Options,
) -> Result<(), ClientError> {
    let command = word(&asked["metadata"]["command"]);
    let is_permitted =
        asked["permission"] == "bash" && is_permitted_command(command, &options.allow);
    let body = match options.permission {
        Permission::Safe if is_permitted => json!({"reply": "once"}),
        Permission::Safe => json!({"reply": "reject", "message": DENIED}),
        Permission::Bypass => json!({"reply": "once"}),
    };
    let path = format!("/permission/{}/reply", word(&asked["id"]));
    taken(
        client
            .ask(Request::post(&path, Some(&body), REQUEST_TIMEOUT))
            .await,
    )
}

/// Refuses to answer a question to the user.
pub(super) async fn refuse(client: &Client, request: &str) -> Result<(), ClientError> {
    let path = format!("/question/{request}/reject");
    taken(
        client
            .ask(Request::post(&path, None, REQUEST_TIMEOUT))
            .await,
    )
}

/// A question that is gone needs no answer, and one that cannot be answered is asked about again at the next look.
fn taken(answer: Result<Value, ClientError>) -> Result<(), ClientError> {
    match answer {
        Err(error) if error.is_absence() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

impl Conversation {
    /// Asks for sub-agents that began while nobody listened, and theirs.
    pub(super) async fn refresh_session_tree(&mut self) -> Result<(), ClientError> {
        let mut number = 0;
        while let Some(id) = self.session_tree.member(number) {
            let path = format!("/session/{id}/children");
            match self.client.ask(Request::get(&path, REQUEST_TIMEOUT)).await {
                Ok(children) => {
                    for info in children.as_array().into_iter().flatten() {
                        self.session_tree.add_child(info);
                    }
                }
                Err(error) if error.is_absence() => return Err(error),
                // One that is gone asks for nothing.
                Err(_) => {}
            }
            number += 1;
        }
        Ok(())
    }

    /// Answers what was asked without our hearing it.
    pub(super) async fn answer_pending(&self, options: &Options) -> Result<(), ClientError> {
        for (path, is_question) in [("/permission", false), ("/question", true)] {
            let pending = match self.client.ask(Request::get(path, REQUEST_TIMEOUT)).await {
                Ok(pending) => pending,
                Err(error) if error.is_absence() => return Err(error),
                Err(_) => continue,
            };
            let pending = pending.as_array().into_iter().flatten();
            for asked in
                pending.filter(|asked| self.session_tree.contains(word(&asked["sessionID"])))
            {
                match is_question {
                    true => refuse(&self.client, word(&asked["id"])).await?,
                    false => permit(&self.client, asked, options).await?,
                }
            }
        }
        Ok(())
    }
}
