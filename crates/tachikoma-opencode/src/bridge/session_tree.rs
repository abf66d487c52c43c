//! A conversation and the conversations of its sub-agents. The bridge answers their permission requests and questions, because an
//! unanswered one blocks a conversation forever.

use serde_json::{Value, json};
use tachikoma_agents::Permission;
use tachikoma_agents::opencode::{DENIED, is_permitted_command};

use super::{Conversation, Options, str_of};
use crate::client::{Client, ClientError, unless_absent};

/// Maximum number of remembered conversations. A conversation has a handful of sub-agents.
const MEMBERS_MAX: usize = 256;

/// Ids of a conversation and of the conversations of its sub-agents.
#[derive(Debug, Default)]
pub(super) struct SessionTree(Vec<String>);

impl SessionTree {
    pub fn of(id: &str) -> Self {
        Self(vec![id.to_owned()])
    }

    /// Adds a new conversation if its parent belongs to the tree.
    pub fn add_child(&mut self, info: &Value) {
        let id = str_of(&info["id"]);
        let is_new = self.contains(str_of(&info["parentID"])) && !self.contains(id);
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

/// Answers a permission request. A request that no longer exists needs no answer. If the answer fails, the next check repeats it.
/// With safe permission, the server also asks about allowed commands with special characters, so the whole command line is checked
/// here.
pub(super) async fn answer_permission(
    client: &Client,
    asked: &Value,
    options: &Options,
) -> Result<(), ClientError> {
    let command = str_of(&asked["metadata"]["command"]);
    let is_permitted =
        asked["permission"] == "bash" && is_permitted_command(command, &options.allow);
    let body = match options.permission {
        Permission::Safe if is_permitted => json!({"reply": "once"}),
        Permission::Safe => json!({"reply": "reject", "message": DENIED}),
        Permission::Bypass => json!({"reply": "once"}),
    };
    let path = format!("/permission/{}/reply", str_of(&asked["id"]));
    unless_absent(client.post(&path, Some(&body)).await).map(drop)
}

/// Rejects a question to the user, because no user can answer it.
pub(super) async fn reject_question(client: &Client, request: &str) -> Result<(), ClientError> {
    let path = format!("/question/{request}/reject");
    unless_absent(client.post(&path, None).await).map(drop)
}

impl Conversation {
    /// Adds sub-agents that were started while the event stream was closed.
    pub(super) async fn refresh_session_tree(&mut self) -> Result<(), ClientError> {
        let mut number = 0;
        while let Some(id) = self.session_tree.member(number) {
            let path = format!("/session/{id}/children");
            // A conversation that no longer exists has no open questions.
            let children = unless_absent(self.client.get(&path).await)?.unwrap_or_default();
            for info in children.as_array().into_iter().flatten() {
                self.session_tree.add_child(info);
            }
            number += 1;
        }
        Ok(())
    }

    /// Answers permission requests and questions that the event stream did not report.
    pub(super) async fn answer_pending(&self, options: &Options) -> Result<(), ClientError> {
        for (path, is_question) in [("/permission", false), ("/question", true)] {
            let pending = unless_absent(self.client.get(path).await)?.unwrap_or_default();
            let pending = pending.as_array().into_iter().flatten();
            for asked in
                pending.filter(|asked| self.session_tree.contains(str_of(&asked["sessionID"])))
            {
                match is_question {
                    true => reject_question(&self.client, str_of(&asked["id"])).await?,
                    false => answer_permission(&self.client, asked, options).await?,
                }
            }
        }
        Ok(())
    }
}
