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
    /// A commit is made after an iteration, or before the end.
    #[serde(rename = "keeping")]
    Autocommitting {
        /// What of the work, and what follows.
        #[serde(rename = "keep")]
        autocommit: Autocommit,
    },
    /// Checks run after an iteration, after its commit.
    Checking {
        /// What is being found out, and what follows.
        check: Check,
    },
    /// Hooks run, and the loop waits for them.
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
    /// Which ones.
    pub point: HookPoint,
    /// When they are given up.
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
    /// A timeout.
    Timeout {
        /// Which one.
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
    /// Why.
    pub reason: RebootReason,
    /// When it began.
    pub started: Timestamp,
    /// The session that is to be opened.
    pub to: SessionNo,
    /// The wait that follows it.
    pub then: Option<Wait>,
    /// How often the old session was asked for its hand-off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked: u32,
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
        /// What it has said so far.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        said: Vec<String>,
    },
    /// Hooks run.
    Hooks {
        /// Which ones.
        point: HookPoint,
        /// Until when their end must be known.
        until: Timestamp,
    },
    /// The work of the old session is kept.
    #[serde(rename = "keeping")]
    Autocommitting {
        /// What of it.
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
        /// Since when.
        since: Timestamp,
        /// Whether it is the old session.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        old: bool,
    },
}
