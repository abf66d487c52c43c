//! Replacing a session by a fresh one, as planned: hand-off, hooks, the old process out, the new one in, hooks.
//!
//! One process at a time: the conversation of the old session can be taken up again by its name, so that nothing is
//! given up before the fresh session answers, and no two agents ever share a work tree.

use super::{Turn, millis};
use crate::effect::{Effect, Rung};
use crate::event::LoopEvent;
use crate::exit::Exit;
use crate::hooking::{HookPoint, HookResult, HooksStart};
use crate::id::SessionNo;
use crate::input::News;
use crate::outcome::{RebootReason, Stop};
use crate::phase::{Reboot, RebootStage, Wait};
use crate::policy::context::{Level, level};

/// What is kept of a session's own words; with notes, files and failures they have to fit into the hand-off.
const WORDS_BYTES_MAX: usize = 16 << 10;
use crate::turn_report::TurnReport;

impl Turn<'_> {
    pub(super) fn begin_reboot(&mut self, reason: RebootReason, then: Option<Wait>) {
        let from = self.state.session.number;
        let iteration = self.state.iteration;
        self.record(LoopEvent::RebootStarted {
            reason,
            iteration,
            from,
            then,
        });
        self.ask_hand_off();
    }

    /// Takes up a reboot that the death of a runner cut: one whose fresh session is recorded is over.
    pub(super) fn resume_reboot(&mut self, reboot: Reboot) {
        if self.state.session.number == reboot.to {
            self.reboot_completed(reboot);
        } else {
            self.begin_reboot(reboot.reason, reboot.then);
        }
    }

    fn ask_hand_off(&mut self) {
        let rules = &self.policy.reboot;
        let up = self.state.agent.filter(|agent| agent.pid.is_some());
        let room = !self.takes_no_prompt();
        let knows_something = self.state.session.iterations > 0;
        let broken = self
            .reboot()
            .is_some_and(|reboot| matches!(reboot.reason, RebootReason::ErrorRecovery { .. }));
        let can_answer = room && knows_something && !broken && self.state.limit_streak == 0;
        match up {
            Some(agent) if rules.ask_hand_off && !rules.immediate && can_answer => {
                let until = self.now.after(rules.hand_off_timeout);
                self.record(LoopEvent::HandOffRequested { until });
                self.ask_cost();
                self.wish(Effect::AskHandOff {
                    generation: agent.generation,
                });
            }
            Some(_) | None => self.hooks_before(),
        }
    }

    fn hooks_before(&mut self) {
        if !self.run_hooks(HookPoint::BeforeReboot, self.policy.reboot.hooks_before) {
            self.keep_old();
        }
    }

    /// Starts the hooks of one point, if there are any.
    fn run_hooks(&mut self, point: HookPoint, limit: Option<std::time::Duration>) -> bool {
        let (Some(limit), Some(reboot)) = (limit, self.reboot()) else {
            return false;
        };
        let until = self.now.after(limit);
        self.record(LoopEvent::HooksStarted(HooksStart {
            point,
            until,
            then: None,
            outcome: None,
        }));
        self.wish(Effect::RunHooks {
            point,
            reason: Some(reboot.reason),
        });
        true
    }

    pub(super) fn reboot_hooks_ran(&mut self, point: HookPoint, results: Vec<HookResult>) {
        let Some(reboot) = self.reboot() else { return };
        let awaited = matches!(&reboot.stage, RebootStage::Hooks { point: p, .. } if *p == point);
        if !awaited {
            return;
        }
        let failed = results.iter().filter_map(|result| {
            let error = result.error.as_ref()?;
            Some(format!("the hook `{}` failed: {error}", result.name))
        });
        let failed: Vec<String> = failed.collect();
        let stop = self.take_results(point, results);
        if let Some(stop) = stop.filter(|_| self.state.stop.is_none()) {
            self.stop_by_itself(stop);
        }
        match point == HookPoint::BeforeReboot {
            true => match failed.into_iter().next() {
                None => self.keep_old(),
                Some(error) => self.reboot_failed(&error, true),
            },
            false => {
                for error in failed {
                    let warning = format!("{error}; the reboot counts all the same");
                    self.record(LoopEvent::Warned { warning });
                }
                self.reboot_completed(reboot);
            }
        }
    }

    fn keep_old(&mut self) {
        if !self.keep_checkpoint() {
            self.close_old();
        }
    }

    pub(super) fn close_old(&mut self) {
        match self.state.agent {
            Some(agent) => {
                let until = self.now.after(self.policy.ladder.interrupt);
                self.record(LoopEvent::ClosingStarted {
                    until,
                    failed: None,
                });
                self.wish(Effect::Close {
                    generation: agent.generation,
                });
            }
            None => self.open_new(),
        }
    }

    fn open_new(&mut self) {
        let Some(reboot) = self.reboot() else { return };
        if !self.policy.agent.persistent {
            // The session of a process that lives for one turn is opened by that turn.
            return self.replace_session(reboot);
        }
        let generation = self.state.generation.next();
        let session = reboot.to;
        self.record(LoopEvent::SessionOpening {
            session,
            generation,
        });
        self.wish(Effect::Open {
            generation,
            session,
        });
    }

    pub(super) fn news_in_reboot(&mut self, reboot: Reboot, news: News) {
        match news {
            News::Launched { pid } => {
                if matches!(reboot.stage, RebootStage::Opening { .. }) {
                    self.record(LoopEvent::AgentLaunched { pid });
                }
            }
            News::Opened => {
                if matches!(reboot.stage, RebootStage::Opening { .. }) {
                    self.replace_session(reboot);
                }
            }
            News::NotLaunched { reason } => {
                self.agent_exited(Exit::Unknown, Vec::new());
                self.process_gone(&reboot, &reason);
            }
            News::Exited {
                exit, leftovers, ..
            } => {
                self.agent_exited(exit, leftovers);
                self.process_gone(&reboot, &format!("it ended with {exit}"));
            }
            News::GuardLost => {
                self.agent_exited(Exit::Unknown, Vec::new());
                self.process_gone(&reboot, "the guard process was lost");
            }
            News::Resulted(end) => {
                if !matches!(reboot.stage, RebootStage::HandOff { .. }) || end.more {
                    return;
                }
                // What it cost is cost, whatever it was worth.
                self.record(LoopEvent::TurnResulted(TurnReport {
                    success: end.success,
                    reason: end.reason.clone(),
                    problem: None,
                    claimed: false,
                    pattern: None,
                    cost_microusd: end.cost_microusd,
                    tokens: end.tokens,
                    spent: None,
                }));
                if end.success && !end.text.trim().is_empty() {
                    let text = &end.text;
                    let kept = text.floor_char_boundary(WORDS_BYTES_MAX);
                    let text = text.get(..kept).unwrap_or_default().to_owned();
                    self.record(LoopEvent::HandOffWritten { text });
                } else {
                    self.no_hand_off(end.reason.as_deref().unwrap_or("it said nothing"));
                }
                self.hooks_before();
            }
            News::Measured { context, answering } => {
                if matches!(reboot.stage, RebootStage::HandOff { .. }) {
                    self.note_reading(context, answering);
                    if level(self.policy, &context) == Level::Hard {
                        self.give_up_hand_off("it worked on instead, up to the hard limit");
                    }
                }
            }
            News::CallEnded { tokens } => {
                if matches!(reboot.stage, RebootStage::HandOff { .. }) {
                    self.call_ended(tokens);
                }
            }
            News::Cost {
                conversation_microusd,
            } => {
                if matches!(reboot.stage, RebootStage::HandOff { .. }) {
                    self.cost_told(conversation_microusd);
                }
            }
            News::Quota(quota) => self.quota_told(quota),
            News::Named { .. }
            | News::Output
            | News::ToolStarted { .. }
            | News::ToolEnded { .. }
            | News::Denied { .. }
            | News::Looked { .. }
            | News::StreamEnded
            | News::Touched { .. } => {}
        }
    }

    /// The one process there is, old or new, is gone.
    fn process_gone(&mut self, reboot: &Reboot, how: &str) {
        match &reboot.stage {
            // What follows finds no process to close.
            RebootStage::Begun | RebootStage::Hooks { .. } | RebootStage::Keeping { .. } => {}
            RebootStage::HandOff { .. } => {
                self.no_hand_off(how);
                self.hooks_before();
            }
            RebootStage::Closing { failed: None, .. } => self.open_new(),
            RebootStage::Closing {
                failed: Some(error),
                ..
            } => self.reboot_failed(error, false),
            RebootStage::Opening { .. } => {
                self.reboot_failed(&format!("the fresh session cannot be opened: {how}"), false);
            }
        }
    }

    /// Goes on without the hand-off that is being written.
    fn give_up_hand_off(&mut self, why: &str) {
        self.no_hand_off(why);
        if let Some(agent) = self.state.agent {
            self.wish(Effect::Signal {
                generation: agent.generation,
                rung: Rung::Interrupt,
            });
        }
        self.hooks_before();
    }

    fn no_hand_off(&mut self, why: &str) {
        let warning = format!(
            "the old session wrote no hand-off ({why}); the next one gets what the loop itself knows"
        );
        self.record(LoopEvent::Warned { warning });
    }

    /// Acts on the deadline of the stage that the reboot is in.
    pub(super) fn reboot_overdue(&mut self, reboot: Reboot) {
        match reboot.stage {
            RebootStage::Begun => {}
            RebootStage::HandOff { .. } => {
                self.give_up_hand_off("it did not answer in time");
            }
            RebootStage::Hooks {
                point: HookPoint::BeforeReboot,
                ..
            } => self.reboot_failed("the hooks did not end in time", true),
            RebootStage::Hooks { .. } => {
                let warning = "the hooks after the reboot did not end in time".to_owned();
                self.record(LoopEvent::Warned { warning });
                self.reboot_completed(reboot);
            }
            RebootStage::Keeping { keep } => self.keep_overdue(keep),
            RebootStage::Closing { ladder, .. } => match ladder.rung {
                Rung::Interrupt => self.climb_in_reboot(Rung::Terminate),
                Rung::Terminate => self.climb_in_reboot(Rung::Kill),
                Rung::Kill => self.unkillable(self.state.agent.and_then(|agent| agent.pid)),
            },
            RebootStage::Opening { generation, .. } => {
                let until = self.now.after(self.policy.ladder.reap);
                let failed = Some("the fresh session did not answer in time".to_owned());
                self.record(LoopEvent::ClosingStarted { until, failed });
                self.wish(Effect::Signal {
                    generation,
                    rung: Rung::Kill,
                });
            }
        }
    }

    fn climb_in_reboot(&mut self, rung: Rung) {
        let Some(agent) = self.state.agent else {
            return;
        };
        let grace = match rung {
            Rung::Interrupt => self.policy.ladder.interrupt,
            Rung::Terminate => self.policy.ladder.terminate,
            Rung::Kill => self.policy.ladder.reap,
        };
        let until = self.now.after(grace);
        self.record(LoopEvent::RungClimbed { rung, until });
        self.wish(Effect::Signal {
            generation: agent.generation,
            rung,
        });
    }

    fn replace_session(&mut self, reboot: Reboot) {
        self.record(LoopEvent::SessionEnded {
            session: self.state.session.number,
            iterations: self.state.session.iterations,
            reason: reboot.reason.to_string(),
        });
        self.record(LoopEvent::SessionStarted {
            session: reboot.to,
            agent_id: None,
        });
        if !self.run_hooks(HookPoint::AfterReboot, self.policy.reboot.hooks_after) {
            self.reboot_completed(reboot);
        }
    }

    fn reboot_completed(&mut self, reboot: Reboot) {
        let Reboot {
            reason,
            started,
            to,
            then,
            stage: _,
        } = reboot;
        let duration_ms = millis(self.now.since(started));
        self.record(LoopEvent::RebootCompleted {
            reason,
            iteration: self.state.iteration,
            from: SessionNo(to.0.saturating_sub(1)),
            to,
            duration_ms,
        });
        self.proceed(then);
    }

    /// The old session goes on: a reboot that fails costs nothing but the time it took.
    fn reboot_failed(&mut self, error: &str, aborted: bool) {
        let Some(Reboot { reason, then, .. }) = self.reboot() else {
            return;
        };
        let iteration = self.state.iteration;
        self.record(LoopEvent::RebootFailed {
            reason,
            iteration,
            error: error.to_owned(),
            aborted,
        });
        let failures = self.state.reboots.failures;
        let max = self.policy.reboot.max_failures;
        if max > 0 && failures >= max && self.state.stop.is_none() {
            self.stop_by_itself(Stop::Unable {
                reason: format!(
                    "{failures} reboots failed in a row ([reboot] max_consecutive_failures = {max}); the last one: {error}"
                ),
            });
        }
        // Its cause may still hold; then the next one is pending until the failure has cooled down.
        self.settle(then);
    }

    fn reboot(&self) -> Option<Reboot> {
        self.state.rebooting().cloned()
    }
}
