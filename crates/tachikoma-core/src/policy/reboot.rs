//! Decides whether the session has to be replaced by a new one.

use super::context::{self, Level};
use super::{Policy, RebootRules, degradation};
use crate::{RebootBook, RebootReason, Spent, State, Timestamp};

/// The decision about a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The session continues.
    GoOn,
    /// The session has to be replaced.
    Reboot(RebootReason),
    /// The session should be replaced, but `max_restarts` is reached.
    Exhausted {
        /// Why a reboot is wanted.
        reason: RebootReason,
        /// Value of `max_restarts`.
        max: u32,
    },
}

/// Decides, between two iterations, whether the session has to be replaced.
#[must_use]
pub fn verdict(policy: &Policy, state: &State) -> Verdict {
    let rules = &policy.reboot;
    let reason = redline(policy, state)
        .or_else(|| refused(rules, state))
        .or_else(|| tool_calls(rules, state))
        .or_else(|| degradation(rules, state))
        .or_else(|| iteration_limit(rules, state))
        .or_else(|| duration_limit(rules, state))
        .or_else(|| pattern(state));
    judge(rules, state, reason)
}

/// Decides during an iteration whether the session has to be replaced. Only a full context ends a turn early.
#[must_use]
pub fn verdict_on_reading(policy: &Policy, state: &State) -> Verdict {
    judge(&policy.reboot, state, redline(policy, state))
}

/// Decides whether a reason for a reboot leads to one.
pub(crate) fn judge(rules: &RebootRules, state: &State, reason: Option<RebootReason>) -> Verdict {
    if !rules.enabled || rules.max_reboots == Some(0) {
        return Verdict::GoOn;
    }
    let Some(reason) = reason else {
        return Verdict::GoOn;
    };
    match rules.max_reboots {
        Some(max) if state.stats.reboots >= max => Verdict::Exhausted { reason, max },
        Some(_) | None => Verdict::Reboot(reason),
    }
}

fn redline(policy: &Policy, state: &State) -> Option<RebootReason> {
    let session = &state.session;
    let context = session.context?;
    let by_tokens = context::is_token_redline(policy, session, &context);
    (context::level(policy, session, &context) >= Level::Redline).then(|| RebootReason::Redline {
        percent: context.percent_rounded_down(),
        tokens: by_tokens.then_some(context.tokens),
    })
}

/// Returns a reason if the agent refused a prompt. Its last reading may be outdated, because a tool printed a lot after it.
fn refused(rules: &RebootRules, state: &State) -> Option<RebootReason> {
    let full = state.session.spent == Some(Spent::Full);
    (full && rules.manages_context()).then_some(RebootReason::Refused)
}

/// Returns a reason after too many tool calls. Applies only while the context is unknown and the redline is on.
fn tool_calls(rules: &RebootRules, state: &State) -> Option<RebootReason> {
    let count = state.session.tool_calls;
    let threshold = rules.tool_call_threshold;
    let unknown = state.session.context.is_none() && rules.manages_context();
    (unknown && threshold > 0 && count >= threshold).then_some(RebootReason::ToolCalls { count })
}

fn degradation(rules: &RebootRules, state: &State) -> Option<RebootReason> {
    let details = rules
        .on_degradation
        .then(|| degradation::verdict(&state.session.samples))??;
    Some(RebootReason::Degradation { details })
}

fn iteration_limit(rules: &RebootRules, state: &State) -> Option<RebootReason> {
    let count = state.session.iterations;
    rules
        .after_iterations
        .filter(|limit| *limit > 0 && count >= *limit)?;
    Some(RebootReason::IterationLimit { count })
}

fn duration_limit(rules: &RebootRules, state: &State) -> Option<RebootReason> {
    let age = state.time.since(state.session.started?);
    rules
        .after_duration
        .filter(|limit| !limit.is_zero() && age >= *limit)?;
    Some(RebootReason::DurationLimit {
        seconds: age.as_secs(),
    })
}

fn pattern(state: &State) -> Option<RebootReason> {
    let pattern = state.session.pattern.clone()?;
    Some(RebootReason::PatternMatch { pattern })
}

