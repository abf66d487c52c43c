//! Truth tables of the stop conditions.

use std::time::Duration;

use super::*;
use crate::policy::AutocommitRules;
use crate::policy::completion::GateRule;
use crate::{Claim, Exit, Failure, LoopId, Owed, QuotaWindow, Stop};

#[test]
fn iteration_limit_does_not_count_an_iteration_that_is_repeated() {
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
fn failure_limit_shows_the_last_failure() {
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
fn accepted_claim_overrides_a_stop_and_refused_claim_does_not() {
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

/// Each condition: how it is set, a state just below the limit, a state that meets it, and the expected reason.
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
        |_, state| state.accounting.ran_ms = 89_999,
        |_, state| state.accounting.ran_ms = 90_000,
        "budget: it ran 90 s of 90 s (max_duration)",
    ),
    (
        "max_quota_percent",
        |policy, _| policy.budgets.quota_percent = 80.0,
        |_, state| state.accounting.quota_reported(window(79.9)),
        |_, state| state.accounting.quota_reported(window(80.0)),
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
        |policy, _| {
            policy.max_no_progress_iterations = 5;
            policy.autocommit = Some(LOOKS);
        },
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

const LOOKS: AutocommitRules = AutocommitRules {
    repository: false,
    commit: false,
    on_failure: false,
    timeout: Duration::ZERO,
};

fn none() -> (Policy, State) {
    let policy = Policy {
        max_consecutive_failures: 0,
        max_test_failure_streak: 0,
        max_no_progress_iterations: 0,
        ..Policy::default()
    };
    (policy, State::new(LoopId::from_u128(1)))
}

#[test]
fn stop_conditions_are_met_at_their_limit_and_off_at_zero() {
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

/// If several conditions are met, the first in the table ends the loop: failures first, then budgets, progress and iterations.
#[test]
fn first_of_several_met_conditions_ends_the_loop() {
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
fn stop_conditions_report_value_and_percent() {
    let (mut policy, mut state) = none();
    policy.max_no_progress_iterations = 5;
    policy.autocommit = Some(LOOKS);
    policy.budgets.cost_microusd = 10_000_000;
    policy.budgets.quota_percent = 90.0;
    state.stats.no_progress_count = 2;
    state.stats.cost_microusd = 3_200_000;
    state.accounting.ran_ms = 3_600_000;
    let now = Timestamp::from_millis(1_000_000);
    let near: Vec<_> = conditions(&policy, &state, now)
        .into_iter()
        .map(|row| (row.words, row.percent, row.exhausted_at))
        .collect();
    let exhausted_at = now.after(Duration::from_secs(7_650));
    let unknown =
        "the agent has not said how much of the subscription's window is used; 90 % may be";
    assert_eq!(
        near,
        [
            (
                "$3.20 of $10.00 is spent".to_owned(),
                32,
                Some(exhausted_at)
            ),
            (unknown.to_owned(), 0, None),
            (
                "2 of 5 iterations in a row without progress".to_owned(),
                40,
                None
            ),
        ]
    );
}
