//! The end of a turn or of the agent's process: success, failure, limit, or early end.

use super::Stepper;
use crate::policy::budget::{self, Spending};
use crate::{Cause, Exit, Failure, IterationOutcome, Problem, Spent, Timestamp, Work};

impl Stepper<'_> {
    /// The agent reported the end of its turn, and its process waits for the next prompt.
    pub(super) fn turn_ended(&mut self) {
        let Some(work) = self.work().cloned() else {
            return;
        };
        let Some(result) = &work.result else { return };
        let failure = (!result.success).then(|| Failure::Reported {
            exit: None,
            reason: result.reason.clone(),
            problem: result.problem.clone(),
        });
        self.judge(&work, None, result.claimed, failure);
    }

    /// The agent's process has ended.
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

    /// Decides how the iteration ended. If the loop itself ended the turn, the loop's reason decides.
    fn judge(&mut self, work: &Work, exit: Option<Exit>, claimed: bool, failure: Option<Failure>) {
        let by_itself = work
            .result
            .as_ref()
            .is_some_and(|result| result.success || !result.after_interrupt);
        let ours = work
            .ending
            .filter(|_| work.escalation.is_some() && !by_itself);
        // The agent's context is full. A new session continues the iteration.
        let refused = self.state.session.spent == Some(Spent::Full);
        if refused && ours.is_none() && self.policy.reboot.manages_context() {
            return self.iteration_completed(work, IterationOutcome::HandedOver, exit, false);
        }
        // The agent itself ended its turn because the budget is used up.
        if ours.is_none() && self.failed_for_budget(failure.as_ref()) {
            return self.iteration_completed(work, IterationOutcome::Interrupted, exit, false);
        }
        let outcome = match ours.map(|ending| ending.cause) {
            None => IterationOutcome::Succeeded,
            Some(Cause::HandOver) => IterationOutcome::HandedOver,
            Some(Cause::Skip) => IterationOutcome::Skipped,
            Some(Cause::Interrupt) => IterationOutcome::Interrupted,
            Some(Cause::Timeout { timeout }) => {
                let last_seen = last_seen(work, self.now);
                let failure = Failure::TimedOut { timeout, last_seen };
                return self.iteration_failed(work, failure, exit.is_none());
            }
        };
        match failure {
            Some(failure) if ours.is_none() && self.is_lost_server(&failure) => {
                self.iteration_cut(&failure, exit.is_none());
            }
            Some(failure) if ours.is_none() => match failure.problem() {
                Some(problem @ (Problem::Limited { .. } | Problem::Unreachable)) => {
                    let reason = failure.words().unwrap_or_default();
                    self.iteration_limited(reason, problem, exit.is_none());
                }
                Some(_) | None => self.iteration_failed(work, failure, exit.is_none()),
            },
            Some(_) | None => self.iteration_completed(work, outcome, exit, claimed),
        }
    }

    /// Returns whether the agent reported a failure and a budget is used up.
    fn failed_for_budget(&self, failure: Option<&Failure>) -> bool {
        let reported = matches!(failure, Some(Failure::Reported { problem: None, .. }));
        let spending = Spending::of(self.state, self.now);
        reported && budget::verdict(&self.policy.budgets, &spending).is_some()
    }
}

/// Describes the last activity of the agent; `None` if there was none.
fn last_seen(work: &Work, now: Timestamp) -> Option<String> {
    let busy = work.busy.map(|busy| {
        let ago = now.since(busy.time).as_secs();
        format!("busy {ago} s ago: {}", busy.activity)
    });
    let parts: Vec<String> = last_heard(work, now).into_iter().chain(busy).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn last_heard(work: &Work, now: Timestamp) -> Option<String> {
    let ago = |time: Timestamp| now.since(time).as_secs();
    let oldest = work.tools.values().min_by_key(|tool| tool.since);
    Some(match oldest {
        Some(tool) if tool.summary.is_empty() => {
            format!("tool {} for {} s", tool.name, ago(tool.since))
        }
        Some(tool) => format!(
            "tool {}: {} for {} s",
            tool.name,
            tool.summary,
            ago(tool.since)
        ),
        None if work.answering => format!("an answer, {} s ago", ago(work.active)),
        None if work.spoke => format!("output, {} s ago", ago(work.active)),
        None => return None,
    })
}
