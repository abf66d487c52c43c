//! Accounting of a loop: time, money, tokens and a subscription's windows, counted as the agent reports them.
//!
//! [`LoopStats`] always has the totals, including the running turn, so that a crash loses no reported usage. When a turn
//! ends, its own total is used if it is higher than the sum of the reports during the turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::millis;
use crate::{LoopStats, Phase, Timestamp};

/// Maximum number of subscription windows that are remembered. Services have two or three.
const WINDOWS_MAX: usize = 8;

/// Spending of a loop, in addition to the totals in [`LoopStats`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accounting {
    /// Time that runners ran the loop, in milliseconds, without pauses and suspensions.
    pub ran_ms: u64,
    /// Time up to which `ran_ms` is counted; `None` before the first start.
    pub counted_to: Option<Timestamp>,
    /// Cost of the conversation in millionths of a dollar, from the agent's latest report.
    pub conversation_microusd: u64,
    /// Counted tokens of the conversation; `None` if its beginning was not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_tokens: Option<u64>,
    /// What the running turn has used so far.
    pub turn: TurnSpending,
    /// The windows of the subscription, where the agent reports them.
    pub quota: Vec<QuotaWindow>,
}

/// What one turn has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnSpending {
    /// Cost of the conversation before the turn, in millionths of a dollar; `None` until it is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_microusd: Option<u64>,
    /// Cost of the turn so far, in millionths of a dollar.
    pub cost_microusd: u64,
    /// Tokens of the finished calls of the turn.
    pub tokens: u64,
}

/// Usage of a conversation over all its turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationUse {
    /// Cost in millionths of a dollar.
    pub microusd: u64,
    /// Tokens, those from the cache included.
    pub tokens: u64,
}

/// A window of a subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuotaWindow {
    /// Name of the window, as the service reports it.
    pub window: String,
    /// The used part, in percent.
    pub percent: f64,
    /// When the window is reset; `None` if the service does not say.
    pub resets_at: Option<Timestamp>,
}

impl Accounting {
    /// Returns how long runners have run the loop until `now`. `phase` has not changed since the last record.
    #[must_use]
    pub fn ran_at(&self, phase: &Phase, now: Timestamp) -> Duration {
        let counted = Duration::from_millis(self.ran_ms);
        match self.counted_to {
            Some(since) if runs(phase) => counted + now.since(since),
            Some(_) | None => counted,
        }
    }

    /// Returns the used part of the fullest window that was not reset yet, in percent.
    #[must_use]
    pub fn fullest(&self, now: Timestamp) -> Option<f64> {
        let holds = |window: &&QuotaWindow| window.resets_at.is_none_or(|moment| moment > now);
        let percents = self.quota.iter().filter(holds).map(|window| window.percent);
        percents.reduce(f64::max)
    }

    /// Returns the last report about a window.
    #[must_use]
    pub fn window(&self, name: &str) -> Option<&QuotaWindow> {
        self.quota.iter().find(|known| known.window == name)
    }

    /// Returns whether a report about this window can be stored: it is known already, or there is room for another window.
    pub(crate) fn knows_window(&self, name: &str) -> bool {
        self.window(name).is_some() || self.quota.len() < WINDOWS_MAX
    }

    /// Adds the running time up to a record.
    pub(crate) fn count(&mut self, phase: &Phase, time: Timestamp) {
        self.ran_ms = millis(self.ran_at(phase, time));
        self.counted_to = Some(time);
    }

    /// A runner starts the loop. The time without a runner does not count. Windows without a known reset are forgotten, because the agent
    /// reports them again.
    pub(crate) fn runner_started(&mut self, time: Timestamp) {
        self.counted_to = Some(time);
        self.quota.retain(|window| window.resets_at.is_some());
    }

    /// The machine was suspended. That time does not count.
    pub(crate) fn suspended(&mut self, duration: Duration) {
        self.counted_to = self.counted_to.map(|since| since.after(duration));
    }

    pub(crate) fn session_began(&mut self) {
        self.conversation_microusd = 0;
        self.conversation_tokens = Some(0);
        self.turn = TurnSpending::default();
    }

    pub(crate) fn turn_began(&mut self) {
        self.turn = TurnSpending::default();
    }

