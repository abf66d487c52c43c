//! Budgets: limits of cost, tokens, time and quota, and how much of them is used.

use std::fmt;
use std::time::Duration;

use super::Policy;
use crate::{Phase, RebootStage, State, Timestamp};

/// A forecast needs at least this much running time of the loop.
const FORECAST_AFTER: Duration = Duration::from_secs(60);

/// Budgets of a loop over all its runs; zero = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    /// Cost in millionths of a dollar.
    pub cost_microusd: u64,
    /// Tokens that the model read or wrote, including cached ones.
    pub tokens: u64,
    /// Time that runners ran the loop.
    pub duration: Duration,
    /// The part of the subscription's window that may be used, in percent, where the agent reports it.
    pub quota_percent: f64,
}

/// What a loop has used of its budgets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spending {
    /// Cost in millionths of a dollar, including the running turn.
    pub cost_microusd: u64,
    /// Tokens, including those of the running turn.
    pub tokens: u64,
    /// Time that runners ran the loop.
    pub ran: Duration,
    /// The fullest window of the subscription, in percent, as last reported.
    pub quota_percent: Option<f64>,
}

impl Spending {
    /// Returns what a loop has spent at a moment.
    #[must_use]
    pub fn of(state: &State, now: Timestamp) -> Self {
        Self {
            cost_microusd: state.stats.cost_microusd,
            tokens: state.stats.tokens,
            ran: state.accounting.ran_at(&state.phase, now),
            quota_percent: state.accounting.fullest(now),
        }
    }
}

/// A budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The limit `max_cost_usd`.
    Cost,
    /// The limit `max_tokens`.
    Tokens,
    /// The limit `max_duration`.
    Duration,
    /// The limit `max_quota_percent`.
    Quota,
}

/// Tools that run a sub-agent, which calls the model itself.
const SPENDING_TOOLS: [&str; 2] = ["agent", "task"];

/// Returns whether a tool calls the model itself.
#[must_use]
pub fn spends(tool: &str) -> bool {
    let mut names = SPENDING_TOOLS.iter();
    names.any(|name| tool.eq_ignore_ascii_case(name))
}

impl Budget {
    /// All budgets.
    pub const ALL: [Self; 4] = [Self::Cost, Self::Tokens, Self::Duration, Self::Quota];

    /// Returns the configuration key of the budget below `[stop_conditions]`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Cost => "max_cost_usd",
            Self::Tokens => "max_tokens",
            Self::Duration => "max_duration",
            Self::Quota => "max_quota_percent",
        }
    }
}

/// How far a budget is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// The budget.
    pub budget: Budget,
    /// Used amount in the unit of the budget: dollars, tokens, seconds or percent.
    pub spent: f64,
    /// The limit, in the same unit.
    pub limit: f64,
}

impl Usage {
    /// Returns whether the budget is used up.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.spent >= self.limit
    }

    /// Formats the used amount with its unit.
    #[must_use]
    pub fn value(&self) -> String {
        self.written(self.spent)
    }

    /// Formats the limit with its unit.
    #[must_use]
    pub fn limit_text(&self) -> String {
        self.written(self.limit)
    }

    fn written(&self, number: f64) -> String {
        match self.budget {
            // A budget below a dollar needs more decimals.
            Budget::Cost if self.limit < 1.0 => format!("${number:.4}"),
            Budget::Cost => format!("${number:.2}"),
            Budget::Tokens => format!("{number:.0}"),
            Budget::Duration if self.limit < 1.0 => format!("{number:.2} s"),
            Budget::Duration => span(number),
            Budget::Quota => format!("{number:.0} %"),
        }
    }

    /// Returns when the budget will be used up if the loop continues at its average rate; `None` if that cannot be estimated.
    #[must_use]
    pub fn exhausted_at(&self, now: Timestamp, ran: Duration) -> Option<Timestamp> {
        if self.is_gone() || self.spent <= 0.0 || ran < FORECAST_AFTER {
            return None;
        }
        let left = match self.budget {
            Budget::Duration => self.limit - self.spent,
            Budget::Cost | Budget::Tokens => {
                ran.as_secs_f64() * (self.limit - self.spent) / self.spent
            }
            // Other users may share the window of a subscription, and it is reset.
            Budget::Quota => return None,
        };
        Duration::try_from_secs_f64(left)
            .ok()
            .map(|left| now.after(left))
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (spent, limit) = (self.value(), self.limit_text());
        match self.budget {
            Budget::Cost => write!(f, "{spent} of {limit} is spent"),
            Budget::Tokens => write!(f, "{spent} of {limit} tokens are used"),
            Budget::Duration => write!(f, "it ran {spent} of {limit}"),
            Budget::Quota => write!(
                f,
                "{spent} of the subscription's window is used, and {limit} may be"
            ),
        }
    }
}

/// Formats a number of seconds for people.
fn span(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7_200.0 {
        format!("{:.0} min", (seconds / 60.0).floor())
    } else {
        format!("{:.1} h", seconds / 3_600.0)
    }
}

