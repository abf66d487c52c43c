//! Hooks: the points of a loop at which commands of the operator run, how they went, and which of them the loop waits for.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{IterationOutcome, Outcome, Timestamp, Wait};

/// A point of a loop at which hooks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// A runner has taken up the loop.
    LoopStart,
    /// The loop is about to end.
    LoopEnd,
    /// An attempt at an iteration is about to begin.
    IterationStart,
    /// An attempt at an iteration has ended.
    IterationEnd,
    /// A session has begun.
    SessionStart,
    /// A session has ended.
    SessionEnd,
    /// Before the old session is given up.
    BeforeReboot,
    /// With the fresh session open.
    AfterReboot,
    /// Tests have other results than before.
    TestsChanged,
    /// Nothing came of an iteration.
    NoProgress,
    /// An iteration failed.
    Error,
    /// The operator is asked something.
    Question,
    /// The model's service is limited, and the loop waits.
    LimitWait,
}

/// Who waits for the hooks of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// The loop waits for them.
    Blocking,
    /// A reboot waits for them.
    Reboot,
    /// The loop does not wait: they run in the background.
    Background,
}

impl HookPoint {
    /// Every point.
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

    /// Returns who waits for the hooks of this point.
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

/// How one hook went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookResult {
    /// Which one.
    pub name: String,
    /// How long it took.
    pub duration_ms: u64,
    /// What it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What went wrong; none where it went well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the loop is to end because of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop: bool,
    /// What it wants to be written down for later, by key; null takes a key away.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<String, serde_json::Value>,
    /// Whether a line that may have had more of that was too long to be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

/// Hooks were started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HooksStart {
    /// Which ones.
    pub point: HookPoint,
    /// Until when their end must be known.
    pub until: Timestamp,
    /// What follows them, besides the next iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
    /// How the loop ends with them, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// Hooks have run, or are no longer waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HooksEnd {
    /// Which ones.
    pub point: HookPoint,
    /// How each went, in order.
    pub results: Vec<HookResult>,
    /// Why they were given up; `None` if they finished.
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
    /// An attempt has ended.
    pub iteration_end: bool,
    /// How; none where the model's service was limited.
    pub outcome: Option<IterationOutcome>,
    /// A session has ended.
    pub session_end: bool,
    /// A session has begun.
    pub session_start: bool,
    /// The hooks of the attempt that comes next have run.
    pub ready: bool,
}

impl PendingHooks {
    /// An attempt has ended.
    pub(crate) fn ended(&mut self, outcome: Option<IterationOutcome>) {
        self.iteration_end = true;
        self.outcome = outcome;
    }

    /// Hooks of a point have run, or were given up.
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
