//! Replays simulated loops. The recorded rules reproduce every record. Replay with other rules stops at the first difference.

use std::time::Duration;

use tachikoma_core::policy::RebootRules;
use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::policy::completion::{CompletionRules, GateRule};
use tachikoma_core::replay::{LaunchRules, Replay, Replayed};
use tachikoma_core::{LoopId, Policy};

use super::Coverage;
use super::world::World;

/// Number of simulated loops that are replayed with other rules.
const LOOPS_OTHERWISE: u64 = 400;

fn replay(world: &World, replayed: &Policy) -> Replayed {
    let loop_id = LoopId::from_u128(0);
    let loop_id = world.journal.first().map_or(loop_id, |r| r.loop_id);
    let mut replay = Replay::new(loop_id, |_, _| LaunchRules {
        recorded: world.policy.clone().into(),
        replayed: replayed.clone().into(),
    });
    for record in &world.journal {
        replay.take(record.clone()).expect("no gap");
    }
    replay.finish()
}

/// Checks that the recorded rules reproduce every record of a simulated loop.
pub fn check_replay(world: &World) {
    let found = replay(world, &world.policy);
    assert_eq!(found.unexplained, 0, "{:?}", found.first_unexplained);
    assert_eq!(found.without_inputs, 0);
    assert_eq!(found.differences, []);
    assert_eq!(found.recorded, found.replayed);
}

#[test]
fn replay_with_other_rules_stops_at_the_first_difference() {
    let (mut differ, mut ended_for_budget, mut done_only) = (0, 0, 0);
    for seed in 0..LOOPS_OTHERWISE {
        let mut world = World::new(seed);
        world.run(&mut Coverage::new());
        for other in others(&world.policy) {
            let found = replay(&world, &other);
            assert_eq!(found.unexplained, 0, "seed {seed}");
            differ += usize::from(!found.differences.is_empty());
            assert!(found.differences.len() <= 1, "seed {seed}");
            let most = other.max_iterations;
            assert!(
                most == 0 || found.replayed.iterations <= most,
                "seed {seed}: {found:#?}"
            );
            let done = found.replayed.outcome.as_deref() == Some("the work is complete");
            let never = other.completion.confirmations == u32::MAX;
            assert!(!(done && never), "seed {seed}: {found:#?}");
            done_only += usize::from(done);
            ended_for_budget += usize::from(spent(&found));
            let ended = found.replayed.outcome.is_some();
            assert!(!(ended && found.goes_on), "seed {seed}");
        }
    }
    assert!(differ > 1_600, "replays with a difference: {differ}");
    assert!(
        ended_for_budget > 100,
        "replays ended by a budget: {ended_for_budget}"
    );
    assert!(
        done_only > 20,
        "replays with an accepted claim: {done_only}"
    );
}

/// Returns whether a budget of the other rules ended the replayed loop.
fn spent(found: &Replayed) -> bool {
    let outcome = found.replayed.outcome.as_deref().unwrap_or_default();
    found.recorded.outcome != found.replayed.outcome
        && ["(max_cost_usd)", "(max_tokens)", "(max_duration)"]
            .iter()
            .any(|key| outcome.ends_with(key))
}

/// Returns policies that differ from the recorded one in one rule each.
fn others(policy: &Policy) -> Vec<Policy> {
    let reboot = |reboot: RebootRules| Policy {
        reboot,
        ..policy.clone()
    };
    let completion = |completion: CompletionRules| Policy {
        completion,
        ..policy.clone()
    };
    let budget = |budgets: Budgets| Policy {
        budgets,
        ..policy.clone()
    };
    let rules = policy.reboot;
    let mut quick = policy.clone();
    quick.timeouts.session = Duration::from_secs(20);
    quick.timeouts.silence = Duration::from_secs(5);
    let mut slow = policy.clone();
    slow.timeouts.session = Duration::ZERO;
    slow.timeouts.silence = Duration::ZERO;
    slow.timeouts.tool = Duration::ZERO;
    slow.timeouts.first_output = Duration::ZERO;
    vec![
        Policy {
            max_iterations: 2,
            ..policy.clone()
        },
        Policy {
            max_iterations: 0,
            max_consecutive_failures: 0,
            ..policy.clone()
        },
        Policy {
            iteration_delay: Duration::from_secs(77),
            fresh_each_iteration: !policy.fresh_each_iteration,
            ..policy.clone()
        },
        quick,
        slow,
        // These rules accept claims that were refused, or refuse claims that were accepted.
        completion(CompletionRules {
            gates: Vec::new(),
            asking: None,
            objectives: false,
            confirmations: 1,
            baseline: policy.completion.baseline,
        }),
        completion(CompletionRules {
            confirmations: u32::MAX,
            ..policy.completion.clone()
        }),
        completion(CompletionRules {
            gates: vec![GateRule {
                name: "another".to_owned(),
                timeout: Duration::from_secs(9),
                each_iteration: true,
            }],
            asking: Some(Duration::from_secs(9)),
            ..policy.completion.clone()
        }),
        Policy {
            max_test_failure_streak: 1,
            stop_patterns: u32::from(policy.stop_patterns == 0),
            ..policy.clone()
        },
        budget(Budgets {
            cost_microusd: 100_000,
            tokens: 20_000,
            ..Budgets::default()
        }),
        budget(Budgets {
            duration: Duration::from_secs(30),
            quota_percent: 50.0,
            ..Budgets::default()
        }),
        budget(Budgets::default()),
        reboot(RebootRules {
            redline_percent: 30.0,
            min_interval: Duration::ZERO,
            ..rules
        }),
        reboot(RebootRules {
            enabled: false,
            ..rules
        }),
        reboot(RebootRules {
            after_iterations: Some(1),
            max_reboots: Some(2),
            ask_hand_off: true,
            hooks_before: Some(Duration::from_secs(9)),
            hooks_after: Some(Duration::from_secs(9)),
            ..rules
        }),
    ]
}
