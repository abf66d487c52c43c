//! Where a loop stands: the precise phases of the core and the public states they map onto.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::activity::Busy;
use crate::completion::Check;
use crate::effect::Rung;
use crate::hooking::{HookPoint, Hooking};
use crate::id::{Generation, SessionNo};
use crate::keep::Keep;
use crate::outcome::{Outcome, Problem, RebootReason, Timeout};
use crate::time::Timestamp;

/// The public state of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    /// Nothing runs, and nothing has ended it.
    Idle,
    /// Iterations run, or the next one is waited for.
    Running,
    /// The operator paused it.
    Paused,
    /// One session is being replaced by the next.
    Rebooting,
    /// It reached its end.
    Completed,
    /// It could not go on.
    Error,
    /// It was stopped.
    Stopped,
}

impl LoopState {
    /// Returns whether the loop has ended.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Error | Self::Stopped)
    }

    /// Returns whether the loop works.
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Rebooting)
    }

    /// Returns whether a loop in this state may be started.
    #[must_use]
    pub fn can_start(self) -> bool {
        matches!(self, Self::Idle | Self::Stopped | Self::Error)
    }

    /// Returns whether a loop in this state may be paused.
    #[must_use]
    pub fn can_pause(self) -> bool {
        self == Self::Running
    }

    /// Returns whether a loop in this state may be resumed.
    #[must_use]
    pub fn can_resume(self) -> bool {
        self == Self::Paused
    }
}

impl fmt::Display for LoopState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Rebooting => "rebooting",
            Self::Completed => "completed",
            Self::Error => "error",
            Self::Stopped => "stopped",
        })
    }
}

/// The precise phase of a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Phase {
    /// Nobody has started it.
    Idle,
    /// Between iterations, until a moment.
    Waiting {
        /// What for, and until when.
        wait: Wait,
    },
    /// In an iteration.
    Working {
        /// How far it is.
        work: Box<Work>,
    },
    /// Behind an iteration, or before the end.
    Keeping {
        /// What of the work, and what follows.
        keep: Keep,
    },
    /// Behind an iteration, whose work is kept.
    Checking {
        /// What is being found out, and what follows.
        check: Check,
    },
    /// Hooks run that something is framed by.
    Hooking {
        /// Which ones, and what follows.
        hooking: Hooking,
    },
    /// Between sessions.
    Rebooting {
        /// How far it is.
        reboot: Reboot,
    },
    /// Until the operator says otherwise.
    Paused {
        /// The wait that was under way, and goes on afterwards if it is not over by then.
        then: Option<Wait>,
    },
    /// For good, or until a runner takes the loop up again.
    Ended {
        /// How.
        outcome: Outcome,
    },
}

impl Phase {
    /// Returns the public state of this phase.
    #[must_use]
    pub fn public(&self) -> LoopState {
        match self {
            Self::Idle => LoopState::Idle,
            Self::Waiting { .. }
            | Self::Working { .. }
            | Self::Keeping { .. }
            | Self::Checking { .. }
            | Self::Hooking { .. } => LoopState::Running,
            Self::Rebooting { .. } => LoopState::Rebooting,
            Self::Paused { .. } => LoopState::Paused,
            Self::Ended { outcome } => outcome.state(),
        }
    }
}

/// A wait with its reason and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What for.
    pub reason: WaitReason,
    /// Until when.
    pub until: Timestamp,
}

/// What a loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// `iteration_delay`.
    Delay,
    /// Failures.
    Backoff,
    /// The model's service, which takes nothing more for a while.
    UsageLimit,
    /// The moment from which a reboot may happen, with a context that is too full to be prompted before it.
    RebootWindow,
    /// An answer of the operator, or a work tree that is brought back on their wish.
    Operator,
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delay => "delay",
            Self::Backoff => "backoff",
            Self::UsageLimit => "usage_limit",
            Self::RebootWindow => "reboot_window",
            Self::Operator => "operator",
        })
    }
}