    pub(crate) fn call_ended(&mut self, stats: &mut LoopStats, tokens: u64) {
        self.turn.tokens = self.turn.tokens.saturating_add(tokens);
        self.count_tokens(stats, tokens);
    }

    fn count_tokens(&mut self, stats: &mut LoopStats, tokens: u64) {
        stats.tokens = stats.tokens.saturating_add(tokens);
        let known = self.conversation_tokens;
        self.conversation_tokens = known.map(|known| known.saturating_add(tokens));
    }

    /// An agent resumed a conversation and reported its usage so far. The part that was not counted was used by attempts that were
    /// cut.
    pub(crate) fn conversation_resumed(&mut self, stats: &mut LoopStats, told: ConversationUse) {
        let missed = told.microusd.saturating_sub(self.conversation_microusd);
        stats.cost_microusd = stats.cost_microusd.saturating_add(missed);
        self.conversation_microusd = told.microusd;
        self.turn.before_microusd = Some(told.microusd);
        let known = self.conversation_tokens.unwrap_or(told.tokens);
        self.count_tokens(stats, told.tokens.saturating_sub(known));
    }

    /// The agent reported the cost of its conversation. A report before the first model call of a turn is the start value of the turn,
    /// because an agent that was killed may report less than before.
    pub(crate) fn cost_reported(&mut self, stats: &mut LoopStats, conversation_microusd: u64) {
        let early = self.turn.tokens == 0;
        let known = self.conversation_microusd.min(conversation_microusd);
        let first = if early { conversation_microusd } else { known };
        let before = *self.turn.before_microusd.get_or_insert(first);
        let so_far = conversation_microusd.saturating_sub(before);
        let more = so_far.saturating_sub(self.turn.cost_microusd);
        self.turn.cost_microusd += more;
        stats.cost_microusd = stats.cost_microusd.saturating_add(more);
        self.conversation_microusd = conversation_microusd;
    }

    /// A turn ended with its own totals. Earlier reports still count, because the totals may leave out the usage of a killed
    /// process or of sub-agents.
    pub(crate) fn turn_resulted(&mut self, stats: &mut LoopStats, cost_microusd: u64, tokens: u64) {
        let TurnSpending {
            before_microusd,
            cost_microusd: counted_cost,
            tokens: counted_tokens,
        } = std::mem::take(&mut self.turn);
        let more = cost_microusd.saturating_sub(counted_cost);
        stats.cost_microusd = stats.cost_microusd.saturating_add(more);
        let before = before_microusd.unwrap_or(self.conversation_microusd);
        let now = before.saturating_add(cost_microusd);
        self.conversation_microusd = self.conversation_microusd.max(now);
        self.count_tokens(stats, tokens.saturating_sub(counted_tokens));
    }

    pub(crate) fn quota_reported(&mut self, told: QuotaWindow) {
        if let Some(known) = self.quota.iter_mut().find(|w| w.window == told.window) {
            *known = told;
        } else if self.quota.len() < WINDOWS_MAX {
            self.quota.push(told);
        }
    }
}

/// Converts dollars to millionths of a dollar.
#[must_use]
pub fn microusd(usd: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is clamped to the range of the type"
    )]
    let microusd = (usd * 1e6).round().clamp(0.0, 1e15) as u64;
    microusd
}

