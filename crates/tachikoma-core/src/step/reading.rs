//! Reacts to a reading of the context: a warning to the agent, a reboot, or the check whether a reboot helped.

use super::Stepper;
use crate::policy::context::{
    Level, begins_near_token_redline, hard_limit_percent, level, redline_percent,
};
use crate::policy::reboot;
use crate::reasons;
use crate::{Cause, Context, Effect, LoopEvent, RebootReason, Stop, Timestamp, Urgency};

/// Number of futile reboots in a row that ends the loop, because another one would not help either.
const FUTILE_MAX: u32 = 2;

/// A new session gets a warning if it begins above this share of its redline.
const NEAR_REDLINE: f64 = 0.75;

/// Advice if the prompt and the hand-off alone fill the context.
pub(super) const TOO_LONG: &str = "the prompt and its hand-off alone fill the context; shorten the prompt, or lower handoff_max_bytes";

impl Stepper<'_> {
    pub(super) fn context_measured(&mut self, context: Context, answering: bool) {
        self.record_reading(context, answering);
        if self.state.session.unproven {
            let (percent, rules) = (context.percent(), &self.policy.reboot);
            let redline = redline_percent(self.policy, &self.state.session, context.window);
            let futile = (rules.manages_context() && percent >= redline).then(|| {
                format!(
                    "its first reading is {percent:.1} %, which is not below the redline of {redline:.1} %"
                )
            });
            self.reboot_verified(context.percent_rounded_down(), futile, TOO_LONG);
        }
        if self.state.stop.is_none() {
            self.ask_to_finish();
            match reboot::verdict_on_reading(self.policy, self.state) {
                reboot::Verdict::GoOn => {}
                reboot::Verdict::Reboot(reason) => {
                    self.request_reboot_when_allowed(reason.clone());
                    // A reboot that has to wait ends the iteration only if the session can write its hand-off now, or the context is full. The
                    // operator may refuse a reboot, so the running turn is not ended before the answer.
                    let waits = self.reboot_is_held() && !self.hands_off_early(&reason);
                    let asks = self.policy.reboot.confirm.is_some();
                    if !(waits || asks)
                        || level(self.policy, &self.state.session, &context) == Level::Hard
                    {
                        self.end_for_reboot();
                    }
                }
                reboot::Verdict::Exhausted { reason, max } => {
                    self.stop_unable(exhausted(&reason, max));
                }
            }
        }
        self.interrupt_at_boundary();
    }

    /// Records a reading that differs from the last one.
    pub(super) fn record_reading(&mut self, context: Context, answering: bool) {
        let before = self.state.session.context;
        let known = before == Some(context);
        if known
            && self
                .state
                .work()
                .is_none_or(|work| work.answering == answering)
        {
            return;
        }
        let first = before.is_none_or(|before| before.window != context.window);
        let managed = self.policy.reboot.manages_context();
        let mut session = self.state.session.clone();
        session.first_tokens = session
            .first_tokens
            .or(before.is_none().then_some(context.tokens));
        let redline = redline_percent(self.policy, &session, context.window);
        self.record(LoopEvent::ContextMeasured {
            context,
            answering,
            redline_tokens: (first && managed).then(|| context.tokens_at(redline)),
        });
        if before.is_none() && managed {
            self.warn_of_a_full_start(&context, redline);
        }
        let configured = self.policy.reboot.redline_percent;
        if first && managed && configured > hard_limit_percent(self.policy, context.window) {
            self.record(LoopEvent::Warned {
                warning: format!(
                    "context_redline_percent = {configured} is above the point at which the agent rejects \
                     prompts ({:.1} % of {} tokens): sessions are rebooted there; choose a smaller value",
                    hard_limit_percent(self.policy, context.window),
                    context.window
                ),
            });
        }
    }

    /// Warns if a session begins so near its redline that a reboot frees little.
    fn warn_of_a_full_start(&mut self, context: &Context, redline: f64) {
        let begins = format!(
            "session {} begins with {} tokens of context",
            self.state.session.number, context.tokens
        );
        let shorten = "shorten the prompt, the hand-off (reboot.handoff_max_bytes) or what the agent loads by itself";
        let tokens = self.policy.reboot.redline_tokens;
        let comes_first = Context { tokens, ..*context }.percent() < redline;
        let near = begins_near_token_redline(self.policy, &self.state.session);
        let warning = if near && comes_first {
            format!(
                "{begins}, near reboot.context_redline_tokens = {tokens}: that redline does not apply to this session, the one \
                 at {redline:.1} % does; raise it, or {shorten}"
            )
        } else if self.state.session.unproven
            && context.percent() >= redline * NEAR_REDLINE
            && context.percent() < redline
        {
            format!(
                "{begins}, near its redline at {redline:.1} %: it will be rebooted soon; {shorten}"
            )
        } else {
            return;
        };
        self.record(LoopEvent::Warned { warning });
    }

    /// Asks the agent once per session to finish, because its context fills up. Only while a tool runs, so that the agent reads the
    /// message in this turn.
    pub(super) fn ask_to_finish(&mut self) {
        let Some(context) = self.state.session.context else {
            return;
        };
        let steerable = self.policy.agent.steerable && !self.state.session.advised;
        let in_a_tool = self.state.work().is_some_and(|work| {
            !work.tools.is_empty() && work.ending.is_none() && work.result.is_none()
        });
        if !steerable
            || !in_a_tool
            || level(self.policy, &self.state.session, &context) != Level::Warning
        {
            return;
        }
        if let Some(agent) = self.state.agent {
            let percent = context.percent_rounded_down();
            self.add_reason(reasons::wrap_up(self.policy, &context));
            self.record(LoopEvent::WrapUpAdvised { percent });
            self.emit(Effect::Advise {
                generation: agent.generation,
                percent,
            });
        }
    }

    /// Requests a reboot for as soon as the rate limits allow it.
    pub(super) fn request_reboot_when_allowed(&mut self, reason: RebootReason) {
        if self.state.reboot_pending.is_none() {
            let not_before = reboot::not_before(&self.policy.reboot, &self.state.reboots, self.now);
            self.request_reboot(reason, not_before);
        }
    }

    /// Records that a reboot is due, and when the rate limits allow it.
    pub(super) fn request_reboot(&mut self, reason: RebootReason, not_before: Option<Timestamp>) {
        let (policy, state, now) = (self.policy, &*self.state, self.now);
        let why = reasons::reboot_wanted(policy, state, &reason, not_before, now);
        self.add_reason(why);
        self.record(LoopEvent::RebootRequested { reason, not_before });
    }

    /// Applies the rate limits to a pending reboot again, because the settings may have changed.
    pub(super) fn reapply_rate_limits(&mut self) {
        let Some(reason) = self.state.reboot_pending.clone() else {
            return;
        };
        let Some(before) = self.state.reboot_not_before else {
            return;
        };
        let not_before = reboot::not_before(&self.policy.reboot, &self.state.reboots, self.now);
        if not_before != Some(before) {
            self.request_reboot(reason, not_before);
        }
    }

    /// Returns whether the rate limits or the operator postpone the pending reboot.
    pub(super) fn reboot_is_held(&self) -> bool {
        let wanted = self.state.reboot_pending.is_some();
        let early = self.state.reboot_not_before;
        let early = early.is_some_and(|moment| moment > self.now);
        wanted && (early || self.reboot_is_put_off())
    }

    pub(super) fn end_for_reboot(&mut self) {
        let urgency = if self.policy.reboot.immediate {
            Urgency::Now
        } else {
            Urgency::Graceful
        };
        let wanted = self.state.work().and_then(|work| work.ending);
        if wanted.is_none() {
            self.request_ending(Cause::HandOver, urgency);
        }
    }

    /// The agent reported its id of the conversation.
    pub(super) fn session_named(&mut self, agent_id: String) {
        if self.state.session.agent_id.as_ref() == Some(&agent_id) {
            return;
        }
        let before = self
            .state
            .history
            .last()
            .and_then(|past| past.agent_id.clone());
        let same = self.state.session.unproven && before.as_ref() == Some(&agent_id);
        self.record(LoopEvent::SessionNamed { agent_id });
        if same {
            let advice = "check whether an argument of the agent names a conversation";
            self.reboot_verified(
                0,
                Some("the agent continued the same conversation".to_owned()),
                advice,
            );
        }
    }

    /// Records whether a reboot helped. Too many futile reboots in a row end the loop with the advice.
    pub(super) fn reboot_verified(&mut self, percent: u8, futile: Option<String>, advice: &str) {
        self.record(LoopEvent::RebootVerified { percent, futile });
        let futile = self.state.reboots.futile;
        if futile >= FUTILE_MAX && self.state.stop.is_none() {
            let last = match self.state.reboots.history.last().map(|entry| &entry.result) {
                Some(crate::RebootResult::Futile { reason }) => format!(" ({reason})"),
                Some(_) | None => String::new(),
            };
            self.stop_unable(Stop::Unable {
                reason: format!("{futile} reboots in a row changed nothing{last}: {advice}"),
            });
        }
    }

    fn stop_unable(&mut self, stop: Stop) {
        self.request_stop(stop, Urgency::Graceful);
        self.request_ending(Cause::Interrupt, Urgency::Graceful);
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
