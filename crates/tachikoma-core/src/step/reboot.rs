//! Reboots: the old session writes its hand-off, hooks run, the old process ends, a new session opens, and hooks run.
//!
//! Only one process of the agent runs at a time, so that two agents never share a work tree. If the new session does not open, the
//! conversation of the old one can be resumed by its id.

use std::time::Duration;

use super::Stepper;
use super::order::{HELD, PASSED, RebootStep, Stage, StageResult};
use crate::reasons;
use crate::time::millis;
use crate::{
    AgentInput, Effect, Exit, HookPoint, HookResult, HooksStart, LoopEvent, Reboot, RebootReason,
    RebootStage, SessionNo, Stop, StopSignal, Urgency, Wait,
};

impl Stepper<'_> {
    pub(super) fn begin_reboot(&mut self, reason: RebootReason, then: Option<Wait>) {
        let from = self.state.session.number;
        let iteration = self.state.iteration;
        let why = reasons::reboot(self.policy, self.state, &reason);
        self.add_reason(format!("session {from} is rebooted: {why}"));
        self.record(LoopEvent::RebootStarted {
            reason,
            iteration,
            from,
            then,
        });
        self.advance_reboot(RebootStep::HandOff);
    }

    /// Resumes a reboot after the death of a runner. The reboot is complete if its new session was recorded.
    pub(super) fn resume_reboot(&mut self, reboot: Reboot) {
        if self.state.session.number == reboot.to {
            self.advance_reboot(RebootStep::Complete);
        } else {
            self.begin_reboot(reboot.reason, reboot.then);
        }
    }

    pub(super) fn run_hooks_before_reboot(&mut self) -> StageResult {
        self.run_hooks(HookPoint::BeforeReboot, self.policy.reboot.hooks_before)
    }

    pub(super) fn run_hooks_after_reboot(&mut self) -> StageResult {
        self.run_hooks(HookPoint::AfterReboot, self.policy.reboot.hooks_after)
    }

    /// Starts the hooks of one point, if there are any.
    fn run_hooks(&mut self, point: HookPoint, limit: Option<Duration>) -> StageResult {
        let (Some(limit), Some(reboot)) = (limit, self.reboot()) else {
            return PASSED;
        };
        let until = self.now.after(limit);
        self.record(LoopEvent::HooksStarted(HooksStart {
            point,
            until,
            then: None,
            outcome: None,
        }));
        self.emit(Effect::RunHooks {
            point,
            reason: Some(reboot.reason),
        });
        HELD
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
        let stop = self.take_results(point, results, false);
        if let Some(stop) = stop {
            self.request_stop(stop, Urgency::Graceful);
        }
        match point == HookPoint::BeforeReboot {
            true => match (failed.into_iter().next(), &self.state.stop) {
                (Some(error), _) => self.reboot_failed(&error, true),
                (None, Some(_)) => self.reboot_failed("the loop is stopping", true),
                (None, None) => self.advance_reboot(RebootStep::CloseOld),
            },
            false => {
                for error in failed {
                    let warning = format!("{error}; the reboot is not undone");
                    self.record(LoopEvent::Warned { warning });
                }
                self.advance_reboot(RebootStep::Complete);
            }
        }
    }

    /// Asks the process of the old session to end, if there is one.
    pub(super) fn close_old_session(&mut self) -> StageResult {
        let Some(agent) = self.state.agent else {
            return PASSED;
        };
        let until = self.now.after(self.policy.stop_timeouts.interrupt);
        self.record(LoopEvent::ClosingStarted {
            until,
            failed: None,
        });
        self.emit(Effect::Close {
            generation: agent.generation,
        });
        HELD
    }

    pub(super) fn open_new_session(&mut self) -> StageResult {
        let Some(reboot) = self.reboot() else {
            return HELD;
        };
        if !self.policy.agent.persistent {
            return PASSED;
        }
        let generation = self.state.generation.next();
        let session = reboot.to;
        self.record(LoopEvent::SessionOpening {
            session,
            generation,
        });
        self.emit(Effect::OpenSession {
            generation,
            session,
            resume: None,
        });
        HELD
    }

    pub(super) fn agent_input_in_reboot(&mut self, reboot: Reboot, event: AgentInput) {
        match event {
            AgentInput::Launched { pid } => {
                if matches!(reboot.stage, RebootStage::Opening { .. }) {
                    self.record(LoopEvent::AgentLaunched { pid });
                }
            }
            AgentInput::Opened => match reboot.stage {
                RebootStage::Opening { old: true, .. } => self.request_hand_off(),
                RebootStage::Opening { old: false, .. } => self.advance_reboot(RebootStep::Replace),
                RebootStage::Begun
                | RebootStage::HandOff { .. }
                | RebootStage::Hooks { .. }
                | RebootStage::Autocommitting { .. }
                | RebootStage::Closing { .. } => {}
            },
            AgentInput::HandOffText { text } => self.hand_off_part(&reboot, &text),
            AgentInput::NotLaunched { reason } => {
                self.agent_exited(Exit::Unknown, Vec::new());
                self.process_gone(&reboot, &reason);
            }
            AgentInput::Exited {
                exit, leftovers, ..
            } => {
                self.agent_exited(exit, leftovers);
                self.process_gone(&reboot, &format!("it ended with {exit}"));
            }
            AgentInput::GuardLost => {
                self.agent_exited(Exit::Unknown, Vec::new());
                self.process_gone(&reboot, "the guard process was lost");
            }
            AgentInput::TurnEnded(end) => match reboot.stage {
                RebootStage::HandOff { .. } if end.more => {}
                RebootStage::HandOff { .. } => self.hand_off_resulted(reboot, &end),
                // The turn of a canceled hand-off still costs money.
                RebootStage::Begun
                | RebootStage::Hooks { .. }
                | RebootStage::Autocommitting { .. }
                | RebootStage::Closing { .. }
                | RebootStage::Opening { .. } => self.turn_ended_without_prompt(&end),
            },
            AgentInput::ContextMeasured { context, answering } => {
                if matches!(reboot.stage, RebootStage::HandOff { .. }) {
                    // The hand-off continues above the hard limit. Its timeout ends it.
                    self.record_reading(context, answering);
                }
            }
            AgentInput::CallEnded { tokens } => {
                if matches!(reboot.stage, RebootStage::HandOff { .. }) {
                    self.call_ended(tokens);
                }
            }
            AgentInput::Cost {
                conversation_microusd,
            } => {
                if matches!(reboot.stage, RebootStage::HandOff { .. }) {
                    self.cost_reported(conversation_microusd);
                }
            }
            AgentInput::Quota(quota) => self.quota_reported(quota),
            AgentInput::ConversationResumed(_)
            | AgentInput::SessionNamed { .. }
            | AgentInput::Output
            | AgentInput::ToolStarted { .. }
            | AgentInput::ToolEnded { .. }
            | AgentInput::ToolDenied { .. }
            | AgentInput::ProcessesSampled { .. }
            | AgentInput::StreamEnded
            | AgentInput::FileTouched { .. } => {}
        }
    }

    /// Handles the end of the agent's process during the reboot.
    fn process_gone(&mut self, reboot: &Reboot, how: &str) {
        match &reboot.stage {
            // The next step finds no process to close.
            RebootStage::Begun | RebootStage::Hooks { .. } | RebootStage::Autocommitting { .. } => {
            }
            RebootStage::HandOff { said, .. } => self.hand_off_lost(reboot, said, how),
            RebootStage::Opening { old: true, .. } => self.hand_off_over(None, how),
            RebootStage::Closing { failed: None, .. } => self.advance_reboot(RebootStep::Commit),
            RebootStage::Closing {
                failed: Some(error),
                ..
            } => self.reboot_failed(error, false),
            RebootStage::Opening { old: false, .. } => {
                self.reboot_failed(
                    &format!("the new session could not be opened: {how}"),
                    false,
                );
            }
        }
    }

    /// Handles the passed deadline of the current stage of the reboot.
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
                self.advance_reboot(RebootStep::Complete);
            }
            RebootStage::Autocommitting { autocommit } => self.autocommit_overdue(autocommit),
            RebootStage::Closing { escalation, .. } => self.closing_overdue(escalation),
            RebootStage::Opening { old: true, .. } => {
                self.hand_off_over(None, "its conversation could not be resumed in time");
            }
            RebootStage::Opening { generation, .. } => {
                let until = self.now.after(self.policy.stop_timeouts.reap);
                let failed = Some("the new session did not answer in time".to_owned());
                self.record(LoopEvent::ClosingStarted { until, failed });
                self.emit(Effect::Signal {
                    generation,
                    signal: StopSignal::Kill,
                });
            }
        }
    }

    /// Sends a signal to an agent that is being closed between two turns.
    pub(super) fn signal_closing(&mut self, signal: StopSignal) {
        let Some(agent) = self.state.agent else {
            return;
        };
        let grace = match signal {
            StopSignal::Interrupt => self.policy.stop_timeouts.interrupt,
            StopSignal::Terminate => self.policy.stop_timeouts.terminate,
            StopSignal::Kill => self.policy.stop_timeouts.reap,
        };
        let until = self.now.after(grace);
        self.record(LoopEvent::AgentSignaled { signal, until });
        self.emit(Effect::Signal {
            generation: agent.generation,
            signal,
        });
    }

    pub(super) fn replace_session(&mut self) -> StageResult {
        let Some(reboot) = self.reboot() else {
            return HELD;
        };
        self.record(LoopEvent::SessionEnded {
            session: self.state.session.number,
            iterations: self.state.session.iterations,
            reason: reboot.reason.to_string(),
        });
        self.record(LoopEvent::SessionStarted {
            session: reboot.to,
            agent_id: None,
        });
        PASSED
    }

    pub(super) fn complete_reboot(&mut self) {
        let Some(Reboot {
            reason,
            started,
            to,
            then,
            ..
        }) = self.reboot()
        else {
            return;
        };
        let duration_ms = millis(self.now.since(started));
        self.record(LoopEvent::RebootCompleted {
            reason,
            iteration: self.state.iteration,
            from: SessionNo(to.0.saturating_sub(1)),
            to,
            duration_ms,
        });
        self.advance(Stage::IterationEndHooks, then);
    }

    /// Records that the reboot failed. The old session continues.
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
        if max > 0 && failures >= max {
            let reason = format!(
                "{failures} reboots failed in a row ([reboot] max_consecutive_failures = {max}); the last one: {error}"
            );
            self.request_stop(Stop::Unable { reason }, Urgency::Graceful);
        }
        // If the reason for the reboot still applies, the next reboot waits for the cooldown.
        self.advance(Stage::Settle, then);
    }

    pub(super) fn reboot(&self) -> Option<Reboot> {
        self.state.rebooting().cloned()
    }
}
