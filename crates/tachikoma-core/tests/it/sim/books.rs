//! Independent check of budgets: adds up cost, tokens and time from the records, and checks that used-up budgets end the loop.

use std::collections::BTreeMap;
use std::time::Duration;

use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::{
    Autocommit, Choice, HooksStart, LoopEvent, OperatorEvent, Timestamp, TurnEnd, WaitReason,
};

#[derive(Default)]
pub struct Books {
    /// Cost of the earlier turns, in millionths of a dollar.
    cost: u64,
    tokens: u64,
    /// Cost of the current turn as far as it is reported, in millionths of a dollar.
    turn_cost: u64,
    turn_tokens: u64,
    begun_at: Option<u64>,
    conversation: u64,
    quota: BTreeMap<String, (f64, Option<Timestamp>)>,
    subscribed: bool,
    /// Minimum running time of the loop, without pauses and waits for limits.
    ran: Duration,
    last: Timestamp,
    live: bool,
    paused: bool,
    /// Whether the loop was resumed. The pause ends with the next record after that, which a crash may have lost.
    resumed: bool,
    /// Whether the loop waits for the operator, a usage limit or an outage. That time does not count.
    asking: bool,
    /// Whether a budget is used up and the loop has not reacted yet.
    owed: bool,
}

impl Books {
    pub fn cost(&self) -> u64 {
        self.cost + self.turn_cost
    }

    pub fn tokens(&self) -> u64 {
        self.tokens + self.turn_tokens
    }

    pub fn on_subscription(&self) -> bool {
        self.subscribed
    }

    pub fn is_gone(&self, budgets: &Budgets, now: Timestamp) -> bool {
        let full = |(percent, resets): &(f64, Option<Timestamp>)| {
            *percent >= budgets.quota_percent && resets.is_none_or(|moment| moment > now)
        };
        (budgets.cost_microusd > 0 && self.cost() >= budgets.cost_microusd)
            || (budgets.tokens > 0 && self.tokens() >= budgets.tokens)
            || (!budgets.duration.is_zero() && self.ran >= budgets.duration)
            || (budgets.quota_percent > 0.0 && self.quota.values().any(full))
    }

    /// Takes one record. `stopping` is whether the loop is already stopping.
    pub fn take(&mut self, budgets: &Budgets, event: &LoopEvent, now: Timestamp, stopping: bool) {
        // The last commit and the end hooks are part of the end of the loop.
        let ends = matches!(
            event,
            LoopEvent::HooksStarted(HooksStart {
                outcome: Some(_),
                ..
            }) | LoopEvent::AutocommitStarted(Autocommit {
                outcome: Some(_),
                ..
            })
        );
        self.owed &= !ends;
        if self.owed {
            let answered = matches!(
                event,
                LoopEvent::StopConditionTriggered { .. }
                    | LoopEvent::StopRequested { .. }
                    | LoopEvent::Stopped { .. }
                    | LoopEvent::Started { .. }
                    | LoopEvent::Warned { .. }
                    | LoopEvent::SegmentOpened { .. }
            );
            assert!(answered, "a used-up budget ends the turn, not {event:?}");
        }
        self.pass(event, now);
        let spent = match event {
            LoopEvent::SessionStarted { .. } => {
                self.close(0, 0);
                self.conversation = 0;
                false
            }
            LoopEvent::IterationStarted { .. } => {
                self.close(0, 0);
                assert!(
                    !self.is_gone(budgets, now),
                    "no prompt is sent after a budget is used up"
                );
                false
            }
            LoopEvent::HandOffRequested { .. } => {
                self.close(0, 0);
                false
            }
            LoopEvent::TurnResulted(TurnEnd {
                cost_microusd,
                tokens,
                ..
            }) => {
                self.close(*cost_microusd, *tokens);
                false
            }
            LoopEvent::WorkedOutside {
                tool,
                cost_microusd,
                tokens,
            } => {
                if tool.is_empty() {
                    self.close(*cost_microusd, *tokens);
                }
                true
            }
            LoopEvent::CallEnded { tokens } => {
                self.turn_tokens += tokens;
                true
            }
            LoopEvent::CostReported {
                conversation_microusd: total,
            } => {
                let known = self.conversation.min(*total);
                let first = if self.turn_tokens == 0 { *total } else { known };
                let begun_at = *self.begun_at.get_or_insert(first);
                self.turn_cost = self.turn_cost.max(total.saturating_sub(begun_at));
                self.conversation = *total;
                true
            }
            LoopEvent::QuotaReported(quota) => {
                let told = (quota.percent, quota.resets_at);
                self.quota.insert(quota.window.clone(), told);
                self.subscribed = true;
                false
            }
            // A stop, or a new start, settles the used-up budget.
            LoopEvent::StopRequested { .. } | LoopEvent::Stopped { .. } => {
                self.owed = false;
                false
            }
            LoopEvent::Started { .. } => {
                self.owed = false;
                self.quota.retain(|_, (_, resets)| resets.is_some());
                false
            }
            // Simulated agents never report the usage of a resumed conversation.
            _ => false,
        };
        self.owed |= spent && !stopping && self.is_gone(budgets, now);
    }

