//! The order of the stages between the end of a turn and the next prompt, and the order of the steps of a reboot.
//!
//! The other modules of `step` carry out one stage each and return whether it was passed. Only the two functions here decide which
//! stage follows.

use std::ops::ControlFlow;

use super::Stepper;
use crate::{CommitStatus, Wait};

/// Whether a stage was passed. `Break` means that the loop waits, or has ended. The input that ends the wait continues with the next
/// stage.
pub(super) type StageResult = ControlFlow<()>;

/// The stage was passed.
pub(super) const PASSED: StageResult = ControlFlow::Continue(());

/// The loop waits, or has ended.
pub(super) const HELD: StageResult = ControlFlow::Break(());

/// Returns [`HELD`] if the loop has to wait.
pub(super) fn held_if(waits: bool) -> StageResult {
    if waits { HELD } else { PASSED }
}

/// A stage between the end of a turn and the next prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Commit the changes of the attempt under this status. `None` only surveys the work tree.
    Commit(Option<CommitStatus>),
    /// Read the objectives, ask the stop scripts, run the gates, and judge a claim of completion.
    Check,
    /// Decide whether the session continues or needs a reboot.
    Settle,
    /// Run the hooks of the iteration that ended.
    IterationEndHooks,
    /// End the loop if a stop condition is met.
    End,
    /// Reboot the session if that is due.
    Reboot,
    /// Pause if the operator asked for it.
    Pause,
    /// Ask the operator, in attended mode.
    Question,
    /// Wait, after failures or between iterations.
    Wait,
    /// Begin a session if there is none, or if the last one cannot continue.
    Session,
    /// Run the hooks of the sessions and of the iteration that begins.
    StartHooks,
    /// Start the agent, or prompt the one that runs.
    Prompt,
}

/// A step of a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RebootStep {
    /// Ask the old session for its hand-off.
    HandOff,
    /// Postpone the reboot if the rate limits do not allow it yet.
    RateLimits,
    /// Run the hooks before the reboot.
    HooksBefore,
    /// End the process of the old session. It may change files until then.
    CloseOld,
    /// Commit the work of the old session.
    Commit,
    /// Open the new session. An agent that runs for one turn is started by its next prompt instead.
    OpenNew,
    /// Record the end of the old session and the start of the new one.
    Replace,
    /// Run the hooks after the reboot.
    HooksAfter,
    /// Record the end of the reboot, and continue the loop.
    Complete,
}

impl Stepper<'_> {
    /// Runs the stages from `stage` on until the loop has to wait. `wait` is the wait that is due before the next prompt.
    pub(super) fn advance(&mut self, stage: Stage, wait: Option<Wait>) {
        let (mut stage, mut wait) = (stage, wait);
        loop {
            let (result, next) = match stage {
                Stage::Commit(status) => (self.commit_iteration(status, wait), Stage::Check),
                Stage::Check => (self.check(wait), Stage::Settle),
                Stage::Settle => (self.settle(), Stage::IterationEndHooks),
                Stage::IterationEndHooks => (self.run_iteration_end_hooks(wait), Stage::End),
                Stage::End => (self.end_if_condition_met(wait), Stage::Reboot),
                Stage::Reboot => (self.reboot_if_due(&mut wait), Stage::Pause),
                Stage::Pause => (self.pause_if_requested(wait), Stage::Question),
                Stage::Question => (self.ask_if_attended(wait), Stage::Wait),
                Stage::Wait => (self.wait_if_due(wait), Stage::Session),
                Stage::Session => (self.begin_session_if_needed(), Stage::StartHooks),
                Stage::StartHooks => (self.run_start_hooks(), Stage::Prompt),
                Stage::Prompt => return self.begin_turn(),
            };
            if result == HELD {
                return;
            }
            stage = next;
        }
    }

    /// Runs the steps of a reboot from `step` on until the loop has to wait.
    pub(super) fn advance_reboot(&mut self, step: RebootStep) {
        let mut step = step;
        loop {
            let (result, next) = match step {
                RebootStep::HandOff => (self.ask_hand_off(), RebootStep::RateLimits),
                RebootStep::RateLimits => (self.postpone_if_limited(), RebootStep::HooksBefore),
                RebootStep::HooksBefore => (self.run_hooks_before_reboot(), RebootStep::CloseOld),
                RebootStep::CloseOld => (self.close_old_session(), RebootStep::Commit),
                RebootStep::Commit => (self.commit_checkpoint(), RebootStep::OpenNew),
                RebootStep::OpenNew => (self.open_new_session(), RebootStep::Replace),
                RebootStep::Replace => (self.replace_session(), RebootStep::HooksAfter),
                RebootStep::HooksAfter => (self.run_hooks_after_reboot(), RebootStep::Complete),
                RebootStep::Complete => return self.complete_reboot(),
            };
            if result == HELD {
                return;
            }
            step = next;
        }
    }
}
