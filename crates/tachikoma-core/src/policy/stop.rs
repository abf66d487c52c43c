//! Whether the loop has reached its end.

use super::Policy;
use super::completion::{Next, next};
use crate::outcome::Outcome;
use crate::state::State;

/// Decides, between two iterations, whether the loop ends here and how.
#[must_use]
pub fn verdict(policy: &Policy, state: &State) -> Option<Outcome> {
    if next(policy, state) == Next::Believe {
        return Some(Outcome::Done);
    }
    if let Some(stop) = &state.stop {
        return Some(stop.clone().into());
    }
    let max_failures = policy.max_consecutive_failures;
    if max_failures > 0 && state.failure_streak >= max_failures {
        let last = state
            .last_failure
            .as_ref()
            .map(|failure| format!("; the last one: {failure}"));
        return Some(Outcome::Error {
            reason: format!(
                "{} iterations failed in a row (max_consecutive_failures = {max_failures}){}",
                state.failure_streak,
                last.unwrap_or_default(),
            ),
        });
    }
    let max_streak = policy.max_test_failure_streak;
    let streak = state.stats.test_failure_streak;
    if max_streak > 0 && streak >= max_streak {
        let failed = state.completion.gates.iter().filter(|gate| !gate.passed());
        let failed: Vec<String> = failed.map(|gate| format!("`{}`", gate.name)).collect();
        return Some(Outcome::Condition {
            reason: format!(
                "gates failed {streak} times in a row (max_test_failure_streak = {max_streak}), the last time: {}",
                failed.join(", ")
            ),
        });
    }
    no_progress(policy, state).or_else(|| limit(policy, state))
}

/// Iterations that fail have a limit of their own, which says how they do: behind one of them nothing is judged, unless that is
/// switched off.
fn no_progress(policy: &Policy, state: &State) -> Option<Outcome> {
    let limit = policy.max_no_progress_iterations;
    let count = state.stats.no_progress_count;
    let judged = state.failure_streak == 0 || policy.max_consecutive_failures == 0;
    (limit > 0 && count >= limit && judged).then(|| Outcome::Condition {
        reason: format!(
            "{count} iterations in a row without progress (max_no_progress_iterations = {limit})"
        ),
    })
}

fn limit(policy: &Policy, state: &State) -> Option<Outcome> {
    let limit = policy.max_iterations;
    (limit > 0 && state.next_iteration() > limit)
        .then_some(Outcome::LimitReached { iterations: limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::policy::completion::GateRule;
    use crate::{Claim, Exit, Failure, LoopId, Owed, Stop};

    #[test]
    fn the_limit_counts_iterations_and_a_cut_one_is_owed() {
        let policy = Policy {
            max_iterations: 3,
            ..Policy::default()
        };
        let mut state = State::new(LoopId::from_u128(1));
        state.iteration = 2;
        assert_eq!(verdict(&policy, &state), None);
        state.iteration = 3;
        assert_eq!(
            verdict(&policy, &state),
            Some(Outcome::LimitReached { iterations: 3 })
        );
        state.cut = true;
        assert_eq!(
            verdict(&policy, &state),
            None,
            "the third iteration was cut and is repeated"
        );
        assert_eq!(
            verdict(&Policy::default(), &state),
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
        let Some(Outcome::Error { reason }) = verdict(&policy, &state) else {
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
        assert_eq!(verdict(&Policy::default(), &state), Some(Outcome::Done));
        let mut gated = Policy::default();
        gated.completion.gates = vec![GateRule {
            name: "tests".to_owned(),
            timeout: Duration::ZERO,
            each_iteration: false,
        }];
        assert_eq!(verdict(&gated, &state), Some(Outcome::Operator));
    }
}
