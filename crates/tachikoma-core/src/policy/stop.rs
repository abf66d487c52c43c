//! Whether the loop has reached its end: every stop condition as data, and the first one that is met.

use serde::{Deserialize, Serialize};

use super::Policy;
use super::budget::{Budget, Budgets, Spending, Usage, usage};
use super::completion::{Next, next};
use crate::outcome::Outcome;
use crate::state::State;
use crate::time::Timestamp;

/// What ends a loop by itself, as numbers; zero = no limit. Part of the state, so that whoever reads a journal knows how near
/// each end was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// `max_iterations`.
    pub iterations: u32,
    /// `max_consecutive_failures`.
    pub failures: u32,
    /// `max_test_failure_streak`.
    pub test_failures: u32,
    /// `max_no_progress_iterations`.
    pub no_progress: u32,
    /// How many patterns `stop_on_patterns` has.
    pub patterns: u32,
    /// `max_cost_usd`, in millionths of a dollar.
    pub cost_microusd: u64,
    /// `max_tokens`.
    pub tokens: u64,
    /// `max_duration`.
    pub duration_ms: u64,
    /// `max_quota_percent`.
    pub quota_percent: f64,
}

/// A stop condition: what it looks at, how near it is, and what it ends the loop with.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Its key.
    pub name: &'static str,
    /// What is seen.
    pub value: String,
    /// What may be seen.
    pub limit: String,
    /// How near it is, in percent, rounded down; 100 when it is met.
    pub percent: u8,
    /// Whether it is met.
    pub met: bool,
    /// The same in words.
    pub words: String,
    /// When it will be met if the loop goes on as before, where that can be said.
    pub gone_at: Option<Timestamp>,
    /// How the loop ends when it is met.
    pub outcome: Outcome,
}

impl Limits {
    /// Returns the limits that the rules set.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let budgets = &policy.budgets;
        Self {
            iterations: policy.max_iterations,
            failures: policy.max_consecutive_failures,
            // Where nothing can fail nothing is counted.
            test_failures: match policy.completion.gates.is_empty() {
                true => 0,
                false => policy.max_test_failure_streak,
            },
            no_progress: policy.max_no_progress_iterations,
            patterns: policy.stop_patterns,
            cost_microusd: budgets.cost_microusd,
            tokens: budgets.tokens,
            duration_ms: u64::try_from(budgets.duration.as_millis()).unwrap_or(u64::MAX),
            quota_percent: budgets.quota_percent,
        }
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            cost_microusd: self.cost_microusd,
            tokens: self.tokens,
            duration: std::time::Duration::from_millis(self.duration_ms),
            quota_percent: self.quota_percent,
        }
    }

    /// Returns every condition that is set, with how near it is; of several that are met the first counts.
    #[must_use]
    pub fn conditions(&self, state: &State, now: Timestamp) -> Vec<Condition> {
        let stats = &state.stats;
        let failures = count(
            "max_consecutive_failures",
            state.failure_streak,
            self.failures,
        )
        .map(|row| {
            row.words("iterations failed in a row")
                .ending(Outcome::Error {
                    reason: failures(state, self.failures),
                })
        });
        let tests = count(
            "max_test_failure_streak",
            stats.test_failure_streak,
            self.test_failures,
        )
        .map(|row| {
            row.words("failing runs of gates in a row")
                .ending(Outcome::Condition {
                    reason: failing_gates(state, self.test_failures),
                })
        });
        let progress = count(
            "max_no_progress_iterations",
            stats.no_progress_count,
            self.no_progress,
        )
        .map(|row| row.words("iterations in a row without progress"));
        // An iteration that was cut is owed, and does not count yet.
        let begun = state.next_iteration().saturating_sub(1);
        let iterations = count("max_iterations", begun, self.iterations).map(|row| {
            let iterations = self.iterations;
            row.words("iterations")
                .ending(Outcome::LimitReached { iterations })
        });
        failures
            .into_iter()
            .chain(self.spending(state, now))
            .chain(self.pattern(state))
            .chain(tests)
            .chain(progress)
            .chain(iterations)
            .collect()
    }

    fn spending(&self, state: &State, now: Timestamp) -> Vec<Condition> {
        let spending = Spending::of(state, now);
        let mut rows: Vec<Condition> = usage(&self.budgets(), &spending)
            .iter()
            .map(|usage| budget(usage, &spending, now))
            .collect();
        if self.quota_percent > 0.0 && spending.quota_percent.is_none() {
            let limit = format!("{} %", self.quota_percent);
            rows.push(Condition {
                name: Budget::Quota.key(),
                value: "not known".to_owned(),
                words: format!("the agent has not said how much of the subscription's window is used; {limit} may be"),
                limit,
                percent: 0,
                met: false,
                gone_at: None,
                outcome: Outcome::Budget { reason: String::new() },
            });
        }
        rows
    }

    fn pattern(&self, state: &State) -> Option<Condition> {
        let patterns = self.patterns;
        (patterns > 0).then(|| {
            let pattern = state.stop_pattern.as_deref();
            let words = match pattern {
                Some(pattern) => format!("the agent's words match the pattern `{pattern}`"),
                None => "the agent's words match no pattern".to_owned(),
            };
            Condition {
                name: "stop_on_patterns",
                value: pattern.unwrap_or("no match").to_owned(),
                limit: "a match".to_owned(),
                percent: if pattern.is_some() { 100 } else { 0 },
                met: pattern.is_some(),
                gone_at: None,
                outcome: Outcome::Condition {
                    reason: format!("{words} (stop_on_patterns)"),
                },
                words,
            }
        })
    }
}

