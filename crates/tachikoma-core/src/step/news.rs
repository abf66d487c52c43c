//! News about the iteration under way.

use super::Turn;
use crate::context::Context;
use crate::event::LoopEvent;
use crate::exit::{Exit, Leftover};
use crate::input::{News, Urgency};
use crate::outcome::{Failure, IterationOutcome, RebootReason, Stop};
use crate::phase::{Cause, Work};
use crate::policy::{reboot, timeout};

/// Tool calls in flight that are kept in mind; an agent that never ends its calls must not fill the memory.
const TOOLS_MAX: usize = 256;

impl Turn<'_> {
    pub(super) fn news(&mut self, news: News) {
        let Some(work) = self.work().cloned() else {
            return;
        };
        match news {
            News::Launched { pid } => {
                if work.launched.is_none() {
                    self.record(LoopEvent::AgentLaunched { pid });
                    self.interrupt_at_boundary();
                }
            }
            News::NotLaunched { reason } => {
                let failure = Failure::NotLaunched { reason };
                self.ended(&work, Exit::Unknown, false, Some(failure));
            }
            News::Output => self.output(&work),
            News::Measured(context) => self.measured(context),
            News::ToolStarted { id, name } => {
                if work.tools.len() < TOOLS_MAX {
                    self.record(LoopEvent::ToolStarted { id, name });
                }
            }
            News::ToolEnded { id } => {
                if work.tools.contains_key(&id) {
                    self.record(LoopEvent::ToolEnded { id });
                    self.interrupt_at_boundary();
                }
            }
            News::Resulted { success } => {
                if work.result.is_none() {
                    self.record(LoopEvent::TurnResulted { success });
                }
            }
            News::Exited {
                exit,
                claimed,
                leftovers,
            } => self.exited(&work, exit, claimed, leftovers),
            News::GuardLost => {
                let succeeded = work.result.is_some_and(|result| result.success);
                let failure = (!succeeded).then_some(Failure::GuardLost);
                self.ended(&work, Exit::Unknown, false, failure);
            }
        }
    }

    fn output(&mut self, work: &Work) {
        // Only the time-outs of an event stream care, and they care in steps.
        let due = !work.spoke || self.now.since(work.active) >= timeout::output_step(self.policy);
        if self.policy.agent.event_stream && due {
            self.record(LoopEvent::OutputSeen);
        }
    }

    fn measured(&mut self, context: Context) {
        let noticeable = self.state.session.context.is_none_or(|before| {
            before.window != context.window
                || before.estimated != context.estimated
                || (before.percent() - context.percent()).abs() >= 1.0
        });
        let full = context.percent() >= self.policy.reboot.redline_percent;
        if !noticeable && !full {
            return;
        }
        if self.state.session.context != Some(context) {
            self.record(LoopEvent::ContextMeasured { context });
        }
        if self.state.reboot_pending.is_some() || self.state.stop.is_some() {
            return;
        }
        match reboot::verdict_on_reading(&self.policy.reboot, self.state) {
            reboot::Verdict::GoOn => {}
            reboot::Verdict::Reboot(reason) => self.hand_over(reason),
            reboot::Verdict::Exhausted { reason, max } => {
                self.record(LoopEvent::StopRequested {
                    stop: exhausted(&reason, max),
                });
                self.request_ending(Cause::Interrupt, Urgency::Graceful);
            }
        }
    }

    /// Ends the iteration for a reboot of its session.
    pub(super) fn hand_over(&mut self, reason: RebootReason) {
        if self.state.reboot_pending.is_none() {
            self.record(LoopEvent::RebootRequested { reason });
        }
        let urgency = if self.policy.reboot.immediate {
            Urgency::Now
        } else {
            Urgency::Graceful
        };
        self.request_ending(Cause::HandOver, urgency);
    }

    fn exited(&mut self, work: &Work, exit: Exit, claimed: bool, leftovers: Vec<Leftover>) {
        if !leftovers.is_empty() {
            self.record(LoopEvent::LeftoversEnded { leftovers });
        }
        let failure = match work.result {
            Some(result) if result.success => None,
            Some(_) => Some(Failure::Reported { exit }),
            None if self.policy.agent.event_stream => Some(Failure::NoResult { exit }),
            None if exit.is_success() => None,
            None => Some(Failure::Exited { exit }),
        };
        self.ended(work, exit, claimed, failure);
    }

    /// Decides what becomes of an iteration whose process is gone. A turn that had its result before, or ended
    /// by itself, is judged by that; one that we ended, by why we did.
    fn ended(&mut self, work: &Work, exit: Exit, claimed: bool, failure: Option<Failure>) {
        let ours = work
            .ending
            .filter(|_| work.ladder.is_some() && work.result.is_none());
        let outcome = match ours.map(|ending| ending.cause) {
            None => IterationOutcome::Succeeded,
            Some(Cause::HandOver) => IterationOutcome::HandedOver,
            Some(Cause::Skip) => IterationOutcome::Skipped,
            Some(Cause::Interrupt) => IterationOutcome::Interrupted,
            Some(Cause::Timeout { timeout }) => {
                return self.iteration_failed(work, Failure::TimedOut { timeout });
            }
        };
        match failure {
            Some(failure) if ours.is_none() => self.iteration_failed(work, failure),
            Some(_) | None => self.iteration_completed(work, outcome, exit, claimed),
        }
    }
}

pub(super) fn exhausted(reason: &RebootReason, max: u32) -> Stop {
    Stop::Unable {
        reason: format!(
            "a reboot is needed ({reason}), but all {max} are used up (max_restarts = {max}); \
             make the task smaller, or raise max_restarts"
        ),
    }
}
