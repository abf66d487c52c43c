//! Why a loop did what it did, and what it would have done by other rules.

use std::fmt::Write as _;
use std::time::Duration;

use insta::assert_snapshot;
use tachikoma_core::explain::{Explain, Explained, Kind};
use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::replay::{Gap, Replay, Replayed, Rules};
use tachikoma_core::{LoopId, Policy, Seq, Urgency};

use crate::play::Play;

pub fn talker() -> Policy {
    Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            tells_cost: false,
            refuses_before: None,
        },
        reboot: RebootRules {
            ask_hand_off: false,
            ..RebootRules::default()
        },
        ..Policy::default()
    }
}

pub fn explained(play: &Play, wanted: Option<u32>) -> Explained {
    let mut explain = Explain::new(LoopId::from_u128(1), wanted, |_| play.policy.clone());
    for record in &play.journal {
        explain.take(record).expect("no gap");
    }
    explain.finish()
}

pub fn told(play: &Play, wanted: Option<u32>) -> String {
    let mut text = String::new();
    for entry in &explained(play, wanted)
        .account
        .expect("there is one")
        .entries
    {
        let mark = match entry.kind {
            Kind::Fact => "  ",
            Kind::Decision => "=>",
        };
        let _ = writeln!(text, "{mark} {}", entry.words);
    }
    text
}

pub fn replayed(play: &Play, other: &Policy) -> Replayed {
    let mut replay = Replay::new(LoopId::from_u128(1), |_| Rules {
        recorded: play.policy.clone().into(),
        replayed: other.clone().into(),
    });
    for record in &play.journal {
        replay.take(record.clone()).expect("no gap");
    }
    let found = replay.finish();
    assert_eq!(found.unexplained, 0, "{found:#?}");
    found
}

pub fn differences(found: &Replayed) -> String {
    let mut text = String::new();
    for difference in &found.differences {
        let guess = if difference.estimated {
            " (estimated)"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "{}-{}{guess}: {} | {} | {}",
            difference.iteration,
            difference.to,
            difference.recorded,
            difference.replayed,
            difference.by
        );
    }
    let sum = |sum: &tachikoma_core::replay::Sum| {
        format!(
            "{} iterations, {} reboots, ${:.3}, {} tokens, waited {} ms, {}",
            sum.iterations,
            sum.reboots,
            sum.cost_usd,
            sum.tokens,
            sum.waited_ms,
            sum.outcome.as_deref().unwrap_or("open")
        )
    };
    let _ = writeln!(text, "recorded: {}", sum(&found.recorded));
    let _ = writeln!(text, "replayed: {}", sum(&found.replayed));
    text
}

/// Four turns in one conversation that fills up, a reboot, and a fifth in the fresh one.
fn filling() -> Play {
    let mut play = Play::up(talker());
    for tokens in [200, 450, 700] {
        play.seconds(1)
            .measured(tokens)
            .seconds(1)
            .priced(tokens * 1_000, tokens)
            .sleep();
    }
    play.tool("t1").seconds(1).tool_ended("t1").measured(860);
    play.seconds(1).resulted(false).exited(0).opened();
    play.seconds(1).measured(150).priced(150_000, 150).sleep();
    play.measured(170).stop(Urgency::Graceful).resulted(false);
    play
}