/// An iteration under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The launch that news must be about.
    pub generation: Generation,
    /// When the attempt began.
    pub started: Timestamp,
    /// The agent's process, once it is up.
    pub pid: Option<u32>,
    /// When it was up.
    pub launched: Option<Timestamp>,
    /// Whether that process was up before, and only got another prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reused: bool,
    /// When the agent was last known to do something.
    pub active: Timestamp,
    /// Whether it has written anything yet.
    pub spoke: bool,
    /// Whether the model is in the middle of an answer.
    #[serde(default)]
    pub answering: bool,
    /// Until when a look at its processes has to be answered, if one is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look: Option<Timestamp>,
    /// When its processes were last seen at work since it was last heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
    /// When its output ended while it lived on.
    #[serde(default)]
    pub stream_ended: Option<Timestamp>,
    /// Tool calls in flight, by the agent's own id.
    pub tools: BTreeMap<String, Tool>,
    /// Whether and how the agent reported the final result of its turn.
    pub result: Option<TurnResult>,
    /// Whether it is to be ended before its time.
    pub ending: Option<Ending>,
    /// How far up the ladder it is.
    pub ladder: Option<Ladder>,
}

/// The final result of a turn, as the agent reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnResult {
    /// When.
    pub time: Timestamp,
    /// Whether the agent calls it a success.
    pub success: bool,
    /// Whether its final text claims that the whole work is complete.
    #[serde(default)]
    pub claimed: bool,
    /// What the agent says went wrong.
    #[serde(default)]
    pub reason: Option<String>,
    /// What that means for the loop.
    #[serde(default)]
    pub problem: Option<Problem>,
    /// Whether it came after the agent was interrupted.
    #[serde(default)]
    pub after_interrupt: bool,
}

/// A tool call in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// The tool.
    pub name: String,
    /// What it was called with, in a few words.
    #[serde(default)]
    pub summary: String,
    /// When the call began.
    pub since: Timestamp,
}

/// The wish to end an iteration before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Why.
    pub cause: Cause,
    /// Until when a tool call in flight may go on.
    pub boundary_until: Timestamp,
}

/// Why an iteration is ended before its time. Ordered: a worse cause overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// Its session is rebooted.
    HandOver,
    /// The operator skips it.
    Skip,
    /// An immediate pause, or a stop.
    Interrupt,
    /// A time-out.
    Timeout {
        /// Which one.
        timeout: Timeout,
    },
}

impl Work {
    /// Returns whether an interrupt would cut something: a tool call, or an answer of the model.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.answering || !self.tools.is_empty()
    }
}

impl Cause {
    /// Returns the rank of the cause; of two, the higher decides what becomes of the iteration.
    pub(crate) fn severity(self) -> u8 {
        match self {
            Self::HandOver => 0,
            Self::Skip => 1,
            Self::Interrupt => 2,
            Self::Timeout { .. } => 3,
        }
    }
}

/// The place on the ladder by which an agent is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ladder {
    /// The rung it is on.
    pub rung: Rung,
    /// When the next one follows.
    pub until: Timestamp,
}

/// A reboot under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reboot {
    /// Why.
    pub reason: RebootReason,
    /// When it began.
    pub started: Timestamp,
    /// The session that is to be opened.
    pub to: SessionNo,
    /// The wait that follows it.
    pub then: Option<Wait>,
    /// How far it is.
    #[serde(default)]
    pub stage: RebootStage,
}

/// How far a reboot is. At most one process of an agent is alive in any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RebootStage {
    /// Nothing is under way yet.
    #[default]
    Begun,
    /// The old session is asked for its hand-off.
    HandOff {
        /// Until when it may answer.
        until: Timestamp,
    },
    /// Hooks run.
    Hooks {
        /// Which ones.
        point: HookPoint,
        /// Until when their end must be known.
        until: Timestamp,
    },
    /// The work of the old session is kept.
    Keeping {
        /// What of it.
        keep: Keep,
    },
    /// A process is on its way out: that of the old session, or one that was to be the new session and is not.
    Closing {
        /// How far up the ladder it is.
        ladder: Ladder,
        /// Why the reboot has failed, if it has.
        failed: Option<String>,
    },
    /// The fresh session is being opened.
    Opening {
        /// The launch that news must be about.
        generation: Generation,
        /// Since when.
        since: Timestamp,
    },
}
