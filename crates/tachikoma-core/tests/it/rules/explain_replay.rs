//! `explain` shows the reasons for recorded decisions. `replay` repeats the decisions with other rules.

use std::fmt::Write as _;
use std::time::Duration;

use insta::assert_snapshot;
use tachikoma_core::explain::{Explain, Explained, Kind};
use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::replay::{Gap, LaunchRules, Replay, Replayed, Totals};
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
    let mut explain = Explain::new(LoopId::from_u128(1), wanted);
    for record in &play.journal {
        explain.take(record).expect("no gap");
    }
    explain.finish()
}

pub fn told(play: &Play, wanted: Option<u32>) -> String {
    let mut text = String::new();
    for entry in &explained(play, wanted)
        .account
        .expect("the iteration is in the journal")
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
    let mut replay = Replay::new(LoopId::from_u128(1), |_, _| LaunchRules {
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
        let _ = writeln!(
            text,
            "{}: {} | {} | {}",
            difference.iteration, difference.recorded, difference.replayed, difference.by
        );
    }
    let sum = |sum: &Totals| {
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

/// Turns in one conversation until its context is full, a reboot, and turns in the new session.
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
fn explain_shows_reading_redline_and_rate_limits_of_a_reboot() {
    let play = filling();
    assert_snapshot!(told(&play, Some(4)), @"
       iteration 4, attempt 1, session 1: the running agent is prompted
    => the agent is asked to finish: context 70 % (700 of 1 000 tokens), context.warning_percent = 70
       context 86 % (860 of 1 000 tokens), redline 85 %: reached
    => a reboot is due and allowed: context 86 % (860 of 1 000 tokens), redline 85 %: reached; no earlier reboot
    => the turn is ended for a reboot: context 86 % (860 of 1 000 tokens), redline 85 %: reached
       the agent gets the signal: interrupt
       the agent reported failure: without a reason
       1 tool call (Bash 1), 1 reading
       handed over after 2 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => session 1 is rebooted: context 86 % (860 of 1 000 tokens), redline 85 %: reached
       the agent's process ended between two turns: exit 0
       agent  is up (pid 77)
       session 2 began
       session 2 took over after 0 s
    => continued with iteration 5
    ");
    assert_snapshot!(told(&play, Some(1)), @"
       iteration 1, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
       context 20 % (200 of 1 000 tokens), redline 85 %: below
       the agent reported success; it cost $0.2000
       no tool calls, 1 reading
       succeeded after 2 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => the session continues: context 20 % (200 of 1 000 tokens), redline 85 %: below; its quality did not fall
    => waits: iteration_delay is 5 s
    => continued with iteration 2
    ");
}

#[test]
fn explain_shows_failures_waits_and_the_end_with_counts() {
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
    => the session continues: context not known, 0 tool calls of 100 (context.tool_call_threshold); its quality did not fall
    => backoff 1 s: 1st failure in a row, doubled each time up to 1 min
    => continued with iteration 2
    ");
    assert_snapshot!(told(&play, None), @"
       iteration 2, attempt 1, session 1: the agent is launched
       agent  is up (pid 77)
    => the agent is silent (first_output_timeout ran out: the agent said nothing at all): its processes are sampled before it is ended
    => the turn is ended: first_output_timeout ran out: the agent said nothing at all; last activity 2 min 20 s ago
       the agent gets the signal: interrupt
       failed after 2 min 20 s, the 2nd in a row: first_output_timeout ran out: the agent said nothing at all
    => the loop ended: 2 iterations failed in a row (max_consecutive_failures = 2); the last one: first_output_timeout ran out: the agent said nothing at all
    ");
    let end = explained(&play, None).end.expect("the loop ended");
    assert_eq!(end.inputs["outcome"], "error");
    assert_eq!(end.inputs["failures_in_a_row"], 2);
}

#[test]
fn explain_shows_the_rate_limit_that_delays_a_reboot() {
    let mut play = Play::up(talker());
    play.measured(900).resulted(false).exited(0).opened();
    play.seconds(10)
        .measured(100)
        .seconds(5)
        .measured(960)
        .seconds(1)
        .resulted(false);
    assert_snapshot!(told(&play, None), @"
       iteration 2, attempt 1, session 2: the running agent is prompted
       context 10 % (100 of 1 000 tokens), redline 85 %: below
       the reboot helped: the context is at 10 %
       context 96 % (960 of 1 000 tokens), redline 85 %: reached
    => a reboot is due, and allowed in 4 min 45 s: context 96 % (960 of 1 000 tokens), hard limit 95 %: reached; the last reboot 15 s ago, reboot.min_reboot_interval is 5 min; 1 in the last hour, reboot.max_reboots_per_hour = 10
    => the turn is ended for a reboot: context 96 % (960 of 1 000 tokens), hard limit 95 %: reached
       the agent gets the signal: interrupt
       the agent reported failure: without a reason
       no tool calls, 2 readings
       handed over after 16 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => waits 4 min 44 s for the reboot, with no room for another prompt: the last reboot 16 s ago, reboot.min_reboot_interval is 5 min; 1 in the last hour, reboot.max_reboots_per_hour = 10
    ");
}

#[test]
fn explain_shows_a_crash_of_the_runner_within_the_iteration() {
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
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => the session continues: context 10 % (100 of 1 000 tokens), redline 85 %: below; its quality did not fall
       iteration 1, attempt 2, session 1: the agent is launched
       agent  is up (pid 77)
       context 12 % (120 of 1 000 tokens), redline 85 %: below
       the agent reported success
       no tool calls, 1 reading
       succeeded after 0 s
    => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); no claim of completion
    => the session continues: context 12 % (120 of 1 000 tokens), redline 85 %: below; its quality did not fall
    => waits: iteration_delay is 5 s
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
fn explain_of_a_journal_without_reasons_says_that_they_were_not_recorded() {
    let mut play = filling();
    for record in &mut play.journal {
        record.reasons.clear();
    }
    assert_snapshot!(told(&play, Some(4)), @"
       iteration 4, attempt 1, session 1: the running agent is prompted
    => the agent was asked to finish; the reason was not recorded by that version
       context 86 % (860 of 1 000 tokens), redline 85 %: reached
    => a reboot is due: context at 86%; the reason was not recorded by that version
    => the turn is ended for a reboot; the reason was not recorded by that version
       the agent gets the signal: interrupt
       the agent reported failure: without a reason
       1 tool call (Bash 1), 1 reading
       handed over after 2 s
    => session 1 is rebooted: context at 86%; the reason was not recorded by that version
       the agent's process ended between two turns: exit 0
       agent  is up (pid 77)
       session 2 began
       session 2 took over after 0 s
    => continued with iteration 5
    ");
}

#[test]
fn replay_with_a_lower_redline_reboots_earlier() {
    let play = filling();
    let mut other = play.policy.clone();
    other.reboot.redline_percent = 60.0;
    other.reboot.min_interval = Duration::ZERO;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    3: continued | the turn ended for a reboot | the turn is ended for a reboot: context 70 % (700 of 1 000 tokens), redline 60 %: reached
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 2 iterations, 0 reboots, $0.650, 650 tokens, waited 10000 ms, open
    ");
}

#[test]
fn replay_with_a_higher_redline_does_not_reboot() {
    let play = filling();
    let mut other = play.policy.clone();
    other.reboot.redline_percent = 92.0;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    4: the turn ended for a reboot | continued | context 86 % (860 of 1 000 tokens), redline 92 %: below
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 3 iterations, 0 reboots, $1.350, 1350 tokens, waited 15000 ms, open
    ");
    other.reboot.enabled = false;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    4: the agent asked to finish | continued | context 70 % (700 of 1 000 tokens); the agent manages its context itself: reboot.enabled = false
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 3 iterations, 0 reboots, $1.350, 1350 tokens, waited 15000 ms, open
    ");
}

#[test]
fn replay_with_another_limit_or_delay_stops_at_the_first_difference() {
    let play = filling();
    let limit = Policy {
        max_iterations: 2,
        ..play.policy.clone()
    };
    assert_snapshot!(differences(&replayed(&play, &limit)), @"
    2: waited 5 s (delay) | the loop ended: the limit of 2 iterations is reached | 2 of 2 iterations (max_iterations)
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 2 iterations, 0 reboots, $0.650, 650 tokens, waited 5000 ms, the limit of 2 iterations is reached
    ");
    let delay = Policy {
        iteration_delay: Duration::from_secs(60),
        ..play.policy.clone()
    };
    assert_snapshot!(differences(&replayed(&play, &delay)), @"
    1: waited 5 s (delay) | waited 1 min (delay) | waits: iteration_delay is 1 min
    recorded: 6 iterations, 1 reboots, $1.500, 1500 tokens, waited 20000 ms, stopped by the operator
    replayed: 1 iterations, 0 reboots, $0.200, 200 tokens, waited 0 ms, open
    ");
}

#[test]
fn replay_with_another_silence_timeout_samples_the_agent_at_another_time() {
    let mut play = Play::up(super::stream());
    // The agent is silent until its processes are sampled, and then until the silence timeout ends it.
    play.output()
        .sleep()
        .sleep()
        .killed(2)
        .stop(Urgency::Graceful);
    let mut other = play.policy.clone();
    other.timeouts.silence = Duration::from_secs(60);
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    1: continued | the agent's processes sampled after 1 min 3 s: silence_timeout ran out: the agent fell silent | silence_timeout ran out: the agent fell silent
    recorded: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, stopped by the operator
    replayed: 0 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, open
    ");
    other.timeouts.silence = Duration::from_secs(1200);
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    1: the agent's processes sampled after 10 min 30 s: silence_timeout ran out: the agent fell silent | continued | silence_timeout ran out: the agent fell silent
    recorded: 1 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, stopped by the operator
    replayed: 0 iterations, 0 reboots, $0.000, 0 tokens, waited 0 ms, open
    ");
}

#[test]
fn replay_stops_at_the_first_reading_above_a_lower_redline() {
    let mut play = Play::up(talker());
    play.seconds(1).measured(200).priced(200_000, 200).sleep();
    // Both readings belong to one answer of the old session.
    play.seconds(1).measured(700).measured(710);
    play.seconds(1).priced(700_000, 700).sleep();
    let mut other = play.policy.clone();
    other.reboot.redline_percent = 60.0;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    2: continued | the turn ended for a reboot | the turn is ended for a reboot: context 70 % (700 of 1 000 tokens), redline 60 %: reached
    recorded: 2 iterations, 0 reboots, $0.900, 900 tokens, waited 10000 ms, open
    replayed: 1 iterations, 0 reboots, $0.200, 200 tokens, waited 5000 ms, open
    ");
}

#[test]
fn replay_without_a_reboot_interval_invents_no_timeout() {
    let mut play = Play::up(talker());
    play.measured(900).resulted(false).exited(0).opened();
    play.seconds(10).measured(100).seconds(5).measured(960);
    play.seconds(1).resulted(false).sleep().exited(0).opened();
    play.measured(120).seconds(60).resulted(true);
    let mut other = play.policy.clone();
    other.reboot.min_interval = Duration::ZERO;
    assert_snapshot!(differences(&replayed(&play, &other)), @"
    2: a reboot pending (redline), then the turn ended for a reboot | the turn ended for a reboot | the turn is ended for a reboot: context 96 % (960 of 1 000 tokens), hard limit 95 %: reached
    recorded: 3 iterations, 2 reboots, $0.000, 0 tokens, waited 284000 ms, open
    replayed: 1 iterations, 1 reboots, $0.000, 0 tokens, waited 0 ms, open
    ");
}

#[test]
fn replay_counts_records_that_the_recorded_rules_do_not_reproduce() {
    let play = filling();
    let wrong = Policy {
        iteration_delay: Duration::from_secs(9),
        ..play.policy.clone()
    };
    let mut replay = Replay::new(LoopId::from_u128(1), |_, _| LaunchRules {
        recorded: wrong.clone().into(),
        replayed: wrong.clone().into(),
    });
    for record in &play.journal {
        replay.take(record.clone()).expect("no gap");
    }
    let found = replay.finish();
    assert_eq!(found.unexplained, 4, "{found:#?}");
    assert!(!found.differences.is_empty());
}

#[test]
fn replay_of_a_journal_without_inputs_counts_its_records() {
    let mut play = filling();
    for record in &mut play.journal {
        record.input = None;
    }
    let mut other = play.policy.clone();
    other.reboot.redline_percent = 60.0;
    let found = replayed(&play, &other);
    assert_eq!(found.without_inputs, play.journal.len() as u64);
    assert_eq!((found.unexplained, found.differences.len()), (0, 0));
    assert_eq!(found.recorded.iterations, 6);
}

#[test]
fn replay_starts_at_the_first_record_with_an_input() {
    let mut play = filling();
    for record in &mut play.journal {
        record.input = None;
    }
    play.start().launched().seconds(1).resulted(true);
    let other = Policy {
        iteration_delay: Duration::from_secs(60),
        ..play.policy.clone()
    };
    let found = replayed(&play, &other);
    assert_eq!(found.differences[0].iteration, 7);
}

#[test]
fn replay_accepts_a_step_that_a_crash_recorded_only_in_part() {
    for lost in 1..=4 {
        let mut play = filling();
        let synced = play.journal.len() - lost;
        play.crash_after(synced).stop(Urgency::Kill);
        let found = replayed(&play, &play.policy.clone());
        assert_eq!(found.differences, [], "{lost} records lost");
    }
}

#[test]
fn explain_reports_a_missing_record() {
    let mut play = filling();
    play.journal.remove(3);
    let mut explain = Explain::new(LoopId::from_u128(1), None);
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
    assert_eq!(gap.to_string(), "record 4 is missing before record 5");
}
