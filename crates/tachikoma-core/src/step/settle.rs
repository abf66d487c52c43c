//! Between iterations: bookkeeping, and what comes next.

use super::Turn;
use super::news::exhausted;
use crate::effect::Effect;
use crate::event::LoopEvent;
use crate::exit::Exit;
use crate::outcome::{Failure, IterationOutcome, IterationReport, Outcome};
use crate::phase::{LoopState, Wait, WaitReason, Work};
use crate::policy::{reboot, restart, stop};

impl Turn<'_> {
    pub(super) fn iteration_completed(
        &mut self,
        work: &Work,
        outcome: IterationOutcome,
        exit: Exit,
        claimed: bool,
    ) {
        let report = IterationReport {
            iteration: self.state.iteration,
            outcome,
            duration_ms: self.duration_ms(work),
            exit,
            claimed: claimed && outcome == IterationOutcome::Succeeded,
            progress: None,
            needs_reboot: self.state.reboot_pending.is_some(),
            tests_passed: None,
            files_changed: None,
        };
        self.record(LoopEvent::IterationCompleted { report });
        let delay = self.policy.iteration_delay;
        let then = match outcome {
            IterationOutcome::Succeeded if !delay.is_zero() => Some(Wait {
                reason: WaitReason::Delay,
                until: self.now.after(delay),
            }),
            // The operator or a reboot ended it: what follows is what they want, at once.
            IterationOutcome::Succeeded
            | IterationOutcome::Failed
            | IterationOutcome::HandedOver
            | IterationOutcome::Skipped
            | IterationOutcome::Interrupted => None,
        };
        self.settle(then);
    }

    pub(super) fn iteration_failed(&mut self, work: &Work, failure: Failure) {
        self.record_failure(work, failure);
        let delay = restart::delay(self.policy.backoff, self.state.failure_streak);
        self.settle(Some(Wait {
            reason: WaitReason::Backoff,
            until: self.now.after(delay),
        }));
    }

    pub(super) fn record_failure(&mut self, work: &Work, failure: Failure) {
        self.record(LoopEvent::IterationFailed {
            iteration: self.state.iteration,
            failure,
            duration_ms: self.duration_ms(work),
            streak: self.state.failure_streak.saturating_add(1),
        });
    }

    /// Asks whether the session may go on, then goes on.
    pub(super) fn settle(&mut self, then: Option<Wait>) {
        if self.state.reboot_pending.is_none() && stop::verdict(self.policy, self.state).is_none() {
            match reboot::verdict(&self.policy.reboot, self.state) {
                reboot::Verdict::GoOn => {}
                reboot::Verdict::Reboot(reason) => {
                    self.record(LoopEvent::RebootRequested { reason });
                }
                reboot::Verdict::Exhausted { reason, max } => {
                    self.record(LoopEvent::StopRequested {
                        stop: exhausted(&reason, max),
                    });
                }
            }
        }
        self.proceed(then);
    }

    /// Goes on with whatever is due: the end, a reboot, a pause, a wait, the next iteration.
    pub(super) fn proceed(&mut self, then: Option<Wait>) {
        if let Some(outcome) = stop::verdict(self.policy, self.state) {
            return self.end(outcome);
        }
        if let Some(reason) = self.state.reboot_pending.clone() {
            return self.begin_reboot(reason, then);
        }
        if self.state.pause_requested {
            return self.record(LoopEvent::Paused { then });
        }
        match then.filter(|wait| wait.until > self.now) {
            Some(wait) => self.record(LoopEvent::WaitStarted { wait }),
            None => self.begin_iteration(),
        }
    }

    fn begin_iteration(&mut self) {
        if self.state.session.number.0 == 0 {
            let session = self.state.session.number.next();
            self.record(LoopEvent::SessionStarted {
                session,
                agent_id: None,
            });
        }
        let attempt = if self.state.cut {
            self.state.attempt.saturating_add(1)
        } else {
            1
        };
        let iteration = self.state.next_iteration();
        let session = self.state.session.number;
        let generation = self.state.generation.next();
        self.record(LoopEvent::IterationStarted {
            iteration,
            attempt,
            session,
            generation,
        });
        self.wish(Effect::Launch {
            generation,
            iteration,
            attempt,
            session,
        });
    }

    /// Ends the loop. The final state is derived here, once, from the outcome.
    pub(super) fn end(&mut self, outcome: Outcome) {
        let stats = self.state.stats;
        let event = match outcome.state() {
            LoopState::Completed => LoopEvent::Completed { outcome, stats },
            LoopState::Stopped => LoopEvent::Stopped {
                reason: outcome.to_string(),
                outcome,
                stats,
            },
            LoopState::Error
            | LoopState::Idle
            | LoopState::Running
            | LoopState::Paused
            | LoopState::Rebooting => LoopEvent::Error { outcome, stats },
        };
        self.record(event);
        self.wish(Effect::Finish);
    }

    fn duration_ms(&self, work: &Work) -> u64 {
        u64::try_from(self.now.since(work.started).as_millis()).unwrap_or(u64::MAX)
    }
}
