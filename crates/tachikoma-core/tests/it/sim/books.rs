//! A second opinion on what a loop spends: sums made from the records alone, and what must follow when a budget is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::{
    Autocommit, Choice, HooksStart, LoopEvent, OperatorEvent, Timestamp, TurnEnd, WaitReason,
};

#[derive(Default)]
pub struct Books {
    /// Of the turns before this one.
    cost: u64,
    tokens: u64,
    /// Of this turn, as far as it is reported.
    turn_cost: u64,
    turn_tokens: u64,
    begun_at: Option<u64>,
    conversation: u64,
    quota: BTreeMap<String, (f64, Option<Timestamp>)>,
    subscribed: bool,
    /// At least so long was run.
    ran: Duration,
    last: Timestamp,
    live: bool,
    paused: bool,
    /// A pause ends with what follows its end, which a crash may have cost.
    resumed: bool,
    /// The operator is waited for, and takes their time.
    asking: bool,
    /// A budget is gone, and nothing has been done about it.
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

    /// Takes one record; `stopping` says that the loop is on its way out already.
    pub fn take(&mut self, budgets: &Budgets, event: &LoopEvent, now: Timestamp, stopping: bool) {
        // The last commit and the hooks at the end belong to the end.
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
            assert!(
                answered,
                "a budget that is gone ends the turn, not {event:?}"
            );
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
                assert!(!self.is_gone(budgets, now), "no prompt behind a budget");
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
            // Each start has its end, or the loop was started again.
            LoopEvent::StopRequested { .. } | LoopEvent::Stopped { .. } => {
                self.owed = false;
                false
            }
            LoopEvent::Started { .. } => {
                self.owed = false;
                self.quota.retain(|_, (_, resets)| resets.is_some());
                false
            }
            // No agent of the simulation takes a conversation up.
            _ => false,
        };
        self.owed |= spent && !stopping && self.is_gone(budgets, now);
    }

    /// The turn is over: its own sums count, where it has some.
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
        // A pause outlives a crash, and ends with its loop.
        self.paused &= !started || self.live;
        self.paused |= matches!(event, LoopEvent::Paused { .. });
        self.live = (self.live || started) && !event.is_terminal();
    }
}

/// Returns whether this may be said of a loop that has ended.
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
