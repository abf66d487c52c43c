//! Sessions: one conversation of the agent each.

use serde::{Deserialize, Serialize};

use crate::{Context, Generation, SessionNo, Spent, Timestamp, is_zero};

/// Maximum number of failed calls that are kept.
const FAILED_CALLS_MAX: usize = 20;

/// Maximum number of changed files that are kept by name.
const FILES_MAX: usize = 200;

/// Number of iterations that are used to judge the quality of a session.
const SAMPLES_MAX: usize = 12;

/// Maximum number of different calls of one iteration that are counted. Beyond that, repeats are not counted.
const CALLS_MAX: usize = 32;

/// An iteration that fails faster did not work on anything, so that the conversation itself may be broken.
const FAST_FAILURE_MS: u64 = 10_000;

/// Maximum size of a note in bytes. Longer texts belong into files.
pub const NOTE_BYTES_MAX: usize = 4 << 10;

/// One agent conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Number of the session; 0 before the first.
    pub number: SessionNo,
    /// The agent's id of the conversation; `None` until it is known.
    pub agent_id: Option<String>,
    /// When the session began.
    pub started: Option<Timestamp>,
    /// Number of iterations that the session has finished.
    pub iterations: u32,
    /// Whether one iteration of the session succeeded, so that it needs no hand-off.
    pub oriented: bool,
    /// The latest reading of the context; `None` before the first.
    pub context: Option<Context>,
    /// The first reading of the context, in tokens: the size of the prompt, the hand-off and the agent's own instructions.
    pub first_tokens: Option<u64>,
    /// Redline in tokens; `None` if the session is not rebooted for its context.
    pub redline_tokens: Option<u64>,
    /// The reading that the latest iteration began with.
    pub context_before: Option<Context>,
    /// Whether the session wrote its hand-off.
    pub hand_off: HandOff,
    /// Whether the agent was asked to finish, because its context fills up.
    pub advised: bool,
    /// Iterations in a row that failed at once.
    pub fast_failures: u32,
    /// Whether a reboot opened the session and no reading has shown yet that it helped.
    pub unproven: bool,
    /// Why the conversation cannot continue, as the agent reports it; `None` if it can.
    pub spent: Option<Spent>,
    /// Number of tool calls in the session.
    pub tool_calls: u32,
    /// The pattern of `on_patterns` that its final text matched; `None` without a match.
    pub pattern: Option<String>,
    /// Counts of the current iteration.
    pub tally: Tally,
    /// The quality of the session's iterations, oldest first.
    pub samples: Vec<Sample>,
    /// Failed tool calls, with how often each failed.
    pub failed_calls: Vec<FailedCall>,
    /// Files that the session changed.
    pub files: Vec<String>,
    /// Number of changed files beyond those in `files`.
    pub files_unnamed: u32,
}

/// Whether a session wrote its hand-off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOff {
    /// The session was not asked for a hand-off since its last prompt.
    #[default]
    NotAsked,
    /// The session was asked and wrote none. It waits for its reboot.
    Missing,
    /// The session wrote a hand-off and got no prompt since.
    Written,
}

/// Counts of one iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Number of tool calls.
    pub calls: u32,
    /// Number of tool calls that failed.
    pub failed: u32,
    /// Different calls, with how often each was made.
    pub different: Vec<(String, u32)>,
    /// Number of denied calls. They are not in the other counts.
    #[serde(skip_serializing_if = "is_zero")]
    pub denied: u32,
}

/// The quality of one iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of tool calls.
    pub calls: u32,
    /// Number of tool calls that failed.
    pub failed: u32,
    /// Number of calls that repeated an earlier call of the iteration.
    pub repeated: u32,
}

/// A call that failed, maybe more than once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCall {
    /// Name and short description of the call.
    pub call: String,
    /// How often the call failed.
    pub times: u32,
    /// Error of the last failure.
    pub error: String,
}

/// Data of a session for the hand-off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Text of the last hand-off; `None` before the first.
    pub words: Option<String>,
    /// The session that wrote the hand-off.
    pub words_of: SessionNo,
    /// Why the session was replaced.
    pub reason: String,
    /// Failed tool calls, with how often each failed.
    pub failed_calls: Vec<FailedCall>,
    /// Files that this and earlier sessions changed.
    pub files: Vec<String>,
    /// Number of changed files beyond those in `files`.
    pub files_unnamed: u32,
}

