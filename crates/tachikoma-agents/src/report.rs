//! Summary of the whole output of one process: `tachikoma agents decode`.

use serde::Serialize;
use tachikoma_core::Timestamp;

use crate::{AgentEvent, Decoder, Reading, SessionInfo, TurnResult};

/// Maximum number of files that are listed. Writes to other files are only counted.
const FILES_NAMED_MAX: usize = 100;

/// Maximum number of bytes of the final text that are shown.
const TEXT_BYTES_MAX: usize = 2000;

/// How a process ended: its exit code, or the negated number of the signal that killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(pub i32);

impl Exit {
    /// Names the end of a process without a result. `said` is whether any output was understood.
    fn detail(self, said: bool) -> &'static str {
        match self.0 {
            129 | -1 => "sighup",
            143 | -15 => "sigterm",
            137 | i32::MIN..0 => "killed",
            // The agent exits with 0 after an interrupt while it is idle.
            0 => "interrupted",
            _ if !said => "startup_failure",
            _ => "died",
        }
    }
}

/// What a decoder has learned so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Lines that were not understood.
    pub unknown_lines: u64,
    /// Number of messages that were measured.
    pub readings: u64,
    /// The latest reading of the context; `None` before the first.
    pub reading: Option<Reading>,
    /// The agent's conversation.
    pub session: SessionInfo,
    /// The context window of the model that answers; `None` if it is unknown.
    pub window: Option<u64>,
    /// Cost of this process in dollars.
    pub cost_usd: f64,
}

/// Summarizes the events of one process.
#[derive(Clone, Debug)]
pub struct Summing {
    decoder: Decoder,
    last: Option<TurnResult>,
    counts: Counts,
    files: Vec<String>,
    in_turn: bool,
}

/// Counts of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of lines that are not empty.
    pub lines: u64,
    /// Number of lines that were longer than the limit.
    pub cut_lines: u64,
    /// Number of turns that ended with a result.
    pub turns: u64,
    /// Number of tool calls of the main thread.
    pub tool_calls: u64,
    /// Number of tool calls that failed.
    pub tool_failures: u64,
    /// Number of tool calls that were not permitted.
    pub permission_denials: u64,
    /// Number of requests that were retried.
    pub retries: u64,
    /// Number of compactions of the context.
    pub compactions: u64,
    /// Number of background tasks that were running at the end.
    pub background_tasks: usize,
    /// How often a file was written.
    pub file_writes: u64,
}

/// The summary of the output of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// How the last turn ended, in one word; `no_result` if there was no result.
    pub outcome: &'static str,
    /// More about the outcome, such as the error; `None` without details.
    pub detail: Option<String>,
    /// The class of the failure, by what can be done about it; `None` without a failure.
    pub failure: Option<&'static str>,
    /// Whether a turn began and no result ended it.
    pub unfinished: bool,
    /// Tokens in the context at the last reading; 0 if there was none.
    pub context_tokens: u64,
    /// Whether `context_tokens` is an estimate of the agent.
    pub context_estimated: bool,
    /// Number of messages that were measured.
    pub readings: u64,
    /// Tokens that fit into the context, if known.
    pub window: Option<u64>,
    /// The model of the last message, or the requested model.
    pub model: Option<String>,
    /// The agent's id of the conversation.
    pub session_id: Option<String>,
    /// Version of the agent.
    pub version: Option<String>,
    /// Permission mode of the agent.
    pub permission_mode: Option<String>,
    /// The cost of this process in dollars.
    pub cost_usd: f64,
    /// The cost of the conversation in dollars, including earlier processes.
    pub session_cost_usd: f64,
    /// When the usage limit is reset, if a timestamp was reported.
    pub limit_resets_at: Option<Timestamp>,
    /// Lines that were not understood.
    pub unknown_lines: u64,
    /// Counts of events.
    #[serde(flatten)]
    pub counts: Counts,
    /// The first files that were written.
    pub files: Vec<String>,
    /// The start of the final text.
    pub text: Option<String>,
}

