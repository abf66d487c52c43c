//! Decides whether the session has to be replaced by a new one.

use super::context::{self, Level};
use super::{Policy, RebootRules, degradation};
use crate::{RebootReason, Spent, State};

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

#[cfg(test)]
mod tests {
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
}