impl Condition {
    fn words(mut self, what: &str) -> Self {
        self.words = format!("{} of {} {what}", self.value, self.limit);
        self.outcome = Outcome::Condition {
            reason: format!("{} {what} ({} = {})", self.value, self.name, self.limit),
        };
        self
    }

    fn ending(self, outcome: Outcome) -> Self {
        Self { outcome, ..self }
    }
}

/// A count that ends the loop when it reaches its limit; none where there is no limit.
fn count(name: &'static str, value: u32, limit: u32) -> Option<Condition> {
    (limit > 0).then(|| Condition {
        name,
        value: value.to_string(),
        limit: limit.to_string(),
        percent: percent(f64::from(value), f64::from(limit)),
        met: value >= limit,
        words: String::new(),
        gone_at: None,
        outcome: Outcome::Condition {
            reason: String::new(),
        },
    })
}

fn budget(usage: &Usage, spending: &Spending, now: Timestamp) -> Condition {
    let name = usage.budget.key();
    Condition {
        name,
        value: usage.value(),
        limit: usage.limit_text(),
        percent: percent(usage.spent, usage.limit),
        met: usage.is_gone(),
        words: usage.to_string(),
        gone_at: usage.gone_at(now, spending.ran),
        outcome: Outcome::Budget {
            reason: format!("{usage} ({name})"),
        },
    }
}

fn failures(state: &State, limit: u32) -> String {
    let last = state
        .last_failure
        .as_ref()
        .map(|failure| format!("; the last one: {failure}"));
    format!(
        "{} iterations failed in a row (max_consecutive_failures = {limit}){}",
        state.failure_streak,
        last.unwrap_or_default(),
    )
}

fn failing_gates(state: &State, limit: u32) -> String {
    let failed = state.completion.gates.iter().filter(|gate| !gate.passed());
    let failed: Vec<String> = failed.map(|gate| format!("`{}`", gate.name)).collect();
    let last = match failed.is_empty() {
        true => String::new(),
        false => format!(", the last time: {}", failed.join(", ")),
    };
    format!(
        "gates failed {} times in a row (max_test_failure_streak = {limit}){last}",
        state.stats.test_failure_streak,
    )
}

fn percent(value: f64, limit: f64) -> u8 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what fits"
    )]
    let percent = (value * 100.0 / limit).clamp(0.0, 100.0) as u8;
    percent
}

/// Returns every stop condition that the rules set, with how near it is.
#[must_use]
pub fn conditions(policy: &Policy, state: &State, now: Timestamp) -> Vec<Condition> {
    Limits::of(policy).conditions(state, now)
}

/// Returns the first condition that is met.
#[must_use]
pub fn met(policy: &Policy, state: &State, now: Timestamp) -> Option<Condition> {
    let conditions = conditions(policy, state, now);
    conditions.into_iter().find(|condition| condition.met)
}