/// Returns the time before which the rate limits allow no reboot; `None` = a reboot is allowed now.
#[must_use]
pub fn not_before(rules: &RebootRules, book: &RebootBook, now: Timestamp) -> Option<Timestamp> {
    let interval = book.last_success.map(|time| time.after(rules.min_interval));
    let cooldown = book
        .last_failure
        .filter(|_| book.failures > 0)
        .map(|time| time.after(rules.failure_cooldown.saturating_mul(book.failures)));
    let hour = book.hour_opens(rules.max_per_hour, now);
    [interval, cooldown, hour]
        .into_iter()
        .flatten()
        .max()
        .filter(|moment| *moment > now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Context, LoopId};

    fn verdict(rules: &RebootRules, state: &State) -> Verdict {
        let policy = Policy {
            reboot: *rules,
            ..Policy::default()
        };
        super::verdict(&policy, state)
    }

    fn state(tokens: u64, iterations: u32, reboots: u32) -> State {
        let mut state = State::new(LoopId::from_u128(1));
        state.session.context = Some(Context {
            tokens,
            window: 1000,
            estimated: false,
        });
        state.session.iterations = iterations;
        state.stats.reboots = reboots;
        state
    }

    #[test]
    fn redline_is_reached_at_exactly_its_threshold() {
        let rules = RebootRules::default();
        assert_eq!(verdict(&rules, &state(849, 0, 0)), Verdict::GoOn);
        assert_eq!(
            verdict(&rules, &state(850, 0, 0)),
            Verdict::Reboot(RebootReason::Redline {
                percent: 85,
                tokens: None
            })
        );
        let decimals = RebootRules {
            redline_percent: 84.95,
            ..rules
        };
        assert_eq!(
            verdict(&decimals, &state(850, 0, 0)),
            Verdict::Reboot(RebootReason::Redline {
                percent: 85,
                tokens: None
            })
        );
    }

    #[test]
    fn every_setting_that_turns_reboots_off_works() {
        let rules = RebootRules {
            after_iterations: None,
            ..RebootRules::default()
        };
        for off in [
            RebootRules {
                enabled: false,
                ..rules
            },
            RebootRules {
                max_reboots: Some(0),
                ..rules
            },
            RebootRules {
                redline_percent: 100.0,
                ..rules
            },
            RebootRules {
                on_redline: false,
                ..rules
            },
        ] {
            assert_eq!(verdict(&off, &state(1200, 99, 0)), Verdict::GoOn, "{off:?}");
        }
    }

    #[test]
    fn reboots_beyond_the_maximum_are_exhausted() {
        let rules = RebootRules {
            max_reboots: Some(2),
            ..RebootRules::default()
        };
        let reason = RebootReason::Redline {
            percent: 90,
            tokens: None,
        };
        assert_eq!(
            verdict(&rules, &state(900, 0, 1)),
            Verdict::Reboot(reason.clone())
        );
        assert_eq!(
            verdict(&rules, &state(900, 0, 2)),
            Verdict::Exhausted { reason, max: 2 }
        );
    }

    #[test]
    fn redline_is_checked_before_the_iteration_count() {
        let rules = RebootRules {
            after_iterations: Some(3),
            ..RebootRules::default()
        };
        assert_eq!(verdict(&rules, &state(0, 2, 0)), Verdict::GoOn);
        assert_eq!(
            verdict(&rules, &state(0, 3, 0)),
            Verdict::Reboot(RebootReason::IterationLimit { count: 3 })
        );
        assert_eq!(
            verdict(&rules, &state(900, 3, 0)),
            Verdict::Reboot(RebootReason::Redline {
                percent: 90,
                tokens: None
            })
        );
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn reboot_book(
        last_success: Option<i64>,
        last_failure: Option<i64>,
        failures: u32,
    ) -> RebootBook {
        RebootBook {
            last_success: last_success.map(at),
            last_failure: last_failure.map(at),
            failures,
            recent: last_success.map(at).into_iter().collect(),
            ..RebootBook::default()
        }
    }

    #[test]
    fn latest_of_the_rate_limits_delays_a_reboot() {
        let rules = RebootRules::default();
        for (book, now, expected) in [
            (reboot_book(None, None, 0), 0, None),
            (reboot_book(Some(0), None, 0), 299, Some(300)),
            (reboot_book(Some(0), None, 0), 300, None),
            // The cooldown after a failed reboot applies even without an earlier success.
            (reboot_book(None, Some(0), 1), 59, Some(60)),
            (reboot_book(None, Some(0), 1), 60, None),
            (reboot_book(None, Some(0), 2), 119, Some(120)),
            (reboot_book(Some(0), Some(250), 1), 260, Some(310)),
            // After a success, earlier failures no longer count.
            (reboot_book(Some(0), Some(250), 0), 301, None),
        ] {
            assert_eq!(
                not_before(&rules, &book, at(now)),
                expected.map(at),
                "{book:?}"
            );
        }
    }

    #[test]
    fn hourly_limit_counts_successful_reboots() {
        let rules = RebootRules {
            min_interval: Duration::ZERO,
            max_per_hour: 3,
            ..RebootRules::default()
        };
        let mut book = reboot_book(Some(30), None, 0);
        book.recent = vec![at(0), at(10), at(20), at(30)];
        assert_eq!(not_before(&rules, &book, at(40)), Some(at(3610)));
        assert_eq!(not_before(&rules, &book, at(3609)), Some(at(3610)));
        assert_eq!(not_before(&rules, &book, at(3610)), None);
        let unlimited = RebootRules {
            max_per_hour: 0,
            ..rules
        };
        assert_eq!(not_before(&unlimited, &book, at(40)), None);
    }
}
