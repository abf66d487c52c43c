//! Simulated loops decided again: by their own rules nothing differs, and by others the books still close.

use std::time::Duration;

use tachikoma_core::policy::RebootRules;
use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::policy::completion::{CompletionRules, GateRule};
use tachikoma_core::replay::{Replay, Replayed, Rules};
use tachikoma_core::{LoopId, Policy};

use super::Coverage;
use super::world::World;

/// Each is lived through and then decided again.
const LOOPS: u64 = 2_000;
/// Each of these under other sets of rules.
const LOOPS_OTHERWISE: u64 = 400;

fn replay(world: &World, replayed: &Policy) -> Replayed {
    let loop_id = LoopId::from_u128(0);
    let loop_id = world.journal.first().map_or(loop_id, |r| r.loop_id);
    let mut replay = Replay::new(loop_id, |_| Rules {
        recorded: world.policy.clone().into(),
        replayed: replayed.clone().into(),
    });
    for record in &world.journal {
        replay.take(record.clone()).expect("no gap");
    }
    replay.finish()
}

#[test]
fn by_its_own_rules_every_record_of_a_loop_comes_out_again_and_nothing_differs() {
    for seed in 0..LOOPS {
        let mut world = World::new(seed);
        world.run(&mut Coverage::new());
        let found = replay(&world, &world.policy);
        let at = found.first_unexplained.map_or(0, |seq| seq.0);
        let around: Vec<String> = world
            .journal
            .iter()
            .filter(|r| r.seq.0 + 8 > at && r.seq.0 < at + 8)
            .map(|r| format!("{} {} {:?}", r.seq, r.time, r.event))
            .collect();
        assert_eq!(
            found.unexplained,
            0,
            "seed {seed}: {at}\n{}",
            around.join("\n")
        );
        assert_eq!(found.differences, [], "seed {seed}");
        assert_eq!(found.recorded, found.replayed, "seed {seed}");
        assert!(!found.estimated, "seed {seed}");
    }
}

#[test]
fn by_any_other_rules_the_books_close_and_a_limit_is_kept() {
    let (mut differ, mut ended_for_budget, mut done_only) = (0, 0, 0);
    for seed in 0..LOOPS_OTHERWISE {
        let mut world = World::new(seed);
        world.run(&mut Coverage::new());
        for other in others(&world.policy) {
            let found = replay(&world, &other);
            assert_eq!(found.unexplained, 0, "seed {seed}");
            differ += usize::from(!found.differences.is_empty());
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
    assert!(differ > 1_600, "other rules decide otherwise: {differ}");
    assert!(ended_for_budget > 300, "budgets end it: {ended_for_budget}");
    assert!(done_only > 50, "claims are believed: {done_only}");
}

/// Whether a budget of the other rules ended the loop.
fn spent(found: &Replayed) -> bool {
    let outcome = found.replayed.outcome.as_deref().unwrap_or_default();
    found.recorded.outcome != found.replayed.outcome
        && ["(max_cost_usd)", "(max_tokens)", "(max_duration)"]
            .iter()
            .any(|key| outcome.ends_with(key))
}

/// Rules that differ in one thing each.
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
        // What was refused is believed, and the other way round.
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
