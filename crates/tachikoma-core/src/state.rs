//! The state of a loop. Only [`apply`](crate::apply()) changes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Accounting, Autocommit, Check, Checkpoint, Choice, Completion, Denial, Epoch, Failure,
    Generation, Hooking, Launch, Limits, LiveAgent, LoopId, LoopState, LoopStats, Note, Operator,
    Outcome, PastSession, PendingHooks, Phase, Progress, Question, Reboot, RebootBook,
    RebootReason, RebootStage, RollingBack, Runner, Seq, Session, Stop, Timestamp, TrackedWork,
    Uploads, Work, is_zero,
};

/// Maximum number of notes of the agent in one iteration.
pub const ITERATION_NOTES_MAX: usize = 20;

/// The complete state of a loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Id of the loop.
    pub loop_id: LoopId,
    /// The last record that is part of this state.
    pub seq: Seq,
    /// The epoch of the loop.
    #[serde(rename = "life", default, skip_serializing_if = "Epoch::is_unknown")]
    pub epoch: Epoch,
    /// Time of the last record.
    pub time: Timestamp,
    /// When the loop was first started.
    pub started_at: Option<Timestamp>,
    /// The agent, the prompt and the settings of the latest run.
    pub launch: Launch,
    /// The process that runs the loop, or ran it last; `None` before the first start and after the end.
    pub runner: Option<Runner>,
    /// The current phase.
    pub phase: Phase,
    /// Number of the iteration that was started last; 0 before the first.
    pub iteration: u32,
    /// Number of the attempt at the iteration, from 1.
    pub attempt: u32,
    /// Number of attempts at the iteration that were cut because the agent's server or conversation was lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cuts: u32,
    /// Whether the last attempt was cut by a crash, a lost server or a limit, so that the iteration is repeated.
    pub cut: bool,
    /// Whether an earlier attempt at the current iteration was cut or limited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_cut: bool,
    /// The number of the latest launch.
    pub generation: Generation,
    /// The current session.
    pub session: Session,
    /// Whether the loop pauses at the next opportunity.
    pub pause_requested: bool,
    /// Why the session is rebooted at the next opportunity; `None` if no reboot is due.
    pub reboot_pending: Option<RebootReason>,
    /// The rate limits do not allow the reboot before this time; `None` = it may happen now.
    #[serde(default)]
    pub reboot_not_before: Option<Timestamp>,
    /// The requested stop; `None` if none is requested.
    pub stop: Option<Stop>,
    /// Whether the stop is urgent: the loop does not wait for a commit.
    #[serde(default)]
    pub stop_urgent: bool,
    /// Whether completion is claimed in the current iteration, and the claim is not refused.
    pub claimed: bool,
    /// Claims and checks of completion.
    #[serde(default)]
    pub completion: Completion,
    /// Progress of the work.
    #[serde(default)]
    pub progress: Progress,
    /// Failed iterations in a row.
    pub failure_streak: u32,
    /// Number of attempts in a row that the model's service refused or did not answer.
    #[serde(default)]
    pub limit_streak: u32,
    /// Since when the model's service cannot be reached; `None` while it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_since: Option<Timestamp>,
    /// The latest failure of an iteration; `None` before the first.
    pub last_failure: Option<Failure>,
    /// Totals of the loop.
    pub stats: LoopStats,
    /// Sessions that have ended, oldest first.
    pub history: Vec<PastSession>,
    /// The agent's process, from the order to start it until its end is known.
    #[serde(default)]
    pub agent: Option<LiveAgent>,
    /// History of reboots, for the rate limits.
    #[serde(default)]
    pub reboots: RebootBook,
    /// Hand-off, files and failed calls of the previous session.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Commits, snapshots and uncommitted files of the loop.
    #[serde(default, rename = "kept")]
    pub tracked_work: TrackedWork,
    /// Notes of the agent and the operator for later sessions, oldest first.
    #[serde(default)]
    pub notes: Vec<Note>,
    /// Cost, tokens and time so far.
    #[serde(default)]
    #[serde(rename = "ledger")]
    pub accounting: Accounting,
    /// Questions, answers and messages of the operator.
    #[serde(default)]
    pub operator: Operator,
    /// State of the uploads of backups.
    #[serde(rename = "copies", default, skip_serializing_if = "Uploads::is_empty")]
    pub uploads: Uploads,
    /// The stop conditions of the latest run.
    #[serde(default)]
    pub limits: Limits,
    /// The pattern of `stop_on_patterns` that matches the agent's latest final text; `None` without a match.
    #[serde(default)]
    pub stop_pattern: Option<String>,
    /// Tool calls that were denied, oldest first; bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
    /// Number of denied calls beyond those in `denials`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_denials: u32,
    /// Hooks that are due before the next iteration.
    #[serde(default)]
    #[serde(rename = "frames")]
    pub pending_hooks: PendingHooks,
    /// Custom data, set by hooks and the operator.
    pub custom: BTreeMap<String, serde_json::Value>,
}

/// The requested action is not possible in the current state of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} a loop that is {current}")]
pub struct InvalidState {
    /// State of the loop.
    pub current: LoopState,
    /// The action, as a verb.
    pub action: &'static str,
}

impl State {
    /// Returns the state of a loop that was not started yet.
    #[must_use]
    pub fn new(loop_id: LoopId) -> Self {
        Self {
            loop_id,
            completion: Completion::of_a_new_loop(),
            ..Self::default()
        }
    }

    /// Returns the public state.
    #[must_use]
    pub fn public(&self) -> LoopState {
        self.phase.public()
    }

