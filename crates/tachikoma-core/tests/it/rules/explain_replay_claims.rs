//! `explain` and `replay` of loops that end by claims, gates, stop scripts, stop patterns and budgets.

use std::time::Duration;

use insta::assert_snapshot;
use tachikoma_core::policy::AutocommitRules;
use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::replay::{LaunchRules, Replay, Rules};
use tachikoma_core::{AgentInput, LoopId, Policy, ScriptVerdict, TurnEnd, Urgency};

use super::completion::gated;
use super::explain_replay::{differences, explained, replayed, talker, told};
use crate::play::Play;

const PASS: &[(&str, Option<&str>)] = &[("tests", None), ("lint", None)];
const FAIL: &[(&str, Option<&str>)] = &[("tests", Some("exit 1")), ("lint", None)];

/// A loop with a claim that gates refuse, an iteration without a claim, and a claim that the gates confirm.
fn claims() -> Play {
    let mut play = Play::up(gated(&["tests", "lint"]));
    play.seconds(1).claimed().seconds(3).gates(FAIL);
    play.sleep().launched().seconds(1).exited(0);
    play.sleep().launched().seconds(1).done(Some("at last"));
    play.exited(0).seconds(3).gates(PASS);
    play
}

fn priced(budgets: Budgets) -> Policy {
    let mut policy = Policy {
        budgets,
        ..talker()
    };
    policy.agent.tells_cost = true;
    policy
}

/// A loop with three turns. Each reports a cost of half a dollar and 500 tokens while it runs.
fn spending(budgets: Budgets) -> Play {
    let mut play = Play::up(priced(budgets));
    for turn in 0..3 {
        let before = turn * 500_000;
        play.cost(before).seconds(10).called(250);
        play.cost(before + 250_000).seconds(10).called(250);
        play.cost(before + 500_000).priced(500_000, 500).sleep();
    }
    play.stop(Urgency::Graceful).resulted(false);
    play
}

fn dollars(cost_microusd: u64) -> Budgets {
    Budgets {
        cost_microusd,
        ..Budgets::default()
    }
}