/// Returns how far each budget that is set is used.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "budgets are far below the numbers that f64 cannot represent exactly"
)]
pub fn usage(budgets: &Budgets, spending: &Spending) -> Vec<Usage> {
    let limit = |budget| match budget {
        Budget::Cost => budgets.cost_microusd as f64 / 1e6,
        Budget::Tokens => budgets.tokens as f64,
        Budget::Duration => budgets.duration.as_secs_f64(),
        Budget::Quota => budgets.quota_percent,
    };
    let spent = |budget| match budget {
        Budget::Cost => Some(spending.cost_microusd as f64 / 1e6),
        Budget::Tokens => Some(spending.tokens as f64),
        Budget::Duration => Some(spending.ran.as_secs_f64()),
        Budget::Quota => spending.quota_percent,
    };
    let set = Budget::ALL
        .into_iter()
        .filter(|budget| limit(*budget) > 0.0);
    set.filter_map(|budget| {
        Some(Usage {
            budget,
            spent: spent(budget)?,
            limit: limit(budget),
        })
    })
    .collect()
}

/// Returns the first budget that is used up.
#[must_use]
pub fn verdict(budgets: &Budgets, spending: &Spending) -> Option<Usage> {
    usage(budgets, spending).into_iter().find(Usage::is_gone)
}

/// Returns when `max_duration` ends the loop; `None` without that limit, and if the loop is ending already.
#[must_use]
pub fn out_of_time(policy: &Policy, state: &State) -> Option<Timestamp> {
    let looked_at = match &state.phase {
        // A commit in progress is finished first, and the budget is checked after it.
        Phase::Rebooting { reboot } => !matches!(reboot.stage, RebootStage::Autocommitting { .. }),
        Phase::Waiting { wait } => wait.reason.is_work(),
        Phase::Working { .. } | Phase::Checking { .. } => true,
        Phase::Hooking { hooking } => hooking.outcome.is_none(),
        Phase::Idle | Phase::Autocommitting { .. } | Phase::Paused { .. } | Phase::Ended { .. } => {
            false
        }
    };
    let limit = policy.budgets.duration;
    let since = state.accounting.counted_to?;
    let left = limit.saturating_sub(Duration::from_millis(state.accounting.ran_ms));
    (looked_at && !limit.is_zero() && state.stop.is_none()).then(|| since.after(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOLLAR: u64 = 1_000_000;

    fn spent(cost_microusd: u64, tokens: u64, secs: u64, quota_percent: Option<f64>) -> Spending {
        Spending {
            cost_microusd,
            tokens,
            ran: Duration::from_secs(secs),
            quota_percent,
        }
    }

    #[test]
    fn budgets_are_used_up_at_their_limit_and_off_at_zero() {
        let none = Budgets::default();
        let much = spent(u64::MAX, u64::MAX, 1 << 40, Some(100.0));
        assert_eq!(verdict(&none, &much), None);
        let cases = [
            (
                Budgets {
                    cost_microusd: DOLLAR,
                    ..none
                },
                spent(DOLLAR - 1, 0, 0, None),
                spent(DOLLAR, 0, 0, None),
                "$1.00 of $1.00 is spent",
            ),
            (
                Budgets {
                    tokens: 500,
                    ..none
                },
                spent(0, 499, 0, None),
                spent(0, 500, 0, None),
                "500 of 500 tokens are used",
            ),
            (
                Budgets {
                    duration: Duration::from_secs(60),
                    ..none
                },
                spent(0, 0, 59, None),
                spent(0, 0, 60, None),
                "it ran 60 s of 60 s",
            ),
            (
                Budgets {
                    duration: Duration::from_millis(250),
                    ..none
                },
                spent(0, 0, 0, None),
                spent(0, 0, 1, None),
                "it ran 1.00 s of 0.25 s",
            ),
            (
                Budgets {
                    quota_percent: 80.0,
                    ..none
                },
                spent(0, 0, 0, Some(79.9)),
                spent(0, 0, 0, Some(80.0)),
                "80 % of the subscription's window is used, and 80 % may be",
            ),
        ];
        for (budgets, below, at, words) in cases {
            assert_eq!(verdict(&budgets, &below), None, "{words}");
            let gone = verdict(&budgets, &at).expect(words);
            assert_eq!(gone.to_string(), words);
        }
        let quota = Budgets {
            quota_percent: 1.0,
            ..none
        };
        assert_eq!(
            verdict(&quota, &much).map(|u| u.budget),
            Some(Budget::Quota)
        );
        let silent = spent(0, 0, 0, None);
        assert_eq!(
            verdict(&quota, &silent),
            None,
            "the agent does not report its quota"
        );
    }

    #[test]
    fn forecast_assumes_a_constant_rate() {
        let budgets = Budgets {
            cost_microusd: 10 * DOLLAR,
            duration: Duration::from_secs(4_000),
            ..Budgets::default()
        };
        let now = Timestamp::from_millis(1_000_000);
        let hour = spent(4 * DOLLAR, 0, 3_600, None);
        let at: Vec<_> = usage(&budgets, &hour)
            .iter()
            .map(|usage| usage.exhausted_at(now, hour.ran))
            .collect();
        assert_eq!(
            at,
            [
                Some(now.after(Duration::from_secs(5_400))),
                Some(now.after(Duration::from_secs(400))),
            ]
        );
        let early = spent(DOLLAR, 0, 59, None);
        assert!(
            usage(&budgets, &early)
                .iter()
                .all(|usage| usage.exhausted_at(now, early.ran).is_none())
        );
        let gone = spent(10 * DOLLAR, 0, 3_600, None);
        assert_eq!(usage(&budgets, &gone)[0].exhausted_at(now, gone.ran), None);
    }
}