    /// Returns whether a request to the model's service ever succeeded in this loop.
    #[must_use]
    pub fn reached_service(&self) -> bool {
        self.stats.successful > 0 || self.stats.tokens > 0 || self.session.context.is_some()
    }

    /// Returns the number of the iteration that comes next.
    #[must_use]
    pub fn next_iteration(&self) -> u32 {
        if self.cut {
            self.iteration
        } else {
            self.iteration.saturating_add(1)
        }
    }

    /// Returns why a reboot is pending. A loop that has ended has none: the next run decides again.
    #[must_use]
    pub fn pending_reboot(&self) -> Option<&RebootReason> {
        let reason = self.reboot_pending.as_ref();
        reason.filter(|_| self.outcome().is_none())
    }

    /// Returns how the loop is about to end, because a stop is requested, or the last commit or the end hooks are running.
    #[must_use]
    pub fn pending_end(&self) -> Option<Outcome> {
        let stop = self.stop.clone().map(Outcome::from);
        let autocommit = self
            .autocommit()
            .and_then(|autocommit| autocommit.outcome.clone());
        let hooking = self.hooking().and_then(|hooking| hooking.outcome.clone());
        stop.or(autocommit).or(hooking)
    }

    /// Returns how the loop ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.phase {
            Phase::Ended { outcome } => Some(outcome),
            _ => None,
        }
    }

    /// Checks that a runner may start the loop. Only a loop that is done cannot be started again.
    ///
    /// Fails if the work of the loop is done. The user has to start a new loop.
    pub fn startable(&self) -> Result<(), InvalidState> {
        match self.outcome() {
            Some(Outcome::Done) => Err(InvalidState {
                current: self.public(),
                action: "start",
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the current attempt at an iteration; `None` if no agent is working.
    #[must_use]
    pub fn work(&self) -> Option<&Work> {
        match &self.phase {
            Phase::Working { work } => Some(work),
            _ => None,
        }
    }

    /// Returns the check in progress; `None` without one.
    #[must_use]
    pub fn check(&self) -> Option<&Check> {
        match &self.phase {
            Phase::Checking { check } => Some(check),
            _ => None,
        }
    }

    /// Returns the hooks that the loop waits for; `None` without one.
    #[must_use]
    pub fn hooking(&self) -> Option<&Hooking> {
        match &self.phase {
            Phase::Hooking { hooking } => Some(hooking),
            _ => None,
        }
    }

    /// Returns the autocommit in progress; `None` without one.
    #[must_use]
    pub fn autocommit(&self) -> Option<&Autocommit> {
        match &self.phase {
            Phase::Autocommitting { autocommit } => Some(autocommit),
            Phase::Rebooting { reboot } => match &reboot.stage {
                RebootStage::Autocommitting { autocommit } => Some(autocommit),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the reboot in progress; `None` without one.
    pub fn rebooting(&self) -> Option<&Reboot> {
        match &self.phase {
            Phase::Rebooting { reboot } => Some(reboot),
            _ => None,
        }
    }

    /// Returns whether the loop may have changed the work tree since the last survey, because its runner died during an iteration, a
    /// commit or a rollback.
    #[must_use]
    pub fn needs_survey(&self) -> bool {
        let in_between = match &self.phase {
            Phase::Autocommitting { .. } | Phase::Rebooting { .. } => true,
            // The runner resumes this phase after its start hooks, which still run.
            Phase::Hooking { hooking } => hooking.over.as_deref().is_some_and(|over| {
                matches!(over, Phase::Autocommitting { .. } | Phase::Rebooting { .. })
            }),
            _ => false,
        };
        in_between
            || self.operator.rolling_back.is_some()
            || self.tracked_work.unsurveyed
            || self.tracked_work.checked
    }

    /// Returns whether there may be uncommitted changes of the loop: some are known, gates have run since the last survey, or an earlier
    /// run could not survey the work tree.
    pub(crate) fn may_have_left_work(&self) -> bool {
        self.tracked_work.uncommitted > 0 || self.tracked_work.checked
    }

    /// Returns the question that the loop waits on; `None` while hooks at the start of a run are running, even if one was asked before.
    #[must_use]
    pub fn question(&self) -> Option<&Question> {
        let question = self.operator.question.as_ref();
        question.filter(|_| self.phase.awaits_operator())
    }

    /// Returns the question that an answer belongs to, or why the answer is not accepted.
    ///
    /// Fails if no question is open, if another one is, or if the answer is not one of the choices.
    pub fn answerable(
        &self,
        id: Option<u32>,
        choice: Choice,
        with_prompt: bool,
    ) -> Result<&Question, String> {
        let question = self.question().ok_or("no question is open")?;
        if let Some(stale) = id.filter(|id| *id != question.id) {
            return Err(format!(
                "question {stale} is no longer open; question {} is",
                question.id
            ));
        }
        if !question.choices.contains(&choice) {
            return Err(format!(
                "`{choice}` is not an answer to question {}; use one of: {}",
                question.id,
                question.offers()
            ));
        }
        if (choice == Choice::Edit) != with_prompt {
            return Err("only `edit` takes a prompt, and it needs one".to_owned());
        }
        Ok(question)
    }

    /// Returns the rollback in progress; `None` without one.
    #[must_use]
    pub fn rolling_back(&self) -> Option<RollingBack> {
        let rolling = self.operator.rolling_back;
        rolling.filter(|_| self.phase.awaits_operator())
    }

    /// Returns whether the agent may leave another note in this iteration.
    pub(crate) fn takes_agents_note(&self) -> bool {
        let of_now = |note: &&Note| !note.operator && note.iteration == self.iteration;
        self.notes.iter().filter(of_now).count() < ITERATION_NOTES_MAX
    }
}