/// Returns whether time in this phase counts as running time of the loop.
fn runs(phase: &Phase) -> bool {
    match phase {
        Phase::Waiting { wait } => wait.reason.is_work(),
        Phase::Working { .. }
        | Phase::Autocommitting { .. }
        | Phase::Checking { .. }
        | Phase::Hooking { .. }
        | Phase::Rebooting { .. } => true,
        Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(accounting: &mut Accounting, stats: &mut LoopStats, totals: &[u64]) -> u64 {
        for total in totals {
            accounting.cost_reported(stats, *total);
        }
        stats.cost_microusd
    }

    #[test]
    fn cost_of_a_turn_counts_from_its_start_value() {
        let (mut accounting, mut stats) = (Accounting::default(), LoopStats::default());
        accounting.turn_began();
        assert_eq!(
            told(&mut accounting, &mut stats, &[700]),
            0,
            "the first report is the start value"
        );
        accounting.call_ended(&mut stats, 10);
        assert_eq!(told(&mut accounting, &mut stats, &[900, 900]), 200);
        accounting.turn_resulted(&mut stats, 203, 12);
        assert_eq!((stats.cost_microusd, stats.tokens), (203, 12));
        accounting.turn_began();
        accounting.call_ended(&mut stats, 10);
        let late = told(&mut accounting, &mut stats, &[1000]);
        assert_eq!(
            late,
            203 + 97,
            "a first report after a model call counts from the last known cost"
        );
        accounting.turn_resulted(&mut stats, 50, 4);
        assert_eq!(
            (stats.cost_microusd, stats.tokens),
            (300, 22),
            "a lower total of the turn does not reduce what was counted"
        );
        assert_eq!(accounting.conversation_microusd, 1000);
    }

    #[test]
    fn cost_reports_of_a_killed_agent_restart_from_its_own_total() {
        let (mut accounting, mut stats) = (Accounting::default(), LoopStats::default());
        accounting.turn_began();
        accounting.call_ended(&mut stats, 10);
        assert_eq!(told(&mut accounting, &mut stats, &[500]), 500);
        // The agent was killed, and its conversation is resumed.
        accounting.turn_began();
        assert_eq!(told(&mut accounting, &mut stats, &[100]), 500);
        accounting.call_ended(&mut stats, 10);
        assert_eq!(told(&mut accounting, &mut stats, &[300]), 700);
        accounting.turn_resulted(&mut stats, 0, 0);
        assert_eq!(
            (stats.cost_microusd, stats.tokens),
            (700, 20),
            "cost before and after the kill is added up"
        );
    }

    #[test]
    fn cut_attempts_are_counted_when_their_conversation_resumes() {
        let used = |microusd, tokens| ConversationUse { microusd, tokens };
        let sums = |stats: &LoopStats| (stats.cost_microusd, stats.tokens);
        let (mut accounting, mut stats) = (Accounting::default(), LoopStats::default());
        accounting.session_began();
        accounting.turn_began();
        accounting.turn_resulted(&mut stats, 100, 10);
        // The attempt was cut. Its calls were reported only because there is a budget.
        accounting.turn_began();
        accounting.call_ended(&mut stats, 4);
        accounting.turn_began();
        accounting.conversation_resumed(&mut stats, used(170, 17));
        assert_eq!(sums(&stats), (170, 17));
        accounting.turn_resulted(&mut stats, 30, 3);
        assert_eq!(sums(&stats), (200, 20));
        accounting.turn_began();
        accounting.conversation_resumed(&mut stats, used(200, 20));
        assert_eq!(sums(&stats), (200, 20), "usage is not counted twice");
        let (mut old, mut stats) = (Accounting::default(), LoopStats::default());
        old.conversation_resumed(&mut stats, used(0, 20));
        assert_eq!(
            stats.tokens, 0,
            "tokens of a conversation whose start was not counted are not added"
        );
    }

    #[test]
    fn fullest_quota_window_counts_until_its_reset() {
        let mut accounting = Accounting::default();
        let at = Timestamp::from_millis;
        let window = |name: &str, percent, resets: Option<i64>| QuotaWindow {
            window: name.to_owned(),
            percent,
            resets_at: resets.map(at),
        };
        assert_eq!(accounting.fullest(at(0)), None);
        accounting.quota_reported(window("five_hour", 90.0, Some(5_000)));
        accounting.quota_reported(window("seven_day", 40.0, None));
        assert_eq!(accounting.fullest(at(4_999)), Some(90.0));
        assert_eq!(accounting.fullest(at(5_000)), Some(40.0));
        accounting.quota_reported(window("five_hour", 3.0, Some(9_000)));
        assert_eq!(accounting.fullest(at(5_000)), Some(40.0));
        for n in 0..20 {
            accounting.quota_reported(window(&n.to_string(), 99.0, None));
        }
        assert_eq!(accounting.quota.len(), WINDOWS_MAX);
        accounting.runner_started(at(6_000));
        let left = accounting.fullest(at(6_000));
        assert_eq!(
            left,
            Some(3.0),
            "only the window with a known reset is left"
        );
    }
}
