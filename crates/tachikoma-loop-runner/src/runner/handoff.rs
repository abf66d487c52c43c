//! The hand-off of a session: built once, kept, and given word for word to every attempt that needs it.

use std::io::BufRead;

use tachikoma_agents::{Decoder, Observation, line};
use tachikoma_core::{Input, LastSeen, SessionNo, WorkTree, checkpoint, handoff_due};

use super::LoopRunner;
use crate::error::chain;
use crate::session::transcripts;
use crate::store::{checkpoints, compressed, loops};
use crate::worktree;

/// Transcripts that are looked at for the last words of a session: those of attempts that came to nothing say nothing.
const TRANSCRIPTS_MAX: usize = 8;

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
                    self.queue.push_back(Input::Warning { warning });
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
        let last = match self.state.checkpoint.words_of.next() == self.state.session.number {
            true => LastSeen::default(),
            false => self.last_seen().await,
        };
        checkpoint(&self.state, &tree, &last, max_bytes)
    }

    /// Returns what the session before this one did last, from its latest transcript: it wrote no hand-off.
    async fn last_seen(&self) -> LastSeen {
        let directory = self.config.transcripts_dir(self.state.loop_id);
        let (vault, decoder) = (self.config.vault.clone(), self.agent.decoder());
        let line_bytes_max = self.agent.line_max_bytes();
        let read = tokio::task::spawn_blocking(move || {
            let listed = transcripts::list(&directory).unwrap_or_default();
            // The latest one may be that of the fresh session, in which nothing was said yet.
            let latest = listed.iter().rev().take(TRANSCRIPTS_MAX);
            let mut seen = latest.filter_map(|transcript| {
                let opened = compressed::open(&transcript.path, &vault).ok()?;
                let last = last_seen(opened.content, decoder.clone(), line_bytes_max);
                (last != LastSeen::default()).then_some(last)
            });
            seen.next()
        });
        read.await.ok().flatten().unwrap_or_default()
    }
}

/// Reads a transcript for the last things that the agent said and did. What cannot be read ends it.
fn last_seen(content: impl BufRead, mut decoder: Decoder, line_bytes_max: usize) -> LastSeen {
    let mut last = LastSeen::default();
    let mut lines = line::LineSplitter::new(line_bytes_max);
    let mut take = |line: line::Line<'_>| {
        for observation in decoder.observe(&line.text) {
            match observation {
                Observation::Said(text) => last.said(&text),
                Observation::ToolStarted { name, about, .. } => last.called(&name, &about),
                _ => {}
            }
        }
    };
    let mut content = content;
    while let Ok(piece) = content.fill_buf() {
        if piece.is_empty() {
            break;
        }
        let read = piece.len();
        lines.push(piece, &mut take);
        content.consume(read);
    }
    lines.finish(&mut take);
    last
}