/// A note for later sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When the note was written.
    pub time: Timestamp,
    /// Number of the iteration in which the note was written.
    pub iteration: u32,
    /// Text of the note.
    pub text: String,
    /// Whether the operator wrote the note.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
}

/// The running process of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAgent {
    /// Number of the launch.
    pub generation: Generation,
    /// Process id of the agent; `None` until its process is up.
    pub pid: Option<u32>,
}

/// A session that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastSession {
    /// Number of the session.
    pub number: SessionNo,
    /// The agent's id of the conversation; `None` if it was not reported.
    pub agent_id: Option<String>,
    /// When the session began.
    pub started: Option<Timestamp>,
    /// When the session ended.
    pub ended: Timestamp,
    /// Number of iterations in the session.
    pub iterations: u32,
    /// Why the session ended.
    pub reason: String,
}

impl Session {
    pub(crate) fn call(&mut self, call: String) {
        self.tool_calls = self.tool_calls.saturating_add(1);
        self.tally.calls = self.tally.calls.saturating_add(1);
        let different = &mut self.tally.different;
        if let Some((_, times)) = different.iter_mut().find(|(known, _)| *known == call) {
            *times += 1;
        } else if different.len() < CALLS_MAX {
            different.push((call, 1));
        }
    }

    pub(crate) fn call_failed(&mut self, call: String, error: &str) {
        self.tally.failed = self.tally.failed.saturating_add(1);
        let known = self.failed_calls.iter().position(|f| f.call == call);
        let times = known.map_or(0, |at| self.failed_calls.remove(at).times);
        if self.failed_calls.len() >= FAILED_CALLS_MAX {
            self.failed_calls.remove(0);
        }
        self.failed_calls.push(FailedCall {
            call,
            times: times + 1,
            error: error.to_owned(),
        });
    }

    /// Removes a denied call from the counts, because it does not show the quality of the session.
    pub(crate) fn call_denied(&mut self, call: &str) {
        self.tally.denied = self.tally.denied.saturating_add(1);
        self.tally.calls = self.tally.calls.saturating_sub(1);
        let different = &mut self.tally.different;
        if let Some(at) = different.iter().position(|(known, _)| known == call) {
            different[at].1 -= 1;
            if different[at].1 == 0 {
                different.remove(at);
            }
        }
    }

    pub(crate) fn note_failure(&mut self, duration_ms: u64) {
        self.fast_failures = if duration_ms < FAST_FAILURE_MS {
            self.fast_failures.saturating_add(1)
        } else {
            0
        };
    }

    /// Returns whether a file is recorded already, or too many files are.
    pub(crate) fn knows_file(&self, path: &str) -> bool {
        self.files.len() >= FILES_MAX || self.files.iter().any(|known| known == path)
    }

    pub(crate) fn end_iteration(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        self.iterations = self.iterations.saturating_add(1);
        // If all calls were denied, the iteration says nothing about the quality of the session.
        if tally.calls == 0 && tally.denied > 0 {
            return;
        }
        let repeated = tally.different.iter().map(|(_, times)| times - 1).sum();
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.remove(0);
        }
        self.samples.push(Sample {
            calls: tally.calls,
            failed: tally.failed,
            repeated,
        });
    }
}

impl Checkpoint {
    /// Adds the data of a session that ended to that of earlier sessions.
    pub(crate) fn take(&mut self, session: &Session, reason: &str) {
        // The text of the last hand-off stays until there is a newer one.
        reason.clone_into(&mut self.reason);
        self.failed_calls.clone_from(&session.failed_calls);
        self.files_unnamed = self.files_unnamed.saturating_add(session.files_unnamed);
        for file in &session.files {
            if self.files.contains(file) {
                continue;
            }
            if self.files.len() < FILES_MAX {
                self.files.push(file.clone());
            } else {
                self.files_unnamed = self.files_unnamed.saturating_add(1);
            }
        }
    }
}