/// Decides, between two iterations, whether the loop ends here and how.
#[must_use]
pub fn verdict(policy: &Policy, state: &State, now: Timestamp) -> Option<Outcome> {
    if next(policy, state) == Next::Believe {
        return Some(Outcome::Done);
    }
    if let Some(stop) = &state.stop {
        return Some(stop.clone().into());
    }
    met(policy, state, now).map(|condition| condition.outcome)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::completion::GateRule;
    use crate::{Claim, Exit, Failure, LoopId, Owed, QuotaWindow, Stop};

    #[test]
    fn the_limit_counts_iterations_and_a_cut_one_is_owed() {
        let policy = Policy {
            max_iterations: 3,
            ..Policy::default()
        };
        let mut state = State::new(LoopId::from_u128(1));
        state.iteration = 2;
        assert_eq!(verdict(&policy, &state, Timestamp::default()), None);
        state.iteration = 3;
        assert_eq!(
            verdict(&policy, &state, Timestamp::default()),
            Some(Outcome::LimitReached { iterations: 3 })
        );
        state.cut = true;
        assert_eq!(
            verdict(&policy, &state, Timestamp::default()),
            None,
            "the third iteration was cut and is repeated"
        );
        assert_eq!(
            verdict(&Policy::default(), &state, Timestamp::default()),
            None,
            "0 means no limit"
        );
    }

    #[test]
    fn the_last_failure_is_shown() {
        let policy = Policy {
            max_consecutive_failures: 2,
            ..Policy::default()
        };
        let mut state = State::new(LoopId::from_u128(1));
        state.failure_streak = 2;
        state.last_failure = Some(Failure::Exited {
            exit: Exit::Code(7),
        });
        let Some(Outcome::Error { reason }) = verdict(&policy, &state, Timestamp::default()) else {
            panic!("the streak ends the loop")
        };
        assert_eq!(
            reason,
            "2 iterations failed in a row (max_consecutive_failures = 2); the last one: the agent ended with exit 7"
        );
    }

    #[test]
    fn a_believed_claim_beats_a_stop_and_an_unbelieved_one_does_not_count() {
        let mut state = State::new(LoopId::from_u128(1));
        state.completion.claims = vec![Claim::Promise];
        state.completion.owed = Owed::Judgement;
        state.stop = Some(Stop::Operator);
        assert_eq!(
            verdict(&Policy::default(), &state, Timestamp::default()),
            Some(Outcome::Done)
        );
        let mut gated = Policy::default();
        gated.completion.gates = vec![gate()];
        assert_eq!(
            verdict(&gated, &state, Timestamp::default()),
            Some(Outcome::Operator)
        );
    }

    type Change = fn(&mut Policy, &mut State);

    /// Each condition: what sets it, what is just below it, what meets it, and what is said then.
    const TABLE: [(&str, Change, Change, Change, &str); 9] = [
        (
            "max_consecutive_failures",
            |policy, _| policy.max_consecutive_failures = 3,
            |_, state| state.failure_streak = 2,
            |_, state| state.failure_streak = 3,
            "error: 3 iterations failed in a row (max_consecutive_failures = 3)",
        ),
        (
            "max_cost_usd",
            |policy, _| policy.budgets.cost_microusd = 1_000_000,
            |_, state| state.stats.cost_microusd = 999_999,
            |_, state| state.stats.cost_microusd = 1_000_000,
            "budget: $1.00 of $1.00 is spent (max_cost_usd)",
        ),
        (
            "max_tokens",
            |policy, _| policy.budgets.tokens = 500,
            |_, state| state.stats.tokens = 499,
            |_, state| state.stats.tokens = 500,
            "budget: 500 of 500 tokens are used (max_tokens)",
        ),
        (
            "max_duration",
            |policy, _| policy.budgets.duration = Duration::from_secs(90),
            |_, state| state.ledger.ran_ms = 89_999,
            |_, state| state.ledger.ran_ms = 90_000,
            "budget: it ran 90 s of 90 s (max_duration)",
        ),
        (
            "max_quota_percent",
            |policy, _| policy.budgets.quota_percent = 80.0,
            |_, state| state.ledger.quota_told(window(79.9)),
            |_, state| state.ledger.quota_told(window(80.0)),
            "budget: 80 % of the subscription's window is used, and 80 % may be (max_quota_percent)",
        ),
        (
            "stop_on_patterns",
            |policy, _| policy.stop_patterns = 2,
            |_, _| (),
            |_, state| state.stop_pattern = Some("^BLOCKED".to_owned()),
            "condition: the agent's words match the pattern `^BLOCKED` (stop_on_patterns)",
        ),
        (
            "max_test_failure_streak",
            |policy, _| {
                policy.max_test_failure_streak = 3;
                policy.completion.gates = vec![gate()];
            },
            |_, state| state.stats.test_failure_streak = 2,
            |_, state| state.stats.test_failure_streak = 3,
            "condition: gates failed 3 times in a row (max_test_failure_streak = 3)",
        ),
        (
            "max_no_progress_iterations",
            |policy, _| policy.max_no_progress_iterations = 5,
            |_, state| state.stats.no_progress_count = 4,
            |_, state| state.stats.no_progress_count = 5,
            "condition: 5 iterations in a row without progress (max_no_progress_iterations = 5)",
        ),
        (
            "max_iterations",
            |policy, _| policy.max_iterations = 7,
            |_, state| state.iteration = 6,
            |_, state| state.iteration = 7,
            "limit_reached: the limit of 7 iterations is reached",
        ),
    ];

    fn gate() -> GateRule {
        GateRule {
            name: "tests".to_owned(),
            timeout: Duration::ZERO,
            each_iteration: false,
        }
    }

    fn window(percent: f64) -> QuotaWindow {
        QuotaWindow {
            window: "five_hour".to_owned(),
            percent,
            resets_at: None,
        }
    }

    fn none() -> (Policy, State) {
        let policy = Policy {
            max_consecutive_failures: 0,
            max_test_failure_streak: 0,
            ..Policy::default()
        };
        (policy, State::new(LoopId::from_u128(1)))
    }

    #[test]
    fn each_condition_is_met_at_its_limit_not_below_it_and_off_at_zero() {
        let now = Timestamp::default();
        for (name, set, below, at, said) in TABLE {
            let (mut policy, mut state) = none();
            at(&mut policy, &mut state);
            assert_eq!(verdict(&policy, &state, now), None, "{name} is off");
            assert_eq!(conditions(&policy, &state, now), [], "{name} is off");
            let (mut policy, mut state) = none();
            set(&mut policy, &mut state);
            below(&mut policy, &mut state);
            assert_eq!(verdict(&policy, &state, now), None, "below {name}");
            let near = conditions(&policy, &state, now);
            assert_eq!(near.len(), 1, "{name}");
            assert_eq!((near[0].name, near[0].met), (name, false));
            at(&mut policy, &mut state);
            let outcome = verdict(&policy, &state, now).expect(name);
            assert_eq!(format!("{}: {outcome}", outcome.kind()), said);
            let met = met(&policy, &state, now).expect(name);
            assert_eq!((met.name, met.percent, met.outcome), (name, 100, outcome));
        }
    }

    /// Of several that are met the first of the table counts: what went wrong, then money, then the work, then the count.
    #[test]
    fn the_first_of_several_counts() {
        let (mut policy, mut state) = none();
        for (_, set, _, at, _) in TABLE {
            set(&mut policy, &mut state);
            at(&mut policy, &mut state);
        }
        let now = Timestamp::default();
        let rows = conditions(&policy, &state, now);
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names, TABLE.map(|row| row.0));
        assert_eq!(verdict(&policy, &state, now), Some(rows[0].outcome.clone()));
    }

    #[test]
    fn how_near_each_is_can_be_read() {
        let (mut policy, mut state) = none();
        policy.max_no_progress_iterations = 5;
        policy.budgets.cost_microusd = 10_000_000;
        policy.budgets.quota_percent = 90.0;
        state.stats.no_progress_count = 2;
        state.stats.cost_microusd = 3_200_000;
        state.ledger.ran_ms = 3_600_000;
        let now = Timestamp::from_millis(1_000_000);
        let near: Vec<_> = conditions(&policy, &state, now)
            .into_iter()
            .map(|row| (row.words, row.percent, row.gone_at))
            .collect();
        let gone_at = now.after(Duration::from_secs(7_650));
        let unknown =
            "the agent has not said how much of the subscription's window is used; 90 % may be";
        assert_eq!(
            near,
            [
                ("$3.20 of $10.00 is spent".to_owned(), 32, Some(gone_at)),
                (unknown.to_owned(), 0, None),
                (
                    "2 of 5 iterations in a row without progress".to_owned(),
                    40,
                    None
                ),
            ]
        );
    }
}
