//! Ending an iteration before its time: the wait for a boundary, then the ladder.

use std::time::Duration;

use super::Stepper;
use crate::activity::Activity;
use crate::effect::Effect;
use crate::event::LoopEvent;
use crate::input::Urgency;
use crate::ladder::Rung;
use crate::outcome::{Failure, Outcome, Timeout};
use crate::phase::{Cause, Work};
use crate::policy::{busy, timeout};

/// A look takes two seconds; a machine that needs so much longer for it shows nothing that can be judged.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);

impl Stepper<'_> {
    /// Asks for the end of the iteration under way. Asking again can only make it more urgent.
    pub(super) fn request_ending(&mut self, cause: Cause, urgency: Urgency) {
        let Some(work) = self.work().cloned() else {
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
            self.record(LoopEvent::EndingRequested {
                cause,
                boundary_until,
            });
        }
        match (urgency, work.ladder.map(|ladder| ladder.rung)) {
            (Urgency::Kill, None | Some(Rung::Interrupt | Rung::Terminate)) => {
                self.climb(&work, Rung::Kill);
            }
            // Told again, and more firmly: the next rung.
            (Urgency::Now, Some(Rung::Interrupt)) => self.climb(&work, Rung::Terminate),
            (Urgency::Graceful | Urgency::Now, None) => self.interrupt_at_boundary(),
            (Urgency::Graceful | Urgency::Now | Urgency::Kill, Some(_)) => {}
        }
    }

    /// Takes the first step of the ladder if an ending is wanted and nothing speaks against it.
    pub(super) fn interrupt_at_boundary(&mut self) {
        let Some(work) = self.work().cloned() else {
            return;
        };
        let Some(ending) = work.ending else { return };
        // A launch in flight is waited for: there is nothing to interrupt yet, and the wish is kept.
        let over = self.policy.agent.persistent && work.result.is_some();
        let up = work.launched.is_some() && work.ladder.is_none() && !over;
        if up && (!work.is_busy() || ending.boundary_until <= self.now) {
            self.climb(&work, Rung::Interrupt);
        }
    }

    /// Acts on whatever deadline of the iteration has passed.
    pub(super) fn overdue(&mut self, work: &Work) {
        if let Some(ladder) = work.ladder {
            if ladder.until <= self.now {
                match ladder.rung {
                    Rung::Interrupt => self.climb(work, Rung::Terminate),
                    Rung::Terminate => self.climb(work, Rung::Kill),
                    Rung::Kill => self.give_up(work),
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
                self.look(work, timeout);
            }
            Some((_, timeout)) => self.request_ending(Cause::Timeout { timeout }, Urgency::Now),
            None => self.interrupt_at_boundary(),
        }
    }

    fn look(&mut self, work: &Work, timeout: Timeout) {
        let until = self.now.after(LOOK_TIMEOUT);
        self.record(LoopEvent::SilenceChecked { timeout, until });
        self.emit(Effect::SampleProcesses {
            generation: work.generation,
        });
    }

    /// An agent that is at work has time again, one that is not is ended.
    pub(super) fn looked(&mut self, work: &Work, activity: Option<Activity>) {
        // It may have spoken meanwhile, be done, or be on its way out.
        let over = work.result.is_some() || work.stream_ended.is_some() || work.ending.is_some();
        if work.look.is_none() || over {
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

    fn give_up(&mut self, work: &Work) {
        let failure = Failure::Unkillable { pid: work.pid };
        self.record_failure(work, failure, false);
        self.unkillable(work.pid);
    }

    /// Ends the loop over an agent that outlives SIGKILL: another one must not share the work tree with it.
    pub(super) fn unkillable(&mut self, pid: Option<u32>) {
        let failure = Failure::Unkillable { pid };
        let reason = format!(
            "{failure}: it is stuck in the kernel, or its parent `loop-guard` is stopped; look at both with `ps`, then run the loop again"
        );
        self.end(Outcome::Error { reason });
    }

    fn climb(&mut self, work: &Work, rung: Rung) {
        let graces = &self.policy.ladder;
        let cause = work.ending.map(|ending| ending.cause);
        let grace = match rung {
            // For a reboot only late output is waited for: the conversation is given up anyway.
            Rung::Interrupt if cause == Some(Cause::HandOver) && self.policy.agent.persistent => {
                self.policy.reboot.graceful_delay
            }
            Rung::Interrupt => graces.interrupt,
            Rung::Terminate => graces.terminate,
            Rung::Kill => graces.reap,
        };
        self.record(LoopEvent::RungClimbed {
            rung,
            until: self.now.after(grace),
        });
        self.emit(Effect::Signal {
            generation: work.generation,
            rung,
        });
    }
}
