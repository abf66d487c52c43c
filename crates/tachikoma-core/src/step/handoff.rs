//! The hand-off of the old session: when it is requested, and how its text is stored.

use super::Stepper;
use super::order::{HELD, PASSED, RebootStep, Stage, StageResult};
use crate::policy::rate;
use crate::{
    Effect, HandOff, LoopEvent, Problem, Reboot, RebootReason, RebootStage, StopSignal, TurnEnd,
};

/// Maximum size in bytes of the text that the session writes. Notes, files and failures also have to fit into the hand-off.
const WORDS_BYTES_MAX: usize = 16 << 10;

/// Maximum number of requests for a hand-off if the process of the session dies.
const HAND_OFF_ATTEMPTS_MAX: u32 = 2;

impl Stepper<'_> {
    /// Asks the old session for its hand-off, if it can answer.
    pub(super) fn ask_hand_off(&mut self) -> StageResult {
        let can_answer = self
            .reboot()
            .is_some_and(|reboot| self.can_hand_off(&reboot.reason));
        let named = self.state.session.agent_id.clone();
        match (self.state.agent, named) {
            (Some(agent), _) if can_answer && agent.pid.is_some() => {
                self.request_hand_off();
                HELD
            }
            // The process has ended, but its conversation can be resumed.
            (None, Some(agent_id)) if can_answer && self.policy.agent.persistent => {
                let generation = self.state.generation.next();
                let session = self.state.session.number;
                self.record(LoopEvent::SessionOpening {
                    session,
                    generation,
                });
                self.emit(Effect::OpenSession {
                    generation,
                    session,
                    resume: Some(agent_id),
                });
                HELD
            }
            (Some(_) | None, _) => PASSED,
        }
    }

    pub(super) fn request_hand_off(&mut self) {
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
    pub(super) fn can_hand_off(&self, reason: &RebootReason) -> bool {
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
        let knows_something = session.iterations > 0 || self.work().is_some();
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
        let Some(Reboot { reason, then, .. }) = self.reboot() else {
            return HELD;
        };
        let by_context = matches!(reason, RebootReason::Redline { .. } | RebootReason::Refused);
        let not_before = rate::not_before(&self.policy.reboot, &self.state.reboots, self.now);
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
    pub(super) fn hand_off_over(&mut self, answer: Option<&str>, why: &str) {
        let said = match self.reboot().map(|reboot| reboot.stage) {
            Some(RebootStage::HandOff { said, .. }) => said,
            Some(_) | None => Vec::new(),
        };
        let text = match answer {
            // A hook of the agent may have caused more text after the hand-off, so the longest text is used.
            Some(answer) => {
                let all = said.iter().map(String::as_str).chain([answer]);
                all.max_by_key(|text| text.len())
                    .unwrap_or_default()
                    .to_owned()
            }
            None if said.is_empty() => String::new(),
            None => format!(
                "(This hand-off was cut short: {why}.)\n\n{}",
                said.join("\n\n")
            ),
        };
        if text.trim().is_empty() {
            self.no_hand_off(why);
        } else {
            let text = bounded(&text);
            let partial = false;
            self.record(LoopEvent::HandOffWritten { text, partial });
        }
        self.advance_reboot(RebootStep::RateLimits);
    }

    /// The model's service refused the request for the hand-off. It is repeated after a wait.
    fn hand_off_limited(&mut self, reboot: Reboot, problem: &Problem, words: &str) {
        if self.state.stop.is_some() {
            return self.advance_reboot(RebootStep::HooksBefore);
        }
        self.request_reboot(reboot.reason, None);
        let then = self.service_wait(problem, words);
        self.advance(Stage::IterationEndHooks, then);
    }

    /// Stores a part of the hand-off before the turn has ended.
    pub(super) fn hand_off_part(&mut self, reboot: &Reboot, text: &str) {
        if let RebootStage::HandOff { said, .. } = &reboot.stage
            && said.iter().map(String::len).sum::<usize>() < WORDS_BYTES_MAX
        {
            let text = bounded(text);
            let partial = true;
            self.record(LoopEvent::HandOffWritten { text, partial });
        }
    }

    /// The turn for the hand-off ended by itself.
    pub(super) fn hand_off_resulted(&mut self, reboot: Reboot, end: &TurnEnd) {
        // The cost of the turn counts, even without a hand-off.
        self.record(LoopEvent::TurnResulted(TurnEnd {
            claimed: false,
            pattern: None,
            ..end.as_recorded()
        }));
        let why = end.reason.as_deref().unwrap_or("it printed nothing");
        match &end.problem {
            Some(problem @ (Problem::Limited { .. } | Problem::Unreachable)) => {
                self.hand_off_limited(reboot, problem, why);
            }
            Some(_) | None => self.hand_off_over(end.success.then_some(&end.text), why),
        }
    }

    /// The process ended during the hand-off. A session that wrote no text is asked again, in its conversation.
    pub(super) fn hand_off_lost(&mut self, reboot: &Reboot, said: &[String], how: &str) {
        if said.is_empty() && reboot.asked < HAND_OFF_ATTEMPTS_MAX {
            self.advance_reboot(RebootStep::HandOff);
        } else {
            self.hand_off_over(None, how);
        }
    }

    /// Cancels the hand-off, and continues the reboot.
    pub(super) fn give_up_hand_off(&mut self, why: &str) {
        if let Some(agent) = self.state.agent {
            self.emit(Effect::Signal {
                generation: agent.generation,
                signal: StopSignal::Interrupt,
            });
        }
        self.hand_off_over(None, why);
    }

    fn no_hand_off(&mut self, why: &str) {
        let warning = format!(
            "the old session wrote no hand-off ({why}); the new session gets its last output and tool calls instead"
        );
        self.record(LoopEvent::Warned { warning });
    }
}

fn bounded(text: &str) -> String {
    let kept = text.floor_char_boundary(WORDS_BYTES_MAX);
    text.get(..kept).unwrap_or_default().to_owned()
}