#[test]
fn explain_shows_a_refused_claim_with_its_doubts() {
    let play = claims();
    assert_snapshot!(told(&play, Some(1)), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       succeeded after 1 s; it claims that the work is complete
    => gates run (tests, lint): completion is claimed by the agent's promise
       the gate `tests` failed after 7 ms: exit 1; the gate `lint` passed after 7 ms
    => completion is claimed by the agent's promise, and refused: the gate `tests` failed: exit 1
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); 1 of 3 failing runs of gates in a row (stop_conditions.max_test_failure_streak); the claim of completion was refused
    => the session continues: context not known, 0 tool calls of 100 (context.tool_call_threshold); its quality did not fall
    => waits: iteration_delay is 5 s
    => continued with iteration 2
    ");
    assert_snapshot!(told(&play, Some(3)), @"
       iteration 3, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       `tachikoma done` claims that the work is complete: at last
       succeeded after 1 s
    => gates run (tests, lint): completion is claimed by `tachikoma done` (at last)
       the gate `tests` passed after 7 ms; the gate `lint` passed after 7 ms
    => the loop ended: the work is complete: completion is claimed by `tachikoma done` (at last); the gate `tests` passed after 7 ms; the gate `lint` passed after 7 ms
    ");
    let found = explained(&play, Some(1))
        .account
        .expect("iteration 1 is in the journal");
    let refused = found.entries.iter().find(|e| e.words.contains("refused"));
    let inputs = &refused.expect("the refusal is explained").inputs;
    assert_eq!(inputs["gates"][0]["name"], "tests");
    assert_eq!(inputs["gates"][0]["passed"], false);
    assert_eq!(inputs["gates"][1]["passed"], true);
    assert_eq!(inputs["claims"][0]["by"], "promise");
}

#[test]
fn explain_shows_stop_scripts_objectives_and_canceled_checks() {
    let mut policy = gated(&["tests"]);
    policy.completion.asking = Some(Duration::from_secs(40));
    policy.completion.objectives = true;
    let mut play = Play::new(policy);
    play.start().objectives("- [ ] a\n- [ ] b").launched();
    play.exited(0).objectives("- [x] a\n- [ ] b").sleep();
    play.launched()
        .claimed()
        .objectives("- [x] a\n- [x] b")
        .sleep();
    play.launched().exited(0).scripts(ScriptVerdict::Stop);
    assert_snapshot!(told(&play, Some(1)), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       succeeded after 0 s
    => objectives are read and stop scripts run
       1 of 2 objectives are ticked
       progress 10 of 100: 10 for 1 objective ticked
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); 0 of 3 failing runs of gates in a row (stop_conditions.max_test_failure_streak); no claim of completion
    => the session continues: context not known, 0 tool calls of 100 (context.tool_call_threshold); its quality did not fall
    => waits: iteration_delay is 5 s
    => continued with iteration 2
    ");
    assert_snapshot!(told(&play, Some(2)), @"
       iteration 2, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       succeeded after 0 s; it claims that the work is complete
    => objectives are read and stop scripts run
       2 of 2 objectives are ticked
    => gates run (tests): completion is claimed by the agent's promise, the objectives, all of which are ticked
    => the check is given up: the gates did not end in time
    => completion is claimed by the agent's promise, the objectives, all of which are ticked, and refused: the gates did not end in time
       progress 10 of 100: 10 for 1 objective ticked
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); 0 of 3 failing runs of gates in a row (stop_conditions.max_test_failure_streak); the claim of completion was refused
    => the session continues: context not known, 0 tool calls of 100 (context.tool_call_threshold); its quality did not fall
    => continued with iteration 3
    ");
    assert_snapshot!(told(&play, None), @"
       iteration 3, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       succeeded after 0 s
    => objectives are read and stop scripts run
       the stop script `ask.sh` ends the loop: words
    => the loop has to end: the stop script `ask.sh` ended the loop: words
    => the loop ended: the stop script `ask.sh` ended the loop: words
    ");
}

#[test]
fn a_stop_while_gates_run_is_explained_as_the_end_of_the_loop() {
    let mut play = Play::up(gated(&["tests"]));
    play.seconds(1).claimed().stop(Urgency::Graceful);
    assert_snapshot!(told(&play, None), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       succeeded after 1 s; it claims that the work is complete
    => gates run (tests): completion is claimed by the agent's promise
    => stopped by the operator while gates ran (tests): the result was not waited for, and the next run repeats the check
    => the loop ended: stopped by the operator
    ");
    let mut policy = gated(&["tests"]);
    policy.autocommit = Some(AutocommitRules {
        repository: true,
        commit: true,
        on_failure: false,
        timeout: Duration::from_secs(60),
    });
    let mut play = Play::up(policy);
    play.seconds(1).claimed().kept(1, 1);
    play.stop(Urgency::Graceful).kept(0, 0);
    assert_snapshot!(told(&play, None), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       succeeded after 1 s; it claims that the work is complete
    => the changes of the loop are committed, as succeeded
       1 file changed, committed as 0000001
    => gates run (tests): completion is claimed by the agent's promise
    => stopped by the operator while gates ran (tests): the result was not waited for, and the next run repeats the check
    => the changes of the loop are committed, as end
    => the loop ended: stopped by the operator
    ");
    play.hush().start();
    assert!(play.log().contains("CheckStarted(claimed, gates"));
}

#[test]
fn explain_shows_the_budget_that_ends_a_turn() {
    let mut policy = priced(Budgets {
        cost_microusd: 1_000_000,
        tokens: 90_000,
        duration: Duration::from_secs(3600),
        quota_percent: 90.0,
    });
    policy.max_iterations = 9;
    let mut play = Play::up(policy);
    play.cost(0).quota("five_hour", 41.0, None);
    play.seconds(9).called(700).cost(400_000).tool("t1");
    play.seconds(9).called(600).cost(1_100_000).tool_ended("t1");
    play.resulted(false);
    assert_snapshot!(told(&play, None), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       41 % of the subscription's window `five_hour` is used
    => a stop condition is met: $1.10 of $1.00 is spent (max_cost_usd)
    => the loop ends without waiting for the turn or for hooks: $1.10 of $1.00 is spent (max_cost_usd)
    => the turn is ended: $1.10 of $1.00 is spent (max_cost_usd); a tool call or an answer in flight may end first (session.graceful_timeout)
       the agent gets the signal: interrupt
       the agent reported failure: without a reason
       1 tool call (Bash 1), 2 calls of the model (1 300 tokens)
       interrupted after 18 s
    => the loop ended: $1.10 of $1.00 is spent (max_cost_usd)
    ");
    let end = explained(&play, None).end.expect("the loop ended");
    assert_eq!(end.inputs["outcome"], "budget");
    let met = end.inputs["stop_conditions"].as_array().expect("a list");
    let met = met.iter().find(|c| c["met"] == true).expect("one is met");
    assert_eq!(met["key"], "stop_conditions.max_cost_usd");
    assert_eq!(
        (&met["value"], &met["limit"]),
        (&"$1.10".into(), &"$1.00".into())
    );
}

#[test]
fn replay_judges_claims_with_other_gates_and_confirmations() {
    let play = claims();
    let mut other = play.policy.clone();
    other.completion.gates.remove(0);
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    1: gates run (tests, lint) | gates run (lint) | completion is claimed by the agent's promise
    recorded: 3 iterations, 0 reboots, $0.000, 0 tokens, waited 7000 ms, the work is complete
    replayed: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, open
    ");
    other = play.policy.clone();
    other.completion.confirmations = 2;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    3: the loop ended: the work is complete | a claim of completion refused, then waited 5 s (delay) | this is claim 1 of 2 in a row; review the work, and claim completion again if it is complete
    recorded: 3 iterations, 0 reboots, $0.000, 0 tokens, waited 7000 ms, the work is complete
    replayed: 3 iterations, 0 reboots, $0.000, 0 tokens, waited 7000 ms, open
    ");
    // `fuzz` has no recorded result, so replay stops where it would run.
    other = gated(&["tests", "lint", "fuzz"]);
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    1: gates run (tests, lint) | gates run (tests, lint, fuzz) | completion is claimed by the agent's promise
    recorded: 3 iterations, 0 reboots, $0.000, 0 tokens, waited 7000 ms, the work is complete
    replayed: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, open
    ");
    // The gate ran only for claims. With `each_iteration`, replay stops where it would also run without a claim.
    other = play.policy.clone();
    other.completion.gates[0].each_iteration = true;
    other.max_test_failure_streak = 2;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    2: waited 5 s (delay) | gates run (tests) | they run after every successful iteration
    recorded: 3 iterations, 0 reboots, $0.000, 0 tokens, waited 7000 ms, the work is complete
    replayed: 2 iterations, 0 reboots, $0.000, 0 tokens, waited 2000 ms, open
    ");
    other = play.policy.clone();
    other.max_test_failure_streak = 1;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    1: a claim of completion refused, then waited 5 s (delay) | a claim of completion refused, then the loop ended: gates failed 1 times in a row (max_test_failure_streak = 1), the last time: `tests` | gates failed 1 times in a row (max_test_failure_streak = 1), the last time: `tests`
    recorded: 3 iterations, 0 reboots, $0.000, 0 tokens, waited 7000 ms, the work is complete
    replayed: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, gates failed 1 times in a row (max_test_failure_streak = 1), the last time: `tests`
    ");
}

#[test]
fn replay_with_another_budget_ends_the_loop_where_it_is_used_up() {
    let play = spending(dollars(5_000_000));
    assert_snapshot!(differences(&replayed(&play, &priced(dollars(700_000)))), @"
    2: continued | the turn interrupted | the turn is ended: $0.7500 of $0.7000 is spent (max_cost_usd)
    recorded: 4 iterations, 0 reboots, $1.500, 1500 tokens, waited 15000 ms, stopped by the operator
    replayed: 1 iterations, 0 reboots, $0.750, 750 tokens, waited 5000 ms, open
    ");
    let tokens = Budgets {
        tokens: 1_000,
        ..Budgets::default()
    };
    assert_snapshot!(differences(&replayed(&play, &priced(tokens))), @"
    2: continued | the turn interrupted | the turn is ended: 1000 of 1000 tokens are used (max_tokens)
    recorded: 4 iterations, 0 reboots, $1.500, 1500 tokens, waited 15000 ms, stopped by the operator
    replayed: 1 iterations, 0 reboots, $0.750, 1000 tokens, waited 5000 ms, open
    ");
    let duration = Budgets {
        duration: Duration::from_secs(32),
        ..Budgets::default()
    };
    assert_snapshot!(differences(&replayed(&play, &priced(duration))), @"
    2: continued | the turn interrupted | the turn is ended: it ran 32 s of 32 s (max_duration)
    recorded: 4 iterations, 0 reboots, $1.500, 1500 tokens, waited 15000 ms, stopped by the operator
    replayed: 1 iterations, 0 reboots, $0.500, 500 tokens, waited 5000 ms, open
    ");
    let duration = Budgets {
        duration: Duration::from_secs(22),
        ..Budgets::default()
    };
    assert_snapshot!(differences(&replayed(&play, &priced(duration))), @"
    1: continued | the loop ended: it ran 22 s of 22 s (max_duration) | it ran 22 s of 22 s (max_duration)
    recorded: 4 iterations, 0 reboots, $1.500, 1500 tokens, waited 15000 ms, stopped by the operator
    replayed: 1 iterations, 0 reboots, $0.500, 500 tokens, waited 2000 ms, it ran 22 s of 22 s (max_duration)
    ");
}

#[test]
fn replay_checks_a_budget_that_the_loop_did_not_have_at_the_end_of_each_turn() {
    let mut play = Play::up(priced(Budgets::default()));
    for _ in 0..3 {
        play.seconds(20).priced(500_000, 500).sleep();
    }
    assert_snapshot!(differences(&replayed(&play, &priced(dollars(700_000)))), @"
    2: waited 5 s (delay) | the loop ended: $1.0000 of $0.7000 is spent (max_cost_usd) | $1.0000 of $0.7000 is spent (max_cost_usd)
    recorded: 3 iterations, 0 reboots, $1.500, 1500 tokens, waited 15000 ms, open
    replayed: 2 iterations, 0 reboots, $1.000, 1000 tokens, waited 5000 ms, $1.0000 of $0.7000 is spent (max_cost_usd)
    ");
}

#[test]
fn replay_with_a_larger_budget_does_not_end_the_turn() {
    let mut play = Play::up(priced(dollars(700_000)));
    play.cost(0).called(500).cost(500_000).priced(500_000, 500);
    play.sleep().seconds(9).called(300).cost(800_000);
    play.seconds(1).resulted(false);
    assert_snapshot!(differences(&replayed(&play, &priced(dollars(5_000_000)))), @"
    2: the turn interrupted | continued | no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); $0.80 of $5.00 is spent (stop_conditions.max_cost_usd)
    recorded: 2 iterations, 0 reboots, $0.800, 800 tokens, waited 5000 ms, $0.8000 of $0.7000 is spent (max_cost_usd)
    replayed: 1 iterations, 0 reboots, $0.800, 800 tokens, waited 5000 ms, open
    ");
}

#[test]
fn replay_without_a_stop_pattern_does_not_end() {
    let mut policy = talker();
    policy.stop_patterns = 2;
    let mut play = Play::up(policy);
    let blocked = AgentInput::TurnEnded(TurnEnd {
        success: true,
        stop_pattern: Some("^BLOCKED".to_owned()),
        ..TurnEnd::default()
    });
    play.seconds(1).event("blocked", blocked);
    assert_snapshot!(told(&play, None), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       the agent reported success
       its final words match the pattern `^BLOCKED` (stop_conditions.stop_on_patterns)
       succeeded after 1 s
    => a stop condition is met: the agent's words match the pattern `^BLOCKED` (stop_on_patterns)
    => the loop ended: the agent's words match the pattern `^BLOCKED` (stop_on_patterns)
    ");
    let ended = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
        let mut policy = play.policy.clone();
        policy.stop_patterns = u32::try_from(patterns.len()).expect("few");
        let mut replay = Replay::new(LoopId::from_u128(1), |_, _| LaunchRules {
            recorded: play.policy.clone().into(),
            replayed: Rules {
                policy: policy.clone(),
                stop_patterns: Some(patterns.clone()),
            },
        });
        for record in &play.journal {
            replay.take(record.clone()).expect("no gap");
        }
        replay.finish().replayed.outcome.is_some()
    };
    assert!(ended(&["^BLOCKED", "^STUCK"]));
    assert!(
        !ended(&["^STUCK"]),
        "only the pattern that did not match is left"
    );
    assert!(!ended(&[]));
}
