//! The end of an iteration, and the decisions before the next one: stop, reboot, pause, wait, new session, prompt.

use std::time::Duration;

use super::reading::exhausted;
use super::{HELD, PASSED, Stage, StageResult, Stepper};
use crate::policy::context::{Level, level};
use crate::policy::{reboot, stop};
use crate::reasons;
use crate::time::millis;
use crate::{
    CommitStatus, Effect, Exit, Failure, HandOff, HookPoint, IterationOutcome, IterationReport,
    LimitedAttempt, LoopEvent, LoopState, Outcome, Problem, RebootReason, Spent, Stop, Timestamp,
    Urgency, Wait, WaitReason, Work,
};

/// Number of iterations in a row that fail at once, after which the conversation counts as broken.
const FAST_FAILURES_MAX: u32 = 3;

/// Maximum number of attempts at one iteration that a lost server cut. The server's supervisor usually stops restarting it earlier.
pub(super) const CUT_ATTEMPTS_MAX: u32 = 32;

/// Limit of an outage if no request ever succeeded: the address of the service is probably wrong.
const UNREACHED_MAX: Duration = Duration::from_secs(600);

impl Stepper<'_> {
    pub(super) fn iteration_completed(
        &mut self,
        work: &Work,
        outcome: IterationOutcome,
        exit: Option<Exit>,
        claimed: bool,
    ) {
        let report = IterationReport {
            iteration: self.state.iteration,
            outcome,
            duration_ms: millis(self.now.since(work.started)),
            exit,
            claimed: claimed && outcome == IterationOutcome::Succeeded,
            needs_reboot: self.state.reboot_pending.is_some()
                || outcome == IterationOutcome::HandedOver,
        };
        self.record(LoopEvent::IterationCompleted {
            report,
            agent_lives: exit.is_none(),
        });
        let delay = self.policy.iteration_delay;
        let then = match outcome {
            IterationOutcome::Succeeded if !delay.is_zero() => Some(Wait {
                reason: WaitReason::Delay,
                until: self.now.after(delay),
            }),
            // The operator or a reboot ended the iteration, so there is no delay.
            IterationOutcome::Succeeded
            | IterationOutcome::Failed
            | IterationOutcome::HandedOver
            | IterationOutcome::Skipped
            | IterationOutcome::Interrupted => None,
        };
        let succeeded = outcome == IterationOutcome::Succeeded;
        let status = succeeded.then_some(CommitStatus::Succeeded);
        self.advance(Stage::Commit(status), then);
    }

    pub(super) fn iteration_failed(&mut self, work: &Work, failure: Failure, agent_lives: bool) {
        let reason_text = failure.to_string();
        let problem = failure.problem().cloned();
        self.record_failure(work, failure, agent_lives);
        match problem {
            Some(Problem::Permanent { advice }) => {
                let reason = format!("{reason_text}; {advice}");
                self.request_stop(Stop::Unable { reason }, Urgency::Graceful);
            }
            Some(Problem::Poisoned) => self.replace_broken_session(reason_text),
            // An iteration whose attempts were cut too often counts as failed.
            Some(Problem::Cut) | None => {
                let fast = self.state.session.fast_failures;
                if fast >= FAST_FAILURES_MAX && self.state.session.agent_id.is_some() {
                    self.replace_broken_session(format!(
                        "{fast} iterations failed at once: {reason_text}"
                    ));
                }
            }
            // These problems are recorded as a limited attempt, not as a failure.
            Some(Problem::Limited { .. } | Problem::Unreachable) => {}
        }
        let delay = self.policy.backoff.delay(self.state.failure_streak);
        let then = Wait {
            reason: WaitReason::Backoff,
            until: self.now.after(delay),
        };
        self.advance(Stage::Commit(Some(CommitStatus::Failed)), Some(then));
    }

    /// Requests a new session because the conversation is broken. The rate limits do not apply.
    fn replace_broken_session(&mut self, error: String) {
        if stop::verdict(self.policy, self.state, self.now).is_some() {
            return;
        }
        let reason = RebootReason::ErrorRecovery { error };
        match reboot::judge(&self.policy.reboot, self.state, Some(reason)) {
            reboot::Verdict::GoOn => {}
            reboot::Verdict::Reboot(reason) => self.request_reboot(reason, None),
            reboot::Verdict::Exhausted { reason, max } => {
                self.request_stop(exhausted(&reason, max), Urgency::Graceful);
            }
        }
    }

    /// Records that the attempt ended because the agent's server or conversation was lost. The iteration is repeated at once.
    pub(super) fn iteration_cut(&mut self, failure: &Failure, agent_lives: bool) {
        self.record(LoopEvent::AttemptCut {
            iteration: self.state.iteration,
            attempt: self.state.attempt,
            reason: Some(
                failure
                    .words()
                    .map_or_else(|| failure.to_string(), str::to_owned),
            ),
            agent_lives,
        });
        self.advance(Stage::Commit(None), None);
    }

    /// Records that the model's service refused the attempt or could not be reached. The iteration is repeated after a wait.
    pub(super) fn iteration_limited(&mut self, reason: &str, problem: &Problem, agent_lives: bool) {
        let outage = *problem == Problem::Unreachable;
        let mut resets_at = None;
        if let Problem::Limited { until } = problem {
            resets_at = *until;
        }
        self.record(LoopEvent::IterationLimited(LimitedAttempt {
            iteration: self.state.iteration,
            attempt: self.state.attempt,
            reason: reason.to_owned(),
            until: resets_at,
            streak: self.state.limit_streak.saturating_add(1),
            outage,
            agent_lives,
        }));
        self.run_background_hooks(HookPoint::LimitWait);
        let then = self.service_wait(problem, reason);
        self.advance(Stage::Commit(None), then);
    }

    /// Returns the wait for the model's service; `None` if the outage ends the loop.
    pub(super) fn service_wait(&mut self, problem: &Problem, reason_text: &str) -> Option<Wait> {
        match problem {
            Problem::Limited { until } => Some(self.limit_wait(*until)),
            Problem::Unreachable => self.outage_wait(reason_text),
            Problem::Poisoned | Problem::Cut | Problem::Permanent { .. } => None,
        }
    }

    /// Returns the wait for a usage limit. Services lift limits late, so a margin is added to the reported reset time.
    fn limit_wait(&self, reset: Option<Timestamp>) -> Wait {
        let streak = self.state.limit_streak;
        let (from, rule) = match reset {
            Some(reset) => (reset.max(self.now), self.policy.reset_margin),
            None => (self.now, self.policy.limit_backoff),
        };
        Wait {
            reason: WaitReason::UsageLimit,
            until: from.after(rule.delay(streak)),
        }
    }

    /// Returns the wait for a service that cannot be reached. An outage that has lasted too long ends the loop instead.
    fn outage_wait(&mut self, reason_text: &str) -> Option<Wait> {
        let delay = self.policy.outage_backoff.delay(self.state.limit_streak);
        let wait = Wait {
            reason: WaitReason::Outage,
            until: self.now.after(delay),
        };
        let configured = self.policy.max_outage;
        let reached = self.state.reached_service();
        let limit = match reached {
            false if configured.is_zero() => UNREACHED_MAX,
            false => configured.min(UNREACHED_MAX),
            true if configured.is_zero() => return Some(wait),
            true => configured,
        };
        let end = self.state.outage_since.unwrap_or(self.now).after(limit);
        if end > self.now {
            // The last attempt is made at the end of the allowed outage.
            return Some(Wait {
                until: wait.until.min(end),
                ..wait
            });
        }
        let seconds = limit.as_secs();
        let reason = match reached {
            true => format!(
                "the model's service could not be reached for {seconds} s (stop_conditions.max_outage): {reason_text}; \
                 `tachikoma run` continues the loop when the network is back"
            ),
            false => format!(
                "the model's service could not be reached for {seconds} s, and no request of this loop ever succeeded: \
                 {reason_text}; check the network, the proxy and the address of the service, then `tachikoma run` continues the loop"
            ),
        };
        self.request_stop(Stop::Unable { reason }, Urgency::Graceful);
        None
    }

    pub(super) fn record_failure(&mut self, work: &Work, failure: Failure, agent_lives: bool) {
        self.record(LoopEvent::IterationFailed {
            iteration: self.state.iteration,
            failure,
            duration_ms: millis(self.now.since(work.started)),
            streak: self.state.failure_streak.saturating_add(1),
            agent_lives,
        });
        self.run_background_hooks(HookPoint::Error);
    }

    /// Decides whether the session continues or a reboot is due.
    pub(super) fn settle(&mut self) -> StageResult {
        let (policy, now) = (self.policy, self.now);
        if stop::verdict(policy, self.state, now).is_some() {
            return PASSED;
        }
        // Before the first iteration there is no session to judge.
        let judges = self.state.iteration > 0;
        if judges {
            let conditions = reasons::stop_conditions(policy, self.state, now);
            self.add_reason(format!("no stop condition is met: {conditions}"));
        }
        if self.state.reboot_pending.is_some() {
            return PASSED;
        }
        match reboot::verdict(policy, self.state) {
            reboot::Verdict::GoOn if judges => {
                self.add_reason(reasons::session_goes_on(policy, self.state, now));
            }
            reboot::Verdict::GoOn => {}
            reboot::Verdict::Reboot(reason) => self.request_reboot_when_allowed(reason),
            reboot::Verdict::Exhausted { reason, max } => {
                self.request_stop(exhausted(&reason, max), Urgency::Graceful);
            }
        }
        PASSED
    }

    /// Ends the loop if the work is complete, a stop is requested or a stop condition is met.
    pub(super) fn end_if_condition_met(&mut self, then: Option<Wait>) -> StageResult {
        let Some(outcome) = stop::verdict(self.policy, self.state, self.now) else {
            return PASSED;
        };
        if self.must_ask_about_the_end() {
            self.ask_about_the_end(&outcome, then);
        } else {
            self.record_stop_condition(&outcome);
            self.explain_end(&outcome);
            self.finish(outcome);
        }
        HELD
    }

    fn explain_end(&mut self, outcome: &Outcome) {
        // The text of other outcomes already contains the reason.
        if *outcome == Outcome::Done {
            self.add_reason(reasons::completion(self.policy, self.state));
        } else if let Outcome::LimitReached { .. } = outcome {
            let met = stop::met(self.policy, self.state, self.now);
            self.add_reason(reasons::conditions(met.as_slice()));
        }
    }

    /// Begins the reboot that is pending, or asks the operator about it. If it may not happen yet, the loop may have to wait for it.
    pub(super) fn reboot_if_due(&mut self, then: &mut Option<Wait>) -> StageResult {
        // A session cannot be asked for its hand-off while the model's service does not answer.
        let unheard = then.is_some_and(|wait| wait.is_for_service() && wait.until > self.now);
        let pending = self.state.reboot_pending.clone();
        let Some(reason) = pending.filter(|_| !unheard) else {
            return PASSED;
        };
        let held = self.reboot_is_held();
        if held && !self.hands_off_early(&reason) {
            *then = self.until_reboot_window().or(*then);
            return PASSED;
        }
        if held || !self.must_confirm(&reason) {
            self.begin_reboot(reason, *then);
        } else if self.state.pause_requested {
            return PASSED;
        } else {
            self.ask_to_reboot(&reason, *then);
        }
        HELD
    }

    pub(super) fn pause_if_requested(&mut self, then: Option<Wait>) -> StageResult {
        if !self.state.pause_requested {
            return PASSED;
        }
        self.record(LoopEvent::Paused { then });
        HELD
    }

    pub(super) fn wait_if_due(&mut self, then: Option<Wait>) -> StageResult {
        let Some(wait) = then.filter(|wait| wait.until > self.now) else {
            return PASSED;
        };
        self.add_reason(reasons::wait(self.policy, self.state, wait, self.now));
        self.record(LoopEvent::WaitStarted { wait });
        HELD
    }

    /// Returns the wait until the rate limits allow the pending reboot, if the context has no room for another prompt.
    fn until_reboot_window(&self) -> Option<Wait> {
        let until = self.state.reboot_not_before?;
        let reason = WaitReason::RebootWindow;
        let handed_off = self.state.session.hand_off != HandOff::NotAsked;
        let idle = handed_off && self.state.reboots.failures == 0 && !self.reboot_is_put_off();
        (idle || self.takes_no_prompt()).then_some(Wait { reason, until })
    }

    /// Returns whether the context has no room for another prompt.
    pub(super) fn takes_no_prompt(&self) -> bool {
        let session = &self.state.session;
        let context = session.context;
        session.spent == Some(Spent::Full)
            || context.is_some_and(|context| level(self.policy, session, &context) == Level::Hard)
    }

    /// Records the end of the current session and the start of the next one.
    pub(super) fn begin_session(&mut self, reason: &str) {
        let number = self.state.session.number;
        if number.0 > 0 {
            self.record(LoopEvent::SessionEnded {
                session: number,
                iterations: self.state.session.iterations,
                reason: reason.to_owned(),
            });
        }
        self.record(LoopEvent::SessionStarted {
            session: number.next(),
            agent_id: None,
        });
    }

    /// Begins a session if there is none yet, if each iteration has its own, or if the agent lost the conversation.
    pub(super) fn begin_session_if_needed(&mut self) -> StageResult {
        let fresh = self.policy.fresh_each_iteration;
        let begun = self.state.session.iterations > 0;
        if self.state.session.number.0 == 0 || (fresh && begun) {
            self.begin_session("every iteration has its own session");
        } else if self.state.session.spent == Some(Spent::Lost) {
            self.begin_session("the agent no longer knows the conversation");
        }
        PASSED
    }

    /// Begins the next attempt at an iteration.
    pub(super) fn begin_turn(&mut self) {
        let attempt = if self.state.cut {
            self.state.attempt.saturating_add(1)
        } else {
            1
        };
        self.launch_or_prompt(self.state.next_iteration(), attempt);
    }

    /// Starts the agent again for the same iteration, because its process ended before it read the prompt.
    pub(super) fn launch_again(&mut self) {
        self.launch_or_prompt(self.state.iteration, self.state.attempt.saturating_add(1));
    }

    fn launch_or_prompt(&mut self, iteration: u32, attempt: u32) {
        let fresh = self.policy.fresh_each_iteration;
        let session = self.state.session.number;
        let up = self.state.agent.map(|agent| agent.generation);
        let generation = up.unwrap_or(self.state.generation.next());
        self.record(LoopEvent::IterationStarted {
            iteration,
            attempt,
            session,
            generation,
        });
        // A running agent is asked for its cost before the prompt, so that the answer is the start value of the turn.
        if up.is_some() {
            self.ask_cost();
        }
        self.emit(match up {
            Some(generation) => Effect::Prompt {
                generation,
                iteration,
                attempt,
                session,
            },
            None => Effect::Launch {
                generation,
                iteration,
                attempt,
                session,
                resume: self.state.session.agent_id.clone().filter(|_| !fresh),
            },
        });
        if up.is_none() {
            self.ask_cost();
        }
    }

    /// Ends the loop. The final state is derived from the outcome only here.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.give_up_rollback();
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
        self.emit(Effect::Finish);
    }
}
