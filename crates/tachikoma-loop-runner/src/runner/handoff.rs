//! The hand-off of a session: built once, kept, and given word for word to every attempt that needs it.

use tachikoma_core::{Input, SessionNo, WorkTree, checkpoint, handoff_due};

use super::LoopRunner;
use crate::error::chain;
use crate::store::{checkpoints, loops};
use crate::worktree;

/// A hand-off that was given.
#[derive(Debug)]
pub(super) struct Given {
    session: SessionNo,
    text: String,
}

impl LoopRunner {
    /// Returns what comes before the words of the user: nothing for a session that knows where the work stands.
    pub(super) async fn handoff(&mut self) -> String {
        if self.policy.fresh_each_iteration || !handoff_due(&self.state) {
            return String::new();
        }
        let session = self.state.session.number;
        let given = self.given.as_ref().filter(|given| given.session == session);
        if let Some(given) = given {
            return given.text.clone();
        }
        let root = self.config.store_root(self.state.loop_id);
        let dir = loops::dir(&root, self.state.loop_id);
        // What an earlier runner gave. One that cannot be read is written anew.
        let text = match checkpoints::read(&dir, session, &self.config.vault) {
            Ok(Some(text)) => text,
            Ok(None) | Err(_) => {
                let text = self.build_handoff().await;
                if let Err(error) = checkpoints::keep(&dir, session, &text, &self.config.vault) {
                    let warning = format!(
                        "the hand-off to session {session} is given, but not kept: {}",
                        chain(&error)
                    );
                    self.queue.push_back(Input::Trouble { warning });
                }
                text
            }
        };
        self.given = Some(Given {
            session,
            text: text.clone(),
        });
        text
    }

    async fn build_handoff(&self) -> String {
        let max_bytes = self.config.settings.reboot.handoff_max_bytes;
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let dir = self.config.working_dir.clone();
        let start = self.state.launch.start_commit.clone();
        let asked = tokio::task::spawn_blocking(move || worktree::since(&dir, start.as_deref()));
        let tree: WorkTree = asked.await.unwrap_or_default();
        checkpoint(&self.state, &tree, max_bytes)
    }
}
