//! What becomes of an iteration when its turn, or its process, is over.

use super::Turn;
use crate::exit::Exit;
use crate::outcome::{Failure, IterationOutcome, Spent};
use crate::phase::{Cause, Work};

impl Turn<'_> {
    /// The agent reported the end of its turn, and its process waits for the next one.
    pub(super) fn turn_ended(&mut self) {
        let Some(work) = self.work().cloned() else {
            return;
        };
        let Some(result) = &work.result else { return };
        let failure = (!result.success).then(|| Failure::Reported {
            exit: None,
            reason: result.reason.clone(),
        });
        self.judge(&work, None, result.claimed, failure);
    }

    /// The agent's process is gone.
    pub(super) fn process_ended(
        &mut self,
        work: &Work,
        exit: Exit,
        claimed: bool,
        failure: Option<Failure>,
    ) {
        let claimed = claimed || work.result.as_ref().is_some_and(|result| result.claimed);
        self.judge(work, Some(exit), claimed, failure);
    }

    /// A turn that ended by itself is judged by how it did; one that we ended, by why we did.
    fn judge(&mut self, work: &Work, exit: Option<Exit>, claimed: bool, failure: Option<Failure>) {
        let by_itself = work
            .result
            .as_ref()
            .is_some_and(|result| result.success || !result.after_interrupt);
        let ours = work.ending.filter(|_| work.ladder.is_some() && !by_itself);
        // What was done so far is good, and a fresh session goes on with it.
        let refused = self.state.session.spent == Some(Spent::Full);
        if refused && ours.is_none() && self.policy.reboot.manages_context() {
            return self.iteration_completed(work, IterationOutcome::HandedOver, exit, false);
        }
        let outcome = match ours.map(|ending| ending.cause) {
            None => IterationOutcome::Succeeded,
            Some(Cause::HandOver) => IterationOutcome::HandedOver,
            Some(Cause::Skip) => IterationOutcome::Skipped,
            Some(Cause::Interrupt) => IterationOutcome::Interrupted,
            Some(Cause::Timeout { timeout }) => {
                return self.iteration_failed(work, Failure::TimedOut { timeout }, exit.is_none());
            }
        };
        match failure {
            Some(failure) if ours.is_none() => {
                self.iteration_failed(work, failure, exit.is_none());
            }
            Some(_) | None => self.iteration_completed(work, outcome, exit, claimed),
        }
    }
}
