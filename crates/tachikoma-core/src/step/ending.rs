//! Ends an iteration early: waits for the end of a tool call, then sends signals, each stronger than the last.

use std::time::Duration;

use super::Stepper;
use crate::policy::{busy, timeout};
use crate::reasons;
use crate::{
    Activity, Cause, Effect, Ending, Failure, LoopEvent, Outcome, StopSignal, Timeout, Urgency,
    Work,
};

/// Timeout of a sample, which normally takes two seconds. A sample that takes longer is ignored.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(20);

impl Stepper<'_> {
    /// Requests the early end of the iteration. A later request can only be more urgent.
    pub(super) fn request_ending(&mut self, cause: Cause, urgency: Urgency) {
        let Some(work) = self.state.work().cloned() else {
            return;
        };
        let patience_until = match urgency {
            Urgency::Graceful if self.policy.agent.event_stream && work.is_busy() => {
                self.now.after(self.policy.timeouts.graceful)
            }
            Urgency::Graceful | Urgency::Now | Urgency::Kill => self.now,
        };
        let (cause, boundary_until) = match work.ending {
            Some(before) if before.cause.severity() >= cause.severity() => {
                (before.cause, before.boundary_until.min(patience_until))
            }
            Some(before) => (cause, before.boundary_until.min(patience_until)),
            None => (cause, patience_until),
        };
        let unchanged = work
            .ending
            .is_some_and(|e| e.cause == cause && e.boundary_until == boundary_until);
        if !unchanged {
            let ending = Ending {
                cause,
                boundary_until,
            };
            self.add_reason(reasons::ending(self.policy, self.state, ending, self.now));
            self.record(LoopEvent::EndingRequested {
                cause,
                boundary_until,
            });
        }
        match (urgency, work.escalation.map(|escalation| escalation.signal)) {
            (Urgency::Kill, None | Some(StopSignal::Interrupt | StopSignal::Terminate)) => {
                self.signal_agent(&work, StopSignal::Kill);
            }
            // A second, more urgent request sends the next signal.
            (Urgency::Now, Some(StopSignal::Interrupt)) => {
                self.signal_agent(&work, StopSignal::Terminate);
            }
            (Urgency::Graceful | Urgency::Now, None) => self.interrupt_at_boundary(),
            (Urgency::Graceful | Urgency::Now | Urgency::Kill, Some(_)) => {}
        }
    }

    /// Interrupts the agent if the end of the iteration is requested and no tool call or answer has to finish first.
    pub(super) fn interrupt_at_boundary(&mut self) {
        let Some(work) = self.state.work().cloned() else {
            return;
        };
        let Some(ending) = work.ending else { return };
        // A process that is being launched cannot be interrupted yet. The interrupt follows the launch.
        let over = self.policy.agent.persistent && work.result.is_some();
        let up = work.launched.is_some() && work.escalation.is_none() && !over;
        if up && (!work.is_busy() || ending.boundary_until <= self.now) {
            self.signal_agent(&work, StopSignal::Interrupt);
        }
    }

    /// Handles the deadlines of the iteration that have passed.
    pub(super) fn iteration_overdue(&mut self, work: &Work) {
        if let Some(escalation) = work.escalation {
            if escalation.until <= self.now {
                match escalation.signal {
                    StopSignal::Interrupt => self.signal_agent(work, StopSignal::Terminate),
                    StopSignal::Terminate => self.signal_agent(work, StopSignal::Kill),
                    StopSignal::Kill => self.agent_unkillable(work),
                }
            }
            return;
        }
        match timeout::next(self.policy, work).filter(|(time, _)| *time <= self.now) {
            Some((_, timeout @ Timeout::Launch)) => {
                self.request_ending(Cause::Timeout { timeout }, Urgency::Kill);
            }
            Some((_, timeout @ (Timeout::Silence | Timeout::FirstOutput)))
                if timeout::may_be_busy(self.policy, work, self.now) =>
            {
                self.check_silence(work, timeout);
            }
            Some((_, timeout)) => self.request_ending(Cause::Timeout { timeout }, Urgency::Now),
            None => self.interrupt_at_boundary(),
        }
    }

    fn check_silence(&mut self, work: &Work, timeout: Timeout) {
        let until = self.now.after(SAMPLE_TIMEOUT);
        self.record(LoopEvent::SilenceChecked { timeout, until });
        self.emit(Effect::SampleProcesses {
            generation: work.generation,
        });
    }

    /// Decides about a silent agent after its processes were sampled: a busy agent gets more time, an idle one is ended.
    pub(super) fn processes_sampled(&mut self, work: &Work, activity: Option<Activity>) {
        // The agent may have finished its turn meanwhile, or its end may be requested.
        let over = work.result.is_some() || work.stream_ended.is_some() || work.ending.is_some();
        if work.silence_check_until.is_none() || over {
            return;
        }
        match activity.filter(busy::is_busy) {
            Some(activity) => self.record(LoopEvent::AgentBusy { activity }),
            None => {
                let timeout = match work.spoke {
                    true => Timeout::Silence,
                    false => Timeout::FirstOutput,
                };
                self.request_ending(Cause::Timeout { timeout }, Urgency::Now);
            }
        }
    }

    fn agent_unkillable(&mut self, work: &Work) {
        let failure = Failure::Unkillable { pid: work.pid };
        self.record_failure(work, failure, false);
        self.unkillable(work.pid);
    }

    /// Ends the loop because the agent survived SIGKILL. Another agent must not share the work tree with it.
    pub(super) fn unkillable(&mut self, pid: Option<u32>) {
        let failure = Failure::Unkillable { pid };
        let reason = format!(
            "{failure}: it is stuck in the kernel, or its parent `loop-guard` is stopped; look at both with `ps`, then run the loop again"
        );
        self.end(Outcome::Error { reason });
    }

    fn signal_agent(&mut self, work: &Work, signal: StopSignal) {
        let graces = &self.policy.stop_timeouts;
        let cause = work.ending.map(|ending| ending.cause);
        let grace = match signal {
            // In a reboot the loop only waits for late output, because the conversation ends anyway.
            StopSignal::Interrupt
                if cause == Some(Cause::HandOver) && self.policy.agent.persistent =>
            {
                self.policy.reboot.graceful_delay
            }
            StopSignal::Interrupt => graces.interrupt,
            StopSignal::Terminate => graces.terminate,
            StopSignal::Kill => graces.reap,
        };
        self.record(LoopEvent::AgentSignaled {
            signal,
            until: self.now.after(grace),
        });
        self.emit(Effect::Signal {
            generation: work.generation,
            signal,
        });
    }
}