impl Summing {
    /// Starts a summary of the events that `decoder` reads.
    #[must_use]
    pub fn of(decoder: Decoder) -> Self {
        Self {
            decoder,
            last: None,
            counts: Counts::default(),
            files: Vec::new(),
            in_turn: false,
        }
    }

    /// Takes one line. `cut` is whether the line was truncated.
    pub fn line(&mut self, line: &[u8], cut: bool) {
        self.counts.cut_lines += u64::from(cut);
        self.counts.lines += u64::from(!line.trim_ascii().is_empty());
        for event in self.decoder.decode(line) {
            self.note(event);
        }
    }

    fn note(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::Said(_) | AgentEvent::Measured(_) => self.in_turn = true,
            AgentEvent::ToolStarted { .. } => {
                self.in_turn = true;
                self.counts.tool_calls += 1;
            }
            AgentEvent::ToolEnded { failed, .. } => self.counts.tool_failures += u64::from(failed),
            AgentEvent::Resulted(result) => {
                self.in_turn = false;
                self.counts.turns += 1;
                self.counts.permission_denials += result.permission_denials as u64;
                self.last = Some(*result);
            }
            AgentEvent::Compacted { .. } => self.counts.compactions += 1,
            AgentEvent::FileTouched(path) => self.touched(path),
            AgentEvent::Retrying(_) => self.counts.retries += 1,
            AgentEvent::BackgroundTasks(count) => self.counts.background_tasks = count,
            _ => {}
        }
    }

    fn touched(&mut self, path: String) {
        self.counts.file_writes += 1;
        if self.files.len() < FILES_NAMED_MAX && !self.files.contains(&path) {
            self.files.push(path);
        }
    }

    /// Returns whether no line was understood.
    #[must_use]
    pub fn makes_no_sense(&self) -> bool {
        self.counts.lines > 0 && self.decoder.standing().unknown_lines == self.counts.lines
    }

    /// Returns the summary. Without `exit`, the reason for a missing result is unknown.
    #[must_use]
    pub fn report(self, exit: Option<Exit>) -> Report {
        let standing = self.decoder.standing();
        let reading = standing.reading.unwrap_or_default();
        let session = standing.session;
        let said = self.counts.lines > standing.unknown_lines;
        let last = self.last.as_ref();
        let text = last.map(|last| {
            let end = last.text.floor_char_boundary(TEXT_BYTES_MAX);
            last.text[..end].to_owned()
        });
        Report {
            outcome: last.map_or("no_result", |last| last.outcome.word()),
            detail: match last {
                Some(last) => detail(last),
                None => exit.map(|exit| exit.detail(said).to_owned()),
            },
            failure: last
                .and_then(|last| last.failure)
                .map(crate::FailureClass::word),
            unfinished: self.in_turn,
            context_tokens: reading.tokens,
            context_estimated: reading.estimated,
            readings: standing.readings,
            window: standing.window,
            model: reading.model.or(session.model),
            session_id: Some(session.session_id).filter(|id| !id.is_empty()),
            version: session.version,
            permission_mode: session.permission_mode,
            cost_usd: standing.cost_usd,
            session_cost_usd: last.map_or(0.0, |last| last.session_cost_usd),
            limit_resets_at: last.and_then(|last| last.limit_resets_at),
            unknown_lines: standing.unknown_lines,
            counts: self.counts,
            files: self.files,
            text,
        }
    }
}

/// Returns the most specific word for a result that is not a plain success.
fn detail(result: &TurnResult) -> Option<String> {
    if result.success {
        return None;
    }
    let reason = result.terminal_reason.clone();
    let telling = reason
        .clone()
        .filter(|reason| !matches!(reason.as_str(), "api_error" | "completed"));
    telling
        .or_else(|| result.api_error.clone())
        .or_else(|| result.api_error_status.map(|status| status.to_string()))
        .or(reason)
}
