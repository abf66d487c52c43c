//! Stop conditions: each with its value and limit, and the first one that is met.

use super::Policy;
use super::budget::{Budget, Budgets, Spending, Usage, usage, verdict as verdict_of};
use super::completion::{Next, next};
use crate::{Limits, Outcome, State, Timestamp};

/// A stop condition with its current value.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Configuration key of the stop condition.
    pub name: &'static str,
    /// The measured value.
    pub value: String,
    /// The limit.
    pub limit: String,
    /// The value in percent of the limit, rounded down; 100 if the limit is reached.
    pub percent: u8,
    /// Whether the limit is reached.
    pub met: bool,
    /// The value and the limit in words.
    pub words: String,
    /// Estimated time at which the limit is reached; `None` if it cannot be estimated.
    pub exhausted_at: Option<Timestamp>,
    /// Outcome of the loop if the condition is met.
    pub outcome: Outcome,
}

/// Returns the condition that a count reaches its limit; `None` without a limit. `what` says what is counted.
fn count(name: &'static str, what: &str, value: u32, limit: u32) -> Option<Condition> {
    (limit > 0).then(|| Condition {
        name,
        value: value.to_string(),
        limit: limit.to_string(),
        percent: percent(f64::from(value), f64::from(limit)),
        met: value >= limit,
        words: format!("{value} of {limit} {what}"),
        exhausted_at: None,
        outcome: Outcome::Condition {
            reason: format!("{value} {what} ({name} = {limit})"),
        },
    })
}

/// Decides whether failed iterations in a row end the loop.
fn failures(limits: &Limits, state: &State) -> Option<Condition> {
    let (name, what) = ("max_consecutive_failures", "iterations failed in a row");
    let condition = count(name, what, state.failure_streak, limits.failures)?;
    let reason = failure_words(state, limits.failures);
    Some(Condition {
        outcome: Outcome::Error { reason },
        ..condition
    })
}

/// Decides whether failing runs of gates in a row end the loop.
fn failing_gates(limits: &Limits, state: &State) -> Option<Condition> {
    let (name, what) = ("max_test_failure_streak", "failing runs of gates in a row");
    let streak = state.stats.test_failure_streak;
    let condition = count(name, what, streak, limits.test_failures)?;
    let reason = failing_gate_words(state, limits.test_failures);
    Some(Condition {
        outcome: Outcome::Condition { reason },
        ..condition
    })
}

/// Decides whether no progress ends the loop: `max_no_progress_iterations` iterations in a row had a score of 0.
///
/// [`Evidence`](crate::Evidence) has the score: changed files, commits, newly passing tests, ticked objectives. A score of 0
/// counts only if the work tree was surveyed, so the limit is off if changes cannot be detected. Any score above 0 resets the count, and so
/// does a new run of a loop that had ended.
fn no_progress(limits: &Limits, state: &State) -> Option<Condition> {
    let (name, what) = (
        "max_no_progress_iterations",
        "iterations in a row without progress",
    );
    let condition = count(
        name,
        what,
        state.stats.no_progress_count,
        limits.no_progress,
    )?;
    // Failing iterations have a limit of their own, and its message says how they failed.
    let failing = state.failure_streak > 0 && limits.failures > 0;
    Some(Condition {
        met: condition.met && !failing,
        ..condition
    })
}

/// Decides whether the number of iterations ends the loop. An iteration that was cut is repeated and does not count yet.
fn iterations(limits: &Limits, state: &State) -> Option<Condition> {
    let iterations = limits.iterations;
    let begun = state.next_iteration().saturating_sub(1);
    let condition = count("max_iterations", "iterations", begun, iterations)?;
    Some(Condition {
        outcome: Outcome::LimitReached { iterations },
        ..condition
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
        exhausted_at: usage.exhausted_at(now, spending.ran),
        outcome: Outcome::Budget {
            reason: format!("{usage} ({name})"),
        },
    }
}

fn failure_words(state: &State, limit: u32) -> String {
    let last = state
        .last_failure
        .as_ref()
        .map(|failure| format!("; the last one: {failure}"));
    let failed = match state.failure_streak {
        1 => "an iteration failed".to_owned(),
        streak => format!("{streak} iterations failed in a row"),
    };
    let last = last.unwrap_or_default();
    format!("{failed} (max_consecutive_failures = {limit}){last}")
}

fn failing_gate_words(state: &State, limit: u32) -> String {
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
        reason = "the value is clamped to the range of the type"
    )]
    let percent = (value * 100.0 / limit).clamp(0.0, 100.0) as u8;
    percent
}

/// Returns whether a budget is used up.
#[must_use]
pub fn is_spent(limits: &Limits, state: &State, now: Timestamp) -> bool {
    verdict_of(&budgets(limits), &Spending::of(state, now)).is_some()
}

fn budgets(limits: &Limits) -> Budgets {
    Budgets {
        cost_microusd: limits.cost_microusd,
        tokens: limits.tokens,
        duration: std::time::Duration::from_millis(limits.duration_ms),
        quota_percent: limits.quota_percent,
    }
}

/// Returns every configured condition with its value and limit. If several are met, the first one ends the loop.
#[must_use]
pub fn conditions_for(limits: &Limits, state: &State, now: Timestamp) -> Vec<Condition> {
    failures(limits, state)
        .into_iter()
        .chain(spending(limits, state, now))
        .chain(pattern(limits, state))
        .chain(failing_gates(limits, state))
        .chain(no_progress(limits, state))
        .chain(iterations(limits, state))
        .collect()
}

fn spending(limits: &Limits, state: &State, now: Timestamp) -> Vec<Condition> {
    let spending = Spending::of(state, now);
    let mut rows: Vec<Condition> = usage(&budgets(limits), &spending)
        .iter()
        .map(|usage| budget(usage, &spending, now))
        .collect();
    if limits.quota_percent > 0.0 && spending.quota_percent.is_none() {
        let limit = format!("{} %", limits.quota_percent);
        rows.push(Condition {
            name: Budget::Quota.key(),
            value: "not known".to_owned(),
            words: format!("the agent has not said how much of the subscription's window is used; {limit} may be"),
            limit,
            percent: 0,
            met: false,
            exhausted_at: None,
            outcome: Outcome::Budget { reason: String::new() },
        });
    }
    rows
}

fn pattern(limits: &Limits, state: &State) -> Option<Condition> {
    let patterns = limits.patterns;
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
            exhausted_at: None,
            outcome: Outcome::Condition {
                reason: format!("{words} (stop_on_patterns)"),
            },
            words,
        }
    })
}

/// Returns every stop condition of the policy with its value and limit.
#[must_use]
pub fn conditions(policy: &Policy, state: &State, now: Timestamp) -> Vec<Condition> {
    conditions_for(&policy.limits(), state, now)
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
mod tests;
