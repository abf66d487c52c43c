//! One agent conversation: what is known of it while it lasts, and what is kept when it is over.

use serde::{Deserialize, Serialize};

use crate::{Context, Generation, SessionNo, Spent, Timestamp, is_zero};

/// Failed calls that are remembered; a person, and the next session, want the pattern and not the log.
const FAILED_CALLS_MAX: usize = 20;

/// Files that are remembered by name; a hand-off names fewer, and counts the rest.
const FILES_MAX: usize = 200;

/// Iterations that a judgement about the quality of a session looks back on.
const SAMPLES_MAX: usize = 12;

/// Maximum number of different calls of one iteration that are counted. Beyond that, repeats are not counted.
const CALLS_MAX: usize = 32;

/// An iteration that fails faster did not work on anything, so that the conversation itself may be broken.
const FAST_FAILURE_MS: u64 = 10_000;

/// A note is a line or a paragraph; longer texts belong into files, which outlive every session.
pub const NOTE_BYTES_MAX: usize = 4 << 10;

/// One agent conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Its number; 0 before the first.
    pub number: SessionNo,
    /// The agent's own name for it, where it has one.
    pub agent_id: Option<String>,
    /// When the session began.
    pub started: Option<Timestamp>,
    /// How many iterations it has finished.
    pub iterations: u32,
    /// Whether one of them succeeded: then the session knows the work and needs no hand-off.
    pub oriented: bool,
    /// The latest reading of its context; unknown until the first.
    pub context: Option<Context>,
    /// The first reading of its context, in tokens: what its prompt, its hand-off and the agent's own text take.
    pub first_tokens: Option<u64>,
    /// Where it is replaced, in tokens; none where it is not.
    pub redline_tokens: Option<u64>,
    /// The reading that the latest iteration began with.
    pub context_before: Option<Context>,
    /// Whether it wrote its hand-off.
    pub hand_off: HandOff,
    /// Whether it was warned that its context fills up.
    pub advised: bool,
    /// Iterations in a row that failed at once.
    pub fast_failures: u32,
    /// Whether it was opened by a reboot that no reading has shown to be worth it yet.
    pub unproven: bool,
    /// Why it cannot go on, in the agent's own judgement.
    pub spent: Option<Spent>,
    /// Number of tool calls in the session.
    pub tool_calls: u32,
    /// The pattern of the reboot rules that its words matched.
    pub pattern: Option<String>,
    /// What is counted over the iteration under way.
    pub tally: Tally,
    /// The quality of its iterations, oldest first.
    pub samples: Vec<Sample>,
    /// Calls that failed, with how often.
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
    /// It was not asked for one since its latest prompt.
    #[default]
    NotAsked,
    /// It was asked and wrote none; it waits for its reboot.
    Missing,
    /// It wrote one, and was not prompted since.
    Written,
}

/// What is counted over one iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Number of tool calls.
    pub calls: u32,
    /// Number of tool calls that failed.
    pub failed: u32,
    /// Different calls, with how often each was made.
    pub different: Vec<(String, u32)>,
    /// Calls that were denied; they are in none of the others.
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
    /// Calls that repeated one of the same iteration, word for word.
    pub repeated: u32,
}

/// A call that failed, maybe more than once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCall {
    /// The tool and what it was called with.
    pub call: String,
    /// How often the call failed.
    pub times: u32,
    /// Error of the last failure.
    pub error: String,
}

/// What a session leaves to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Its own words, where it was asked and answered.
    pub words: Option<String>,
    /// The session that wrote them.
    pub words_of: SessionNo,
    /// Why it was given up.
    pub reason: String,
    /// Calls that failed, with how often.
    pub failed_calls: Vec<FailedCall>,
    /// Files that it and the sessions before it changed.
    pub files: Vec<String>,
    /// Number of changed files beyond those in `files`.
    pub files_unnamed: u32,
}

/// A note for the sessions to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When the note was written.
    pub time: Timestamp,
    /// Number of the iteration in which the note was written.
    pub iteration: u32,
    /// Text of the note.
    pub text: String,
    /// Whether the operator wrote it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
}

/// The process of an agent.
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
    /// The agent's own name for it, where it had one.
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

    /// Takes a call out of the tally that was denied: a fresh session would be denied it too.
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
    /// Takes over what a session leaves, on top of what it was left itself.
    pub(crate) fn take(&mut self, session: &Session, reason: &str) {
        // Words of an earlier session stay until there are newer ones.
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
