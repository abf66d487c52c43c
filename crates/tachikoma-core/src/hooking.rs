//! Hooks: the points of a loop at which commands of the user run, and their results.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{IterationOutcome, Outcome, Timestamp, Wait};

/// A point of a loop at which hooks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// Hooks run when a runner starts or resumes the loop.
    LoopStart,
    /// Hooks run before the loop ends.
    LoopEnd,
    /// Hooks run before an attempt at an iteration.
    IterationStart,
    /// Hooks run after an attempt at an iteration.
    IterationEnd,
    /// Hooks run after a session has begun.
    SessionStart,
    /// Hooks run after a session has ended.
    SessionEnd,
    /// Hooks run before the old session is closed.
    BeforeReboot,
    /// Hooks run after the new session is open.
    AfterReboot,
    /// Hooks run after test results have changed.
    TestsChanged,
    /// Hooks run after an iteration without progress.
    NoProgress,
    /// Hooks run after an iteration has failed.
    Error,
    /// Hooks run when the operator is asked a question.
    Question,
    /// Hooks run when the loop waits for a usage limit of the model's service.
    LimitWait,
}

/// Whether the loop or a reboot waits for the hooks of a hook point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// The loop waits for the hooks.
    Blocking,
    /// A reboot waits for the hooks.
    Reboot,
    /// The hooks run in the background. The loop does not wait for them.
    Background,
}

impl HookPoint {
    /// All hook points.
    pub const ALL: [Self; 13] = [
        Self::LoopStart,
        Self::LoopEnd,
        Self::IterationStart,
        Self::IterationEnd,
        Self::SessionStart,
        Self::SessionEnd,
        Self::BeforeReboot,
        Self::AfterReboot,
        Self::TestsChanged,
        Self::NoProgress,
        Self::Error,
        Self::Question,
        Self::LimitWait,
    ];

    /// Returns whether the loop or a reboot waits for the hooks of this point.
    #[must_use]
    pub fn kind(self) -> HookKind {
        match self {
            Self::LoopStart
            | Self::LoopEnd
            | Self::IterationStart
            | Self::IterationEnd
            | Self::SessionStart
            | Self::SessionEnd => HookKind::Blocking,
            Self::BeforeReboot | Self::AfterReboot => HookKind::Reboot,
            _ => HookKind::Background,
        }
    }
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Result of one hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookResult {
    /// Name of the hook.
    pub name: String,
    /// How long the hook took, in milliseconds.
    pub duration_ms: u64,
    /// Output of the hook, shortened; `None` without output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Why the hook failed; `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the hook stops the loop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop: bool,
    /// Custom data that the hook sets; a null value removes its key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<String, serde_json::Value>,
    /// Whether a line of output was too long to be read for custom data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

/// Hooks were started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HooksStart {
    /// The hook point at which the hooks run.
    pub point: HookPoint,
    /// Deadline of the hooks.
    pub until: Timestamp,
    /// The wait that is due after the hooks; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
    /// How the loop ends after the hooks; `None` = it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// Hooks have run, or the loop no longer waits for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HooksEnd {
    /// The point whose hooks ran.
    pub point: HookPoint,
    /// Result of each hook, in order.
    pub results: Vec<HookResult>,
    /// Why the loop no longer waits for the hooks; `None` if they finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
}

impl fmt::Display for HooksEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let point = self.point;
        match &self.given_up {
            Some(reason) => write!(f, "hooks {point}: not waited for: {reason}"),
            None => {
                let failed = self.results.iter().filter(|result| result.error.is_some());
                let (ran, failed) = (self.results.len(), failed.count());
                write!(f, "hooks {point}: {ran} ran")?;
                if failed > 0 {
                    write!(f, ", {failed} failed")?;
                }
                Ok(())
            }
        }
    }
}

/// Hooks that are due before the next iteration begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PendingHooks {
    /// Whether the hooks at the end of an attempt are due.
    pub iteration_end: bool,
    /// How the attempt ended; `None` if the model's service refused it.
    pub outcome: Option<IterationOutcome>,
    /// Whether the hooks at the end of a session are due.
    pub session_end: bool,
    /// Whether the hooks at the start of a session are due.
    pub session_start: bool,
    /// Whether the hooks at the start of the next attempt have run.
    pub ready: bool,
}

impl PendingHooks {
    /// Records that an attempt has ended, so that its hooks are due.
    pub(crate) fn ended(&mut self, outcome: Option<IterationOutcome>) {
        self.iteration_end = true;
        self.outcome = outcome;
    }

    /// Records that the hooks of a point have run or were canceled.
    pub(crate) fn heard(&mut self, point: HookPoint) {
        match point {
            HookPoint::IterationStart => self.ready = true,
            HookPoint::IterationEnd => self.iteration_end = false,
            HookPoint::SessionStart => self.session_start = false,
            HookPoint::SessionEnd => self.session_end = false,
            _ => {}
        }
    }
}
