//! The state of a loop: a fold over its records. [`State::apply`] is the only way it changes.

mod apply;
mod clock;
mod completion;
mod hooks;
mod keep;
mod notes;
mod operator;
mod reboot;
mod taken_up;
mod work;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::completion::Completion;
use crate::copies::Copies;
use crate::hooking::Frames;
use crate::id::{Generation, LoopId, Seq};
use crate::keep::KeptWork;
use crate::launch::{Launch, Runner};
use crate::ledger::Ledger;
use crate::life::Life;
use crate::operator::Operator;
use crate::outcome::{Failure, Outcome, RebootReason, Stop};
use crate::phase::{LoopState, Phase};
use crate::policy::stop::Limits;
use crate::policy::{Policy, timeout};
use crate::progress::Progress;
use crate::reboots::RebootBook;
use crate::record::is_zero;
use crate::session::{Checkpoint, LiveAgent, Note, PastSession, Session};
use crate::stats::LoopStats;
use crate::time::Timestamp;

/// Everything a loop knows about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The loop.
    pub loop_id: LoopId,
    /// The last record that is part of this state.
    pub seq: Seq,
    /// The life of the loop that it is part of.
    #[serde(default, skip_serializing_if = "Life::is_unknown")]
    pub life: Life,
    /// When it was decided: the last activity.
    pub time: Timestamp,
    /// When the loop was first started.
    pub started_at: Option<Timestamp>,
    /// What the latest run was told to do.
    pub launch: Launch,
    /// Who runs it, or ran it last.
    pub runner: Option<Runner>,
    /// Where it stands.
    pub phase: Phase,
    /// The iteration last started; 0 before the first.
    pub iteration: u32,
    /// The attempt at it.
    pub attempt: u32,
    /// How many attempts at it were cut because what the agent works in was lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cuts: u32,
    /// Whether that attempt was cut by the death of a runner, so that the iteration is owed.
    pub cut: bool,
    /// The number of the latest launch.
    pub generation: Generation,
    /// The session.
    pub session: Session,
    /// Whether the loop pauses at the next opportunity.
    pub pause_requested: bool,
    /// Whether the session is rebooted at the next opportunity, and why.
    pub reboot_pending: Option<RebootReason>,
    /// The moment before which that may not happen.
    #[serde(default)]
    pub reboot_not_before: Option<Timestamp>,
    /// Whether the loop ends at the next opportunity, and by whose wish.
    pub stop: Option<Stop>,
    /// Whether nothing is waited for before it does.
    #[serde(default)]
    pub stop_urgent: bool,
    /// Whether it is claimed, in the iteration last started, that the work is complete, and not refused.
    pub claimed: bool,
    /// What is known of whether it is.
    #[serde(default)]
    pub completion: Completion,
    /// What is known of whether the work comes forward.
    #[serde(default)]
    pub progress: Progress,
    /// Failed iterations in a row.
    pub failure_streak: u32,
    /// Limits of the model's service in a row.
    #[serde(default)]
    pub limit_streak: u32,
    /// The latest failure.
    pub last_failure: Option<Failure>,
    /// What the loop has done.
    pub stats: LoopStats,
    /// Sessions that have ended, oldest first.
    pub history: Vec<PastSession>,
    /// The agent's process, from the order to start it until its end is known.
    #[serde(default)]
    pub agent: Option<LiveAgent>,
    /// How reboots went so far.
    #[serde(default)]
    pub reboots: RebootBook,
    /// What the session before this one left to it.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// What is known of the work in the repository.
    #[serde(default)]
    pub kept: KeptWork,
    /// What the agent and the operator noted for the sessions to come, oldest first.
    #[serde(default)]
    pub notes: Vec<Note>,
    /// What was spent.
    #[serde(default)]
    pub ledger: Ledger,
    /// What is known of the operator.
    #[serde(default)]
    pub operator: Operator,
    /// How the copies of backups fare.
    #[serde(default, skip_serializing_if = "Copies::is_empty")]
    pub copies: Copies,
    /// The stop conditions that the latest run was told.
    #[serde(default)]
    pub limits: Limits,
    /// The pattern of `stop_on_patterns` that the agent's latest words match.
    #[serde(default)]
    pub stop_pattern: Option<String>,
    /// What hooks have still to hear of.
    #[serde(default)]
    pub frames: Frames,
    /// What hooks and the operator wrote down for later.
    pub custom: BTreeMap<String, serde_json::Value>,
}

/// The loop is not in a state in which this can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidState {
    /// The state it is in.
    pub current: LoopState,
    /// What was to be done.
    pub action: &'static str,
}

impl fmt::Display for InvalidState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} a loop that is {}", self.action, self.current)
    }
}

impl std::error::Error for InvalidState {}

impl State {
    /// Returns the state of a loop that nobody has started.
    #[must_use]
    pub fn new(loop_id: LoopId) -> Self {
        Self {
            loop_id,
            seq: Seq(0),
            life: Life::default(),
            time: Timestamp::default(),
            started_at: None,
            launch: Launch::default(),
            runner: None,
            phase: Phase::Idle,
            iteration: 0,
            attempt: 0,
            cuts: 0,
            cut: false,
            generation: Generation(0),
            session: Session::default(),
            pause_requested: false,
            reboot_pending: None,
            reboot_not_before: None,
            stop: None,
            stop_urgent: false,
            claimed: false,
            completion: Completion::of_a_new_loop(),
            progress: Progress::default(),
            failure_streak: 0,
            limit_streak: 0,
            last_failure: None,
            stats: LoopStats::default(),
            history: Vec::new(),
            agent: None,
            reboots: RebootBook::default(),
            checkpoint: Checkpoint::default(),
            kept: KeptWork::default(),
            notes: Vec::new(),
            ledger: Ledger::default(),
            operator: Operator::default(),
            copies: Copies::default(),
            limits: Limits::default(),
            stop_pattern: None,
            frames: Frames::default(),
            custom: BTreeMap::new(),
        }
    }

    /// Returns the public state.
    #[must_use]
    pub fn public(&self) -> LoopState {
        self.phase.public()
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

    /// Returns how the loop ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.phase {
            Phase::Ended { outcome } => Some(outcome),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Keeping { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. } => None,
        }
    }

    /// Checks that a runner may take up the loop: every loop but one that is done.
    ///
    /// # Errors
    /// The loop is done; what comes next is a new loop.
    pub fn startable(&self) -> Result<(), InvalidState> {
        match self.outcome() {
            Some(Outcome::Done) => Err(InvalidState {
                current: self.public(),
                action: "start",
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the moment at which the core wants to be woken. A query: there are no timers to cancel or forget.
    #[must_use]
    pub fn next_deadline(&self, policy: &Policy) -> Option<Timestamp> {
        let deadline = match &self.phase {
            Phase::Waiting { wait } => self.wait_deadline(*wait),
            Phase::Working { work } => work.deadline(policy),
            Phase::Keeping { keep } => keep.until,
            Phase::Checking { check } => check.until,
            Phase::Hooking { hooking } => Some(hooking.until),
            Phase::Rebooting { reboot } => timeout::reboot(policy, reboot),
            // Only the operator or a new runner ends these.
            Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => return None,
        };
        deadline.into_iter().chain(self.out_of_time(policy)).min()
    }
}
