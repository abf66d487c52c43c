//! The phases of a loop, and the public states they map to.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Activity, Autocommit, Busy, Check, Escalation, Generation, HookPoint, LoopState, Outcome,
    Problem, RebootReason, SessionNo, Timeout, Timestamp, Wait, WaitReason, is_zero,
};

/// The precise phase of a loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Phase {
    /// The loop was never started.
    #[default]
    Idle,
    /// The loop waits between two iterations.
    Waiting {
        /// Reason and end of the wait.
        wait: Wait,
    },
    /// The agent works on an iteration.
    Working {
        /// State of the attempt.
        work: Box<Work>,
    },
    /// A commit is made after an iteration, or before the end.
    #[serde(rename = "keeping")]
    Autocommitting {
        /// The commit, its deadline, and what follows it.
        #[serde(rename = "keep")]
        autocommit: Autocommit,
    },
    /// Checks run after an iteration, after its commit.
    Checking {
        /// The check, its deadline, and the wait after it.
        check: Check,
    },
    /// Hooks run, and the loop waits for them.
    Hooking {
        /// The hooks, their deadline, and what follows them.
        hooking: Hooking,
    },
    /// The session is being replaced by a new one.
    Rebooting {
        /// State of the reboot.
        reboot: Reboot,
    },
    /// The loop is paused until the operator resumes or stops it.
    Paused {
        /// The wait that was under way, and goes on afterwards if it is not over by then.
        then: Option<Wait>,
    },
    /// The loop has ended. A runner can start it again unless its work is done.
    Ended {
        /// How the loop ended.
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
            | Self::Autocommitting { .. }
            | Self::Checking { .. }
            | Self::Hooking { .. } => LoopState::Running,
            Self::Rebooting { .. } => LoopState::Rebooting,
            Self::Paused { .. } => LoopState::Paused,
            Self::Ended { outcome } => outcome.state(),
        }
    }

    /// Returns whether the loop waits for an answer of the operator, or for a rollback that the operator asked for.
    pub(crate) fn awaits_operator(&self) -> bool {
        matches!(self, Self::Waiting { wait } if wait.reason == WaitReason::Operator)
    }
}

/// Hooks that the loop waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hooking {
    /// The point whose hooks run.
    pub point: HookPoint,
    /// Deadline of the hooks.
    pub until: Timestamp,
    /// What follows them, besides the next iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
    /// How the loop ends with them, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The phase that a runner found, and takes up when they have run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Box<Phase>>,
}

/// An iteration under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The launch that events must belong to.
    pub generation: Generation,
    /// When the attempt began.
    pub started: Timestamp,
    /// Process id of the agent; `None` until its process is up.
    pub pid: Option<u32>,
    /// When the agent's process was up; `None` before.
    pub launched: Option<Timestamp>,
    /// Whether that process was up before, and only got another prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reused: bool,
    /// When the agent was last known to do something.
    pub active: Timestamp,
    /// Whether the agent has printed anything in this attempt.
    pub spoke: bool,
    /// Whether the model is in the middle of an answer.
    #[serde(default)]
    pub answering: bool,
    /// Until when a look at its processes has to be answered, if one is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "look")]
    pub silence_check_until: Option<Timestamp>,
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
    /// The last signal that was sent to end it; `None` before the first.
    #[serde(rename = "ladder")]
    pub escalation: Option<Escalation>,
}

/// The final result of a turn, as the agent reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnResult {
    /// When the agent reported the result.
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
    /// Name of the tool.
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
    /// Why the iteration is ended early.
    pub cause: Cause,
    /// Deadline of the running tool call or answer, which may finish first.
    pub boundary_until: Timestamp,
}

/// Why an iteration is ended before its time. Ordered: a worse cause overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// The session of the iteration is rebooted.
    HandOver,
    /// The operator skips the iteration.
    Skip,
    /// An immediate pause, or a stop.
    Interrupt,
    /// A timeout ran out.
    Timeout {
        /// The timeout that ran out.
        timeout: Timeout,
    },
}

impl Work {
    /// Moves every moment from which a timeout counts.
    pub(crate) fn postpone(&mut self, duration: Duration) {
        let moments = [&mut self.started, &mut self.active]
            .into_iter()
            .chain(&mut self.launched)
            .chain(&mut self.stream_ended)
            .chain(&mut self.silence_check_until)
            .chain(self.busy.as_mut().map(|busy| &mut busy.time))
            .chain(self.tools.values_mut().map(|tool| &mut tool.since))
            .chain(self.result.as_mut().map(|result| &mut result.time))
            .chain(
                self.ending
                    .as_mut()
                    .map(|ending| &mut ending.boundary_until),
            )
            .chain(
                self.escalation
                    .as_mut()
                    .map(|escalation| &mut escalation.until),
            );
        for moment in moments {
            *moment = moment.after(duration);
        }
    }

    /// Records a sign of activity of the agent. An investigation of its silence is no longer needed.
    pub(crate) fn heard(&mut self, time: Timestamp) {
        // Its answer to our interrupt is not a sign of activity.
        if self.escalation.is_some() {
            return;
        }
        self.spoke = true;
        self.active = time;
        self.silence_check_until = None;
        self.busy = None;
    }

    /// Notes that its processes are at work.
    pub(crate) fn seen(&mut self, activity: Activity, time: Timestamp) {
        self.silence_check_until = None;
        self.busy = Some(Busy { time, activity });
    }

    pub(crate) fn new(generation: Generation, started: Timestamp) -> Self {
        Self {
            generation,
            started,
            active: started,
            ..Self::default()
        }
    }

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

/// A reboot under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reboot {
    /// Why the session is replaced.
    pub reason: RebootReason,
    /// When the reboot began.
    pub started: Timestamp,
    /// Number of the new session.
    pub to: SessionNo,
    /// The wait that is due after the reboot.
    pub then: Option<Wait>,
    /// How often the old session was asked for its hand-off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked: u32,
    /// What the reboot is doing now.
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
        /// Deadline of the hand-off.
        until: Timestamp,
        /// What the old session has said so far.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        said: Vec<String>,
    },
    /// The hooks before or after the reboot run.
    Hooks {
        /// Whether the hooks before or those after the reboot run.
        point: HookPoint,
        /// Deadline of the hooks.
        until: Timestamp,
    },
    /// The work of the old session is committed.
    #[serde(rename = "keeping")]
    Autocommitting {
        /// The commit and its deadline.
        #[serde(rename = "keep")]
        autocommit: Autocommit,
    },
    /// A process is on its way out: that of the old session, or one that was to be the new session and is not.
    Closing {
        /// The last signal that was sent to end it; `None` before the first.
        #[serde(rename = "ladder")]
        escalation: Escalation,
        /// Why the reboot has failed, if it has.
        failed: Option<String>,
    },
    /// The fresh session is being opened, or the old one again, so that it can be asked for its hand-off.
    Opening {
        /// The launch that events must belong to.
        generation: Generation,
        /// When the launch began.
        since: Timestamp,
        /// Whether the old session is opened, to ask for its hand-off.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        old: bool,
    },
}