#[test]
fn a_redline_is_told_with_the_reading_the_line_and_the_rate_limits() {
    let play = filling();
    assert_snapshot!(told(&play, Some(4)), @"
       iteration 4, attempt 1, session 1: the agent that is up is prompted
    => told the agent to come to an end: context 70 % (700 of 1 000 tokens), context.warning_percent = 70
       context 86 % (860 of 1 000 tokens), redline 85 %: reached
    => a reboot is wanted and may happen: context 86 % (860 of 1 000 tokens), redline 85 %: reached; no reboot before it
    => the turn is ended for a reboot: context 86 % (860 of 1 000 tokens), redline 85 %: reached
       the agent is signalled: interrupt
       the agent reported failure: without a reason
       1 tool call (Bash 1), 1 reading
       handed over after 2 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => session 1 is rebooted: context 86 % (860 of 1 000 tokens), redline 85 %: reached
       the agent's process ended between two turns: exit 0
       agent  is up (pid 77)
       session 2 began
       session 2 took over after 0 s
    => went on with iteration 5
    ");
    assert_snapshot!(told(&play, Some(1)), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       context 20 % (200 of 1 000 tokens), redline 85 %: below
       the agent reported success; it cost $0.2000
       no tool calls, 1 reading
       succeeded after 2 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => the session goes on: context 20 % (200 of 1 000 tokens), redline 85 %: below; not worse than before
    => waited 5 s: iteration_delay
    => went on with iteration 2
    ");
}

#[test]
fn failures_waits_and_the_end_are_told_with_their_counts() {
    let mut play = Play::up(Policy {
        max_consecutive_failures: 2,
        ..super::stream()
    });
    play.seconds(1).exited(7).sleep().launched();
    play.sleep().sleep().killed(2);
    assert_snapshot!(told(&play, Some(1)), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       failed after 1 s, the 1st in a row: the agent ended with exit 7 and without a final result
    => no stop condition is met: 1 of 2 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => the session goes on: context not known, 0 tool calls of 100 (context.tool_call_threshold); not worse than before
    => backoff 1 s: 1st failure in a row, doubled each time up to 1 min
    => went on with iteration 2
    ");
    assert_snapshot!(told(&play, None), @"
       iteration 2, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
    => nothing is heard of the agent (first_output_timeout ran out: the agent said nothing at all): its processes are looked at before it is ended
    => the turn is ended: first_output_timeout ran out: the agent said nothing at all; last heard of 2 min 20 s ago
       the agent is signalled: interrupt
       failed after 2 min 20 s, the 2nd in a row: first_output_timeout ran out: the agent said nothing at all
    => the loop ended: 2 iterations failed in a row (max_consecutive_failures = 2); the last one: first_output_timeout ran out: the agent said nothing at all
    ");
    let end = explained(&play, None).end.expect("it ended");
    assert_eq!(end.inputs["outcome"], "error");
    assert_eq!(end.inputs["failures_in_a_row"], 2);
}

#[test]
fn a_reboot_that_has_to_wait_is_told_with_what_holds_it_back() {
    let mut play = Play::up(talker());
    play.measured(900).resulted(false).exited(0).opened();
    play.seconds(10)
        .measured(100)
        .seconds(5)
        .measured(960)
        .seconds(1)
        .resulted(false);
    assert_snapshot!(told(&play, None), @"
       iteration 2, attempt 1, session 2: the agent that is up is prompted
       context 10 % (100 of 1 000 tokens), redline 85 %: below
       the reboot was worth it: the context is at 10 %
       context 96 % (960 of 1 000 tokens), hard limit 95 %: takes no prompt any more
    => a reboot is wanted and pending for 4 min 45 s: context 96 % (960 of 1 000 tokens), hard limit 95 %: takes no prompt any more; the last reboot 15 s ago, reboot.min_reboot_interval is 5 min; 1 in the last hour, reboot.max_reboots_per_hour = 10
    => the turn is ended for a reboot: context 96 % (960 of 1 000 tokens), hard limit 95 %: takes no prompt any more
       the agent is signalled: interrupt
       the agent reported failure: without a reason
       no tool calls, 2 readings
       handed over after 16 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => waited 4 min 44 s for the reboot, with no room for another prompt: the last reboot 16 s ago, reboot.min_reboot_interval is 5 min; 1 in the last hour, reboot.max_reboots_per_hour = 10
    ");
}

#[test]
fn a_death_of_the_runner_is_part_of_the_iteration() {
    let mut play = Play::up(talker());
    play.measured(100)
        .seconds(3)
        .crash()
        .launched()
        .measured(120)
        .resulted(true);
    assert_snapshot!(told(&play, None), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       context 10 % (100 of 1 000 tokens), redline 85 %: below
       the runner died; another one took up the loop
       no tool calls, 1 reading
       attempt 1 was cut by the death of the runner; the iteration is repeated
       iteration 1, attempt 2, session 1: the agent is launched
       agent  is up (pid 77)
       context 12 % (120 of 1 000 tokens), redline 85 %: below
       the agent reported success
       no tool calls, 1 reading
       succeeded after 0 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => the session goes on: context 12 % (120 of 1 000 tokens), redline 85 %: below; not worse than before
    => waited 5 s: iteration_delay
    ");
    assert_eq!(
        explained(&play, None)
            .account
            .map(|account| account.attempts),
        Some(2)
    );
    assert!(explained(&play, Some(9)).account.is_none());
}

#[test]
fn a_lower_redline_empties_the_context_earlier() {
    let play = filling();
    let mut other = play.policy.clone();
    other.reboot.redline_percent = 60.0;
    other.reboot.min_interval = Duration::ZERO;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    3-3 (estimated): waited 5 s (delay) | the turn ended for a reboot, then rebooted (redline) | context 70 % (700 of 1 000 tokens), redline 60 %: reached
    4-4 (estimated): the agent told to come to an end, then the turn ended for a reboot, then rebooted (redline) | waited 5 s (delay) | context 36 % (360 of 1 000 tokens, estimated), redline 60 %: below
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 6 iterations, 1 reboots, $1.500, 1710 tokens, waited 20000 ms, stopped by the operator
    ");
}

#[test]
fn a_higher_redline_leaves_the_context_full() {
    let play = filling();
    let mut other = play.policy.clone();
    other.reboot.redline_percent = 92.0;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    4-4 (estimated): the agent told to come to an end, then the turn ended for a reboot, then rebooted (redline) | the agent told to come to an end, then waited 5 s (delay) | context 86 % (860 of 1 000 tokens), redline 92 %: below
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 6 iterations, 0 reboots, $1.500, 2210 tokens, waited 25000 ms, stopped by the operator
    ");
    other.reboot.enabled = false;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    4-4 (estimated): the agent told to come to an end, then the turn ended for a reboot, then rebooted (redline) | waited 5 s (delay) | context 86 % (860 of 1 000 tokens); its fill is the agent's own matter: reboot.enabled = false
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 6 iterations, 0 reboots, $1.500, 2210 tokens, waited 25000 ms, stopped by the operator
    ");
}

#[test]
fn other_limits_and_waits_are_found_and_nothing_counts_after_an_end() {
    let play = filling();
    let limit = Policy {
        max_iterations: 2,
        ..play.policy.clone()
    };
    assert_snapshot!(differences(&replayed(&play, &limit)), @"
    2-2: waited 5 s (delay) | the loop ended: the limit of 2 iterations is reached | max_iterations: the limit of 2 iterations is reached
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 2 iterations, 0 reboots, $0.650, 650 tokens, waited 5000 ms, the limit of 2 iterations is reached
    ");
    let delay = Policy {
        iteration_delay: Duration::from_secs(60),
        ..play.policy.clone()
    };
    assert_snapshot!(differences(&replayed(&play, &delay)), @"
    1-3: waited 5 s (delay) | waited 1 min (delay) | iteration_delay
    5-5: waited 5 s (delay) | waited 1 min (delay) | iteration_delay
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 240000 ms, stopped by the operator
    ");
}

#[test]
fn whoever_hangs_hangs_until_the_other_time_out() {
    let mut play = Play::up(super::stream());
    // Silent until it is looked at, and then until it is given up.
    play.output()
        .sleep()
        .sleep()
        .killed(2)
        .stop(Urgency::Graceful);
    let mut other = play.policy.clone();
    other.timeouts.silence = Duration::from_secs(60);
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    1-1: the turn ended after 10 min 50 s: silence_timeout ran out: the agent fell silent, then waited 1 s (backoff), then the loop ended: stopped by the operator | the turn ended after 1 min 23 s: silence_timeout ran out: the agent fell silent, then waited 1 s (backoff), then the loop ended: stopped by the operator | silence_timeout ran out: the agent fell silent
    recorded: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, stopped by the operator
    replayed: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 1000 ms, stopped by the operator
    ");
    other.timeouts.silence = Duration::from_secs(1200);
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    1-1 (estimated): the turn ended after 10 min 50 s: silence_timeout ran out: the agent fell silent, then waited 1 s (backoff), then the loop ended: stopped by the operator | the turn ended after 21 min: silence_timeout ran out: the agent fell silent, then waited 1 s (backoff), then the loop ended: stopped by the operator | silence_timeout ran out: the agent fell silent
    recorded: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, stopped by the operator
    replayed: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, stopped by the operator
    ");
}

#[test]
fn what_was_decided_by_other_rules_than_were_recorded_is_counted_and_not_hidden() {
    let play = filling();
    let wrong = Policy {
        iteration_delay: Duration::from_secs(9),
        ..play.policy.clone()
    };
    let mut replay = Replay::new(LoopId::from_u128(1), |_| Rules {
        recorded: wrong.clone().into(),
        replayed: wrong.clone().into(),
    });
    for record in &play.journal {
        replay.take(record.clone()).expect("no gap");
    }
    let found = replay.finish();
    assert_eq!(found.unexplained, 4, "{found:#?}");
    assert!(!found.differences.is_empty());
    // The facts were heard all the same.
    assert_eq!(found.replayed.iterations, found.recorded.iterations);
    assert_eq!(found.replayed.reboots, found.recorded.reboots);
}

#[test]
fn a_record_that_is_missing_is_said() {
    let mut play = filling();
    play.journal.remove(3);
    let mut explain = Explain::new(LoopId::from_u128(1), None, |_| Policy::default());
    let results: Vec<_> = play
        .journal
        .iter()
        .map(|record| explain.take(record))
        .collect();
    let gap = Gap {
        expected: Seq(4),
        found: Seq(5),
    };
    assert_eq!(results[3], Err(gap));
    assert_eq!(gap.to_string(), "record 5 stands where record 4 ought to");
}
