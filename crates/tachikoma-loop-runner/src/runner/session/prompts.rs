//! Builds the prompt of a turn: the text of the loop (`text_before_prompt` of the core has its parts), then the user's prompt.

use std::io::BufRead;

use tachikoma_agents::{AgentEvent, Claim, Decoder, claim, line};
use tachikoma_core::{LastSeen, SessionNo, WorkTree, checkpoint, handoff_due, text_before_prompt};

use crate::prompt;
use crate::runner::context::{Context, InputQueue};
use crate::session::transcripts;
use crate::store::{checkpoints, compressed, prompts};
use crate::worktree;
use tachikoma_core::error_chain as chain;

/// Maximum number of transcripts that are searched for the last output of a session. Attempts that failed early have empty ones.
const TRANSCRIPTS_MAX: usize = 8;

/// Builds prompts and stores the data for the next one.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    /// The last prompt. Text that is quoted from it is not checked for patterns.
    last: String,
    /// The hand-off for the current session; `None` until it is built.
    handoff: Option<HandOff>,
    /// Why the completion promise in the last answer was not accepted as a claim. The next prompt explains it.
    rejected_claim: Option<String>,
}

/// A hand-off. Every attempt of its session that needs it gets the same text.
#[derive(Debug)]
struct HandOff {
    session: SessionNo,
    text: String,
}

impl Prompts {
    /// Returns the last prompt.
    pub fn last(&self) -> &str {
        &self.last
    }

    /// Returns the prompt of the next turn.
    ///
    /// # Errors
    /// The user's prompt cannot be read.
    pub async fn next(
        &mut self,
        context: Context<'_>,
        queue: &mut InputQueue,
    ) -> Result<String, String> {
        let text = user_text(context)?;
        let handoff = self.handoff(context, queue).await;
        let rejected = self.rejected_claim.take();
        let before = text_before_prompt(context.state, rejected.as_deref(), &handoff);
        let prompt = before + &text;
        self.last.clone_from(&prompt);
        Ok(prompt)
    }

    /// Returns whether a final text claims completion. A text that only resembles a claim causes a warning, and the next prompt explains why.
    pub fn is_claim(&mut self, context: Context<'_>, text: &str, queue: &mut InputQueue) -> bool {
        let promise = &context.config.settings.stop_conditions.completion_promise;
        match claim(text, promise, &self.last) {
            Claim::Made => true,
            Claim::Absent => false,
            Claim::NotMeant(doubt) => {
                queue.warn(format!(
                    "iteration {} names the completion promise, but does not claim it: {doubt}",
                    context.state.iteration
                ));
                self.rejected_claim = Some(doubt.to_string());
                false
            }
        }
    }

    /// Returns the hand-off. It is empty if the session already has the context.
    async fn handoff(&mut self, context: Context<'_>, queue: &mut InputQueue) -> String {
        let state = context.state;
        if context.policy.fresh_each_iteration || !handoff_due(state) {
            return String::new();
        }
        let session = state.session.number;
        let built = self.handoff.as_ref();
        if let Some(built) = built.filter(|built| built.session == session) {
            return built.text.clone();
        }
        let dir = context.loop_dir();
        let encryption = &context.config.encryption;
        // An earlier runner may have stored the hand-off. If its file cannot be read, the hand-off is built again.
        let text = match checkpoints::read(&dir, session, encryption) {
            Ok(Some(text)) => text,
            Ok(None) | Err(_) => {
                let text = build_handoff(context).await;
                if let Err(error) = checkpoints::write(&dir, session, &text, encryption) {
                    queue.warn(format!(
                        "the hand-off for session {session} was given to the agent but not saved: {}",
                        chain(&error)
                    ));
                }
                text
            }
        };
        self.handoff = Some(HandOff {
            session,
            text: text.clone(),
        });
        text
    }
}

/// Returns the user's prompt, or the prompt that the operator wrote for this iteration.
fn user_text(context: Context<'_>) -> Result<String, String> {
    let state = context.state;
    match &state.operator.prompt {
        None => prompt::read(&state.launch.prompt, &context.config.working_dir)
            .map_err(|error| chain(&error)),
        Some(edited) => prompts::read(&context.loop_dir(), edited, &context.config.encryption)
            .map_err(|error| {
                format!("the prompt that the operator wrote for this iteration is lost: {error}")
            }),
    }
}

async fn build_handoff(context: Context<'_>) -> String {
    let Context { config, state, .. } = context;
    let max_bytes = config.settings.reboot.handoff_max_bytes;
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let dir = config.working_dir.clone();
    let start = state.launch.start_commit.clone();
    let changes = tokio::task::spawn_blocking(move || worktree::since(&dir, start.as_deref()));
    let tree: WorkTree = changes.await.unwrap_or_default();
    let last = match state.checkpoint.words_of.next() == state.session.number {
        true => LastSeen::default(),
        false => last_output(context).await,
    };
    checkpoint(state, &tree, &last, max_bytes)
}

/// Returns the last output of the previous session, which wrote no hand-off. It is read from the latest transcript of that session.
async fn last_output(context: Context<'_>) -> LastSeen {
    let directory = context.config.transcripts_dir(context.state.loop_id);
    let (encryption, decoder) = (context.config.encryption.clone(), context.agent.decoder());
    let line_bytes_max = context.agent.line_max_bytes();
    let read = tokio::task::spawn_blocking(move || {
        let listed = transcripts::list(&directory).unwrap_or_default();
        // The latest transcript may belong to the new session and be empty.
        let latest = listed.iter().rev().take(TRANSCRIPTS_MAX);
        let mut seen = latest.filter_map(|transcript| {
            let opened = compressed::open(&transcript.path, &encryption).ok()?;
            let last = last_seen(opened.content, decoder.clone(), line_bytes_max);
            (last != LastSeen::default()).then_some(last)
        });
        seen.next()
    });
    read.await.ok().flatten().unwrap_or_default()
}

/// Reads a transcript up to the first error, and returns the agent's last texts and actions.
fn last_seen(content: impl BufRead, mut decoder: Decoder, line_bytes_max: usize) -> LastSeen {
    let mut last = LastSeen::default();
    let mut lines = line::LineSplitter::new(line_bytes_max);
    let mut read_line = |line: line::Line<'_>| {
        for event in decoder.decode(line.text.as_bytes()) {
            match event {
                AgentEvent::Said(text) => last.said(&text),
                AgentEvent::ToolStarted { name, about, .. } => last.called(&name, &about),
                _ => {}
            }
        }
    };
    let mut content = content;
    while let Ok(piece) = content.fill_buf() {
        if piece.is_empty() {
            break;
        }
        let length = piece.len();
        lines.push(piece, &mut read_line);
        content.consume(length);
    }
    lines.finish(&mut read_line);
    last
}
