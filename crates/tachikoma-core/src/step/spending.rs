//! Counts cost, tokens and the use of a subscription, and ends the loop when a budget is used up.

use super::Stepper;
use crate::policy::budget::{self, Budget, Spending};
use crate::policy::stop;
use crate::{
    Cause, ConversationUse, Effect, LoopEvent, Outcome, Phase, QuotaWindow, RebootStage, Stop,
    StopSignal, TurnSpending, Urgency,
};

impl Stepper<'_> {
    /// Counts the tokens of a model call, and asks the agent for the cost.
    pub(super) fn call_ended(&mut self, tokens: u64) {
        let budgets = &self.policy.budgets;
        if budgets.tokens == 0 && budgets.cost_microusd == 0 {
            return;
        }
        self.record(LoopEvent::CallEnded { tokens });
        self.ask_cost();
        self.check_budgets();
    }

    /// Asks the agent for the cost of its conversation, if the loop has a cost budget and the agent can answer.
    pub(super) fn ask_cost(&mut self) {
        let worth = self.policy.budgets.cost_microusd > 0 && self.policy.agent.tells_cost;
        if let Some(agent) = self.state.agent.filter(|_| worth) {
            let generation = agent.generation;
            self.emit(Effect::AskCost { generation });
        }
    }

    pub(super) fn cost_reported(&mut self, conversation_microusd: u64) {
        let accounting = &self.state.accounting;
        let known = accounting.conversation_microusd == conversation_microusd;
        if known && accounting.turn.before_microusd.is_some() {
            return;
        }
        self.record(LoopEvent::CostReported {
            conversation_microusd,
        });
        self.check_budgets();
    }

    /// Counts the usage of attempts that were cut, before the first call of the next attempt.
    pub(super) fn conversation_resumed(&mut self, told: ConversationUse) {
        let accounting = &self.state.accounting;
        let known = ConversationUse {
            microusd: accounting.conversation_microusd,
            tokens: accounting.conversation_tokens.unwrap_or(told.tokens),
        };
        let is_early = accounting.turn == TurnSpending::default();
        if is_early && (told.microusd > known.microusd || told.tokens > known.tokens) {
            self.record(LoopEvent::ConversationResumed(told));
            self.check_budgets();
        }
    }

    /// Records the usage of a subscription's window, in any phase.
    pub(super) fn quota_reported(&mut self, quota: QuotaWindow) {
        let accounting = &self.state.accounting;
        let known = accounting.window(&quota.window) == Some(&quota);
        if known || !accounting.knows_window(&quota.window) {
            return;
        }
        self.record(LoopEvent::QuotaReported(quota));
        self.check_budgets();
    }

    /// Records that the agent's final text matches a stop pattern. The loop ends after this iteration.
    pub(super) fn pattern_matched(&mut self, pattern: Option<String>) {
        if let Some(pattern) = pattern {
            self.record(LoopEvent::StopPatternMatched { pattern });
        }
    }

    /// Ends the turn if a budget is used up. Between turns the stop conditions are checked instead.
    pub(super) fn check_budgets(&mut self) {
        let spending = Spending::of(self.state, self.now);
        let gone = budget::verdict(&self.policy.budgets, &spending);
        let Some(gone) = gone.filter(|_| self.state.stop.is_none()) else {
            return;
        };
        match &self.state.phase {
            Phase::Working { work } => {
                // A turn that has reported its result is not interrupted.
                let over = work.result.is_some();
                // A tool call costs nothing and may finish. Answers of the model and sub-agents cost money, so they are interrupted,
                // unless only the time is used up.
                let free = !work.tools.is_empty()
                    && !work.tools.values().any(|tool| budget::spends(&tool.name));
                let urgency = match gone.budget {
                    Budget::Duration => Urgency::Graceful,
                    Budget::Cost | Budget::Tokens | Budget::Quota if free => Urgency::Graceful,
                    Budget::Cost | Budget::Tokens | Budget::Quota => Urgency::Now,
                };
                if self.stop_for_budget() && !over {
                    self.request_ending(Cause::Interrupt, urgency);
                }
            }
            Phase::Rebooting { reboot } => match reboot.stage {
                RebootStage::HandOff { .. } => self.end_reboot_for_budget(true),
                RebootStage::Begun
                | RebootStage::Hooks { .. }
                | RebootStage::Closing { .. }
                | RebootStage::Opening { .. } => self.end_reboot_for_budget(false),
                RebootStage::Autocommitting { .. } => {}
            },
            // A rollback finishes first. A check is repeated by the next run.
            Phase::Waiting { .. } if self.state.rolling_back().is_some() => {}
            Phase::Waiting { .. } | Phase::Checking { .. } => {
                if let Some(reason) = self.record_used_up_budget() {
                    self.finish(Outcome::Budget { reason });
                }
            }
            // Hooks are canceled, unless the loop is already ending.
            Phase::Hooking { hooking } => {
                if hooking.outcome.is_none()
                    && let Some(reason) = self.record_used_up_budget()
                {
                    self.stop_hooking(Stop::Budget { reason }, Urgency::Graceful);
                }
            }
            // A commit finishes first.
            Phase::Autocommitting { .. }
            | Phase::Idle
            | Phase::Paused { .. }
            | Phase::Ended { .. } => {}
        }
    }

    /// Requests a stop if a budget is used up, and returns whether one is. The stop is graceful, so that the changes are committed.
    fn stop_for_budget(&mut self) -> bool {
        let reason = self.record_used_up_budget();
        let is_gone = reason.is_some();
        if let Some(reason) = reason {
            self.request_stop(Stop::Budget { reason }, Urgency::Graceful);
        }
        is_gone
    }

    /// Ends the loop during a reboot. `answering` is whether the agent writes its hand-off and has to be interrupted.
    fn end_reboot_for_budget(&mut self, answering: bool) {
        let Some(reason) = self.record_used_up_budget() else {
            return;
        };
        if let Some(agent) = self.state.agent.filter(|_| answering) {
            self.emit(Effect::Signal {
                generation: agent.generation,
                signal: StopSignal::Interrupt,
            });
        }
        self.close(Outcome::Budget { reason });
    }

    /// Records which budget is used up, and returns the reason.
    fn record_used_up_budget(&mut self) -> Option<String> {
        let conditions = stop::conditions(self.policy, self.state, self.now);
        let gone = conditions.into_iter().find(|condition| {
            condition.met && matches!(condition.outcome, Outcome::Budget { .. })
        })?;
        let reason = gone.outcome.to_string();
        self.record(LoopEvent::StopConditionTriggered {
            condition: gone.name.to_owned(),
            reason: reason.clone(),
        });
        Some(reason)
    }

    /// Records the stop condition that ends the loop, unless a stop was requested.
    pub(super) fn record_stop_condition(&mut self, outcome: &Outcome) {
        let is_condition = matches!(outcome, Outcome::Condition { .. } | Outcome::Budget { .. });
        let met = stop::met(self.policy, self.state, self.now);
        if let Some(condition) = met.filter(|_| is_condition && self.state.stop.is_none()) {
            self.record(LoopEvent::StopConditionTriggered {
                condition: condition.name.to_owned(),
                reason: outcome.to_string(),
            });
        }
    }
}