    /// Ends the turn. Its own totals replace the reported ones if it has any.
    fn close(&mut self, cost: u64, tokens: u64) {
        let begun_at = self.begun_at.unwrap_or(self.conversation);
        self.conversation = self.conversation.max(begun_at + cost);
        self.turn_cost = self.turn_cost.max(cost);
        self.turn_tokens = self.turn_tokens.max(tokens);
        self.cost += std::mem::take(&mut self.turn_cost);
        self.tokens += std::mem::take(&mut self.turn_tokens);
        self.begun_at = None;
    }

    fn pass(&mut self, event: &LoopEvent, now: Timestamp) {
        let silent = matches!(
            event,
            LoopEvent::Warned { .. }
                | LoopEvent::SegmentOpened { .. }
                | LoopEvent::DiskWasFull { .. }
                | LoopEvent::Incident(_)
                | LoopEvent::Repaired { .. }
                | LoopEvent::Started { .. }
                | LoopEvent::AttemptCut { .. }
                | LoopEvent::Noted { .. }
                | LoopEvent::CheckGivenUp { .. }
        ) || event.is_terminal();
        let started = matches!(event, LoopEvent::Started { .. });
        let between = matches!(
            event,
            LoopEvent::SessionEnded { .. } | LoopEvent::SessionStarted { .. }
        );
        if self.resumed && !between {
            self.paused &= started;
            self.resumed = false;
        }
        if self.live && !self.paused && !self.asking && !silent {
            self.ran += now.since(self.last);
        }
        self.last = now;
        if let LoopEvent::Operator(event) = event {
            let rolls = matches!(
                event,
                OperatorEvent::Asked(_)
                    | OperatorEvent::Answered {
                        choice: Choice::Rollback,
                        ..
                    }
            );
            let ends = matches!(
                event,
                OperatorEvent::Answered { .. } | OperatorEvent::RolledBack { .. }
            );
            self.asking = rolls || (self.asking && !ends);
        }
        self.asking &= !event.is_terminal()
            && !matches!(
                event,
                LoopEvent::Paused { .. }
                    | LoopEvent::WaitStarted { .. }
                    | LoopEvent::IterationStarted { .. }
                    | LoopEvent::RebootStarted { .. }
                    | LoopEvent::AutocommitStarted { .. }
            );
        self.asking |= matches!(event, LoopEvent::WaitStarted { wait, .. } if matches!(wait.reason, WaitReason::UsageLimit | WaitReason::Outage));
        self.resumed |= matches!(event, LoopEvent::Resumed);
        // A pause survives a crash of the runner, but not the end of the loop.
        self.paused &= !started || self.live;
        self.paused |= matches!(event, LoopEvent::Paused { .. });
        self.live = (self.live || started) && !event.is_terminal();
    }
}

/// Returns whether this event may be recorded in a loop that has ended.
pub fn is_between_runs(event: &LoopEvent) -> bool {
    matches!(
        event,
        LoopEvent::Started { .. }
            | LoopEvent::Noted { .. }
            | LoopEvent::CheckGivenUp { .. }
            | LoopEvent::Warned { .. }
            | LoopEvent::DiskWasFull { .. }
            | LoopEvent::Incident(_)
            | LoopEvent::Repaired { .. }
            | LoopEvent::SegmentOpened { .. }
    )
}
