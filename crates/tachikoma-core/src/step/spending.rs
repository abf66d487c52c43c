//! Counts cost, tokens and the use of a subscription, and ends the loop when a budget is used up.

use super::Stepper;
use crate::policy::budget::{self, Budget, Spending};
use crate::policy::stop;
use crate::{
    Cause, ConversationUse, Effect, LoopEvent, Outcome, Phase, QuotaWindow, RebootStage, Stop,
    StopSignal, TurnSpending, Urgency,
};

impl Stepper<'_> {
    /// A call of the model is over: its tokens count, and its cost is asked for.
    pub(super) fn call_ended(&mut self, tokens: u64) {
        let budgets = &self.policy.budgets;
        if budgets.tokens == 0 && budgets.cost_microusd == 0 {
            return;
        }
        self.record(LoopEvent::CallEnded { tokens });
        self.ask_cost();
        self.check_budgets();
    }

    /// Asks what the conversation has cost, where that is worth knowing and can be said.
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

    /// Counts what attempts used that were cut, before the first call of the next one.
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

    /// Records the use of a subscription's window, in any phase: the window belongs to the user, not to the turn.
    pub(super) fn quota_reported(&mut self, quota: QuotaWindow) {
        let accounting = &self.state.accounting;
        let known = accounting.window(&quota.window) == Some(&quota);
        if known || !accounting.knows_window(&quota.window) {
            return;
        }
        self.record(LoopEvent::QuotaReported(quota));
        self.check_budgets();
    }

    /// The agent's final words match a pattern that ends the loop, after this iteration.
    pub(super) fn pattern_matched(&mut self, pattern: Option<String>) {
        if let Some(pattern) = pattern {
            self.record(LoopEvent::StopPatternMatched { pattern });
        }
    }

    /// Ends the turn under way if a budget is used up. Between turns it is looked at before anything is begun.
    pub(super) fn check_budgets(&mut self) {
        let spending = Spending::of(self.state, self.now);
        let gone = budget::verdict(&self.policy.budgets, &spending);
        let Some(gone) = gone.filter(|_| self.state.stop.is_none()) else {
            return;
        };
        match &self.state.phase {
            Phase::Working { work } => {
                // One that is over is judged as it ended.
                let over = work.result.is_some();
                // A tool costs nothing, an answer does, and so do the agents below this one: these are not waited for, unless it is
                // time that is over.
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
            // A claim that is being checked stays owed, and the next run judges it.
            // Neither is left in the middle.
            Phase::Waiting { .. } if self.state.rolling_back().is_some() => {}
            Phase::Waiting { .. } | Phase::Checking { .. } => {
                if let Some(reason) = self.trigger() {
                    self.finish(Outcome::Budget { reason });
                }
            }
            // The same holds for what hooks frame.
            Phase::Hooking { hooking } => {
                if hooking.outcome.is_none()
                    && let Some(reason) = self.trigger()
                {
                    self.stop_hooking(Stop::Budget { reason }, Urgency::Graceful);
                }
            }
            // Work that is being kept is seen through.
            Phase::Autocommitting { .. }
            | Phase::Idle
            | Phase::Paused { .. }
            | Phase::Ended { .. } => {}
        }
    }

    /// Wants the end of the loop because a budget is used up, if one is. However urgent the end of the turn is, what was done is
    /// kept.
    fn stop_for_budget(&mut self) -> bool {
        let reason = self.trigger();
        let is_gone = reason.is_some();
        if let Some(reason) = reason {
            self.request_stop(Stop::Budget { reason }, Urgency::Graceful);
        }
        is_gone
    }

    /// Ends the loop in a reboot. `answering` says that the agent writes its hand-off and has to be interrupted.
    fn end_reboot_for_budget(&mut self, answering: bool) {
        let Some(reason) = self.trigger() else { return };
        if let Some(agent) = self.state.agent.filter(|_| answering) {
            self.emit(Effect::Signal {
                generation: agent.generation,
                signal: StopSignal::Interrupt,
            });
        }
        self.close(Outcome::Budget { reason });
    }

    /// Records which budget is used up, and returns how.
    fn trigger(&mut self) -> Option<String> {
        let conditions = stop::conditions(self.policy, self.state, self.now);
        let gone = conditions.into_iter().find_map(|condition| {
            let met = condition.met;
            match condition.outcome {
                Outcome::Budget { reason } if met => Some((condition.name, reason)),
                Outcome::Budget { .. }
                | Outcome::Done
                | Outcome::LimitReached { .. }
                | Outcome::Condition { .. }
                | Outcome::Operator
                | Outcome::Signal { .. }
                | Outcome::Error { .. } => None,
            }
        });
        let (name, reason) = gone?;
        self.record(LoopEvent::StopConditionTriggered {
            condition: name.to_owned(),
            reason: reason.clone(),
        });
        Some(reason)
    }

    /// Records the condition that ends the loop between two turns, if one does and it is not known yet.
    pub(super) fn name_condition(&mut self, outcome: &Outcome) {
        let reason = match outcome {
            Outcome::Condition { reason } | Outcome::Budget { reason } => reason.clone(),
            Outcome::Done
            | Outcome::LimitReached { .. }
            | Outcome::Operator
            | Outcome::Signal { .. }
            | Outcome::Error { .. } => return,
        };
        let met = stop::met(self.policy, self.state, self.now);
        if let Some(condition) = met.filter(|_| self.state.stop.is_none()) {
            let condition = condition.name.to_owned();
            self.record(LoopEvent::StopConditionTriggered { condition, reason });
        }
    }
}
