//! Reboots: the old session writes its hand-off, hooks run, the old process ends, a new session opens, and hooks run.
//!
//! Only one process of the agent runs at a time, so that two agents never share a work tree. If the new session does not open, the
//! conversation of the old one can be resumed by its id.

use super::{HELD, PASSED, RebootStep, Stage, StageResult, Stepper};
use crate::policy::reboot;
use crate::reasons;
use crate::time::millis;
use crate::{
    AgentInput, Effect, Exit, HAND_OFF_BYTES_MAX, HandOff, HookPoint, HookResult, LoopEvent,
    Problem, Reboot, RebootReason, RebootStage, SessionNo, Stop, StopSignal, TurnEnd, Urgency,
    Wait,
};

/// Maximum number of requests for a hand-off if the process of the session dies.
const HAND_OFF_ATTEMPTS_MAX: u32 = 2;

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

    pub(super) fn reboot_hooks_ran(&mut self, point: HookPoint, results: Vec<HookResult>) {
        let Some(reboot) = self.state.rebooting().cloned() else {
            return;
        };
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
        let Some(reboot) = self.state.rebooting().cloned() else {
            return HELD;
        };
        if !self.policy.agent.persistent {
            return PASSED;
        }
        self.open_session(reboot.to, None)
    }

    /// Starts a process for a session. `resume` is the conversation that it continues; `None` for a new one.
    fn open_session(&mut self, session: SessionNo, resume: Option<String>) -> StageResult {
        let generation = self.state.generation.next();
        self.record(LoopEvent::SessionOpening {
            session,
            generation,
        });
        self.emit(Effect::OpenSession {
            generation,
            session,
            resume,
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
            // A part of the hand-off is stored before the turn has ended.
            AgentInput::HandOffText { text } => {
                if let RebootStage::HandOff { parts, .. } = &reboot.stage
                    && parts.iter().map(String::len).sum::<usize>() < HAND_OFF_BYTES_MAX
                {
                    let (text, partial) = (bounded(&text), true);
                    self.record(LoopEvent::HandOffWritten { text, partial });
                }
            }
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
            // A session that wrote no text is asked again, in its conversation.
            RebootStage::HandOff { parts, .. }
                if parts.is_empty() && reboot.asked < HAND_OFF_ATTEMPTS_MAX =>
            {
                self.advance_reboot(RebootStep::HandOff);
            }
            RebootStage::HandOff { .. } | RebootStage::Opening { old: true, .. } => {
                self.hand_off_over(None, how);
            }
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
                if let Some(agent) = self.state.agent {
                    self.emit(Effect::Signal {
                        generation: agent.generation,
                        signal: StopSignal::Interrupt,
                    });
                }
                self.hand_off_over(None, "it did not answer in time");
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
        let Some(reboot) = self.state.rebooting().cloned() else {
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
        }) = self.state.rebooting().cloned()
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
        let Some(Reboot { reason, then, .. }) = self.state.rebooting().cloned() else {
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

    /// Asks the old session for its hand-off, if it can answer.
    pub(super) fn ask_hand_off(&mut self) -> StageResult {
        let reboot = self.state.rebooting();
        let can_answer = reboot.is_some_and(|reboot| self.can_hand_off(&reboot.reason));
        let named = self.state.session.agent_id.clone();
        match (self.state.agent, named) {
            (Some(agent), _) if can_answer && agent.pid.is_some() => {
                self.request_hand_off();
                HELD
            }
            // The process has ended, but its conversation can be resumed.
            (None, Some(agent_id)) if can_answer && self.policy.agent.persistent => {
                self.open_session(self.state.session.number, Some(agent_id))
            }
            (Some(_) | None, _) => PASSED,
        }
    }

    fn request_hand_off(&mut self) {
        if let Some(agent) = self.state.agent {
            let until = self.now.after(self.policy.reboot.hand_off_timeout);
            self.record(LoopEvent::HandOffRequested { until });
            self.ask_cost();
            self.emit(Effect::AskHandOff {
                generation: agent.generation,
            });
        }
    }

    /// Returns whether the session can be asked for a hand-off that it has not written yet.
    fn can_hand_off(&self, reason: &RebootReason) -> bool {
        let (rules, session) = (&self.policy.reboot, &self.state.session);
        let wanted = rules.ask_hand_off && !rules.immediate;
        let broken = matches!(reason, RebootReason::ErrorRecovery { .. });
        // A reboot of the operator does not wait for the model's service.
        let unheard = *reason == RebootReason::Manual && self.state.limit_streak > 0;
        let refusal = self.policy.agent.refuses_before.unwrap_or_default();
        let room = session.spent.is_none()
            && session
                .context
                .is_none_or(|context| context.tokens < context.window.saturating_sub(refusal));
        let knows_something = session.iterations > 0 || self.state.work().is_some();
        let written = session.hand_off == HandOff::Written;
        wanted && room && knows_something && !written && !broken && !unheard
    }

    /// Returns whether the session writes its hand-off before the rate limits allow its reboot. Otherwise it would fill its context until
    /// a prompt no longer fits.
    pub(super) fn hands_off_early(&self, reason: &RebootReason) -> bool {
        let by_context = matches!(reason, RebootReason::Redline { .. } | RebootReason::Refused);
        let held_by_rate = self.state.reboots.failures == 0
            && self.policy.reboot.confirm.is_none()
            && !self.reboot_is_put_off();
        let asked = self.state.session.hand_off != HandOff::NotAsked;
        let up = self.state.agent.is_some_and(|agent| agent.pid.is_some());
        by_context && held_by_rate && !asked && up && self.can_hand_off(reason)
    }

    /// Postpones a reboot that the rate limits do not allow yet.
    pub(super) fn postpone_if_limited(&mut self) -> StageResult {
        let Some(Reboot { reason, then, .. }) = self.state.rebooting().cloned() else {
            return HELD;
        };
        let by_context = matches!(reason, RebootReason::Redline { .. } | RebootReason::Refused);
        let not_before = reboot::not_before(&self.policy.reboot, &self.state.reboots, self.now);
        let waits = by_context && self.state.reboots.failures == 0 && self.state.stop.is_none();
        match not_before.filter(|_| waits) {
            Some(_) => {
                self.request_reboot(reason, not_before);
                self.advance(Stage::IterationEndHooks, then);
                HELD
            }
            None => PASSED,
        }
    }

    /// Stores the hand-off after its turn. If the turn failed, the text so far is used.
    fn hand_off_over(&mut self, answer: Option<&str>, why: &str) {
        let parts = match self.state.rebooting().map(|reboot| &reboot.stage) {
            Some(RebootStage::HandOff { parts, .. }) => parts.clone(),
            Some(_) | None => Vec::new(),
        };
        let text = match answer {
            // A hook of the agent may have caused more text after the hand-off, so the longest text is used.
            Some(answer) => {
                let all = parts.iter().map(String::as_str).chain([answer]);
                all.max_by_key(|text| text.len())
                    .unwrap_or_default()
                    .to_owned()
            }
            None if parts.is_empty() => String::new(),
            None => format!(
                "(This hand-off was cut short: {why}.)\n\n{}",
                parts.join("\n\n")
            ),
        };
        if text.trim().is_empty() {
            let warning = format!(
                "the old session wrote no hand-off ({why}); the new session gets its last output and tool calls instead"
            );
            self.record(LoopEvent::Warned { warning });
        } else {
            let text = bounded(&text);
            let partial = false;
            self.record(LoopEvent::HandOffWritten { text, partial });
        }
        self.advance_reboot(RebootStep::RateLimits);
    }

    /// The turn for the hand-off ended by itself.
    fn hand_off_resulted(&mut self, reboot: Reboot, end: &TurnEnd) {
        // The cost of the turn counts, even without a hand-off.
        self.record(LoopEvent::TurnResulted(TurnEnd {
            claimed: false,
            pattern: None,
            ..end.as_recorded()
        }));
        let why = end.reason.as_deref().unwrap_or("it printed nothing");
        match &end.problem {
            Some(Problem::Limited { .. } | Problem::Unreachable) if self.state.stop.is_some() => {
                self.advance_reboot(RebootStep::HooksBefore);
            }
            // The model's service refused the request. It is repeated after a wait.
            Some(problem @ (Problem::Limited { .. } | Problem::Unreachable)) => {
                self.request_reboot(reboot.reason, None);
                let then = self.service_wait(problem, why);
                self.advance(Stage::IterationEndHooks, then);
            }
            Some(_) | None => self.hand_off_over(end.success.then_some(&end.text), why),
        }
    }
}

fn bounded(text: &str) -> String {
    let end = text.floor_char_boundary(HAND_OFF_BYTES_MAX);
    text.get(..end).unwrap_or_default().to_owned()
}
