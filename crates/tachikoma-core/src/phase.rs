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
        /// The wait that continues after the pause, if it is not over by then.
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
    /// The wait that is due after the hooks; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Wait>,
    /// How the loop ends after the hooks; `None` = it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The phase that an earlier runner left. It continues after the hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Box<Phase>>,
}

/// The current attempt at an iteration.
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
    /// Whether the process was running before, and only got another prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reused: bool,
    /// Time of the agent's last activity.
    pub active: Timestamp,
    /// Whether the agent has printed anything in this attempt.
    pub spoke: bool,
    /// Whether the model is answering now.
    #[serde(default)]
    pub answering: bool,
    /// Deadline of the sample of the agent's processes; `None` if none is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "look")]
    pub silence_check_until: Option<Timestamp>,
    /// The last sample that found the silent agent busy; `None` after output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
    /// Time when the agent closed its output while its process still ran; `None` if it has not closed it.
    #[serde(default)]
    pub stream_ended: Option<Timestamp>,
    /// Running tool calls, by the agent's id.
    pub tools: BTreeMap<String, Tool>,
    /// The final result of the turn; `None` until it is reported.
    pub result: Option<TurnResult>,
    /// The requested early end of the iteration; `None` without a request.
    pub ending: Option<Ending>,
    /// The last signal that was sent to end the agent; `None` before the first.
    #[serde(rename = "ladder")]
    pub escalation: Option<Escalation>,
}

/// The final result of a turn, as the agent reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnResult {
    /// When the agent reported the result.
    pub time: Timestamp,
    /// Whether the agent reports success.
    pub success: bool,
    /// Whether its final text claims that the whole work is complete.
    #[serde(default)]
    pub claimed: bool,
    /// Error message of the agent; `None` after a success.
    #[serde(default)]
    pub reason: Option<String>,
    /// What the failure means for the loop; `None` if a retry is enough.
    #[serde(default)]
    pub problem: Option<Problem>,
    /// Whether the result came after the agent was interrupted.
    #[serde(default)]
    pub after_interrupt: bool,
}

/// A running tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// Short description of the call, such as its command or path.
    #[serde(default)]
    pub summary: String,
    /// When the call began.
    pub since: Timestamp,
}

/// The requested early end of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Why the iteration is ended early.
    pub cause: Cause,
    /// Deadline of the running tool call or answer, which may finish first.
    pub boundary_until: Timestamp,
}

/// Why an iteration is ended early. A more severe cause replaces an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// The session of the iteration is rebooted.
    HandOver,
    /// The operator skips the iteration.
    Skip,
    /// An immediate pause or a stop interrupts the iteration.
    Interrupt,
    /// A timeout ran out.
    Timeout {
        /// The timeout that ran out.
        timeout: Timeout,
    },
}

impl Work {
    /// Extends all timeouts of the attempt by a duration.
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

    /// Records a sign of activity of the agent. A running check of its silence ends.
    pub(crate) fn heard(&mut self, time: Timestamp) {
        // Output after our interrupt is not a sign of activity.
        if self.escalation.is_some() {
            return;
        }
        self.spoke = true;
        self.active = time;
        self.silence_check_until = None;
        self.busy = None;
    }

    /// Records that a sample found the agent's processes busy.
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

    /// Returns whether an interrupt would end a running tool call or answer of the model.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.answering || !self.tools.is_empty()
    }
}

impl Cause {
    /// Returns the rank of the cause. Of two causes, the one with the higher rank decides the outcome of the iteration.
    pub(crate) fn severity(self) -> u8 {
        match self {
            Self::HandOver => 0,
            Self::Skip => 1,
            Self::Interrupt => 2,
            Self::Timeout { .. } => 3,
        }
    }
}

/// A reboot in progress.
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

/// Stage of a reboot. In each stage at most one process of the agent is running.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RebootStage {
    /// The next step has not begun.
    #[default]
    Begun,
    /// The old session is asked for its hand-off.
    HandOff {
        /// Deadline of the hand-off.
        until: Timestamp,
        /// Texts of the old session's hand-off so far.
        #[serde(rename = "said", default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<String>,
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
    /// A process is being ended: that of the old session, or that of a new session that failed to open.
    Closing {
        /// The last signal that was sent to end the process.
        #[serde(rename = "ladder")]
        escalation: Escalation,
        /// Why the reboot has failed; `None` if it has not.
        failed: Option<String>,
    },
    /// The new session is being opened, or the old one again for its hand-off.
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
