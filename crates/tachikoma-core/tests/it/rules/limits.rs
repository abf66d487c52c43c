//! Errors of the model's service: usage limits, outages, broken conversations, and problems that a retry cannot solve.

use std::time::Duration;

use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::{Policy, Problem, Timestamp};

use crate::play::Play;

fn session() -> Policy {
    Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            tells_cost: false,
            refuses_before: None,
        },
        iteration_delay: Duration::ZERO,
        ..Policy::default()
    }
}

fn limited(play: &Play, after_seconds: Option<u64>) -> Option<Problem> {
    let until = after_seconds.map(|s| play.state.time.after(Duration::from_secs(s)));
    Some(Problem::Limited { until })
}

#[test]
fn usage_limit_that_lasts_longer_than_announced_is_retried_with_growing_margins() {
    let mut play = Play::up(session());
    play.named("one").hush();
    let reset = limited(&play, Some(3600));
    for _ in 0..6 {
        play.failed("resets at one", reset.clone()).sleep();
    }
    play.resulted(true);
    insta::assert_snapshot!(play.log(), @"
    0.0 failed: TurnResulted(false), IterationLimited(1 attempt 1: resets at one; streak 1), WaitStarted(usage_limit 3605s)
    3605.0 wake: IterationStarted(1 attempt 2) ! prompt
    3605.0 failed: TurnResulted(false), IterationLimited(1 attempt 2: resets at one; streak 2), WaitStarted(usage_limit 10s)
    3615.0 wake: IterationStarted(1 attempt 3) ! prompt
    3615.0 failed: TurnResulted(false), IterationLimited(1 attempt 3: resets at one; streak 3), WaitStarted(usage_limit 20s)
    3635.0 wake: IterationStarted(1 attempt 4) ! prompt
    3635.0 failed: TurnResulted(false), IterationLimited(1 attempt 4: resets at one; streak 4), WaitStarted(usage_limit 40s)
    3675.0 wake: IterationStarted(1 attempt 5) ! prompt
    3675.0 failed: TurnResulted(false), IterationLimited(1 attempt 5: resets at one; streak 5), WaitStarted(usage_limit 80s)
    3755.0 wake: IterationStarted(1 attempt 6) ! prompt
    3755.0 failed: TurnResulted(false), IterationLimited(1 attempt 6: resets at one; streak 6), WaitStarted(usage_limit 160s)
    3915.0 wake: IterationStarted(1 attempt 7) ! prompt
    3915.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), IterationStarted(2 attempt 1) ! prompt
    ");
    assert_eq!(play.state.limit_streak, 0);
}

#[test]
fn loop_waits_until_the_usage_limit_resets_and_repeats_the_iteration() {
    let mut play = Play::up(session());
    play.named("one").hush();
    let problem = limited(&play, Some(7200));
    play.failed("you have hit your limit", problem);
    play.crash().sleep().launched().resulted(true);
    insta::assert_snapshot!(play.log(), @"
    0.0 failed: TurnResulted(false), IterationLimited(1 attempt 1: you have hit your limit; streak 1), WaitStarted(usage_limit 7205s)
    0.0 start: Started(after crash), WaitStarted(usage_limit 7205s)
    7205.0 wake: IterationStarted(1 attempt 2) ! launch in one
    7205.0 launched: AgentLaunched(77)
    7205.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), IterationStarted(2 attempt 1) ! prompt
    ");
    assert_eq!(play.state.stats.iterations, 1);
    assert_eq!((play.state.failure_streak, play.state.limit_streak), (0, 0));
}

#[test]
fn usage_limit_without_a_reset_time_is_retried_after_growing_waits() {
    let mut play = Play::up(session());
    play.named("one").hush();
    let problem = limited(&play, None);
    for _ in 0..8 {
        play.failed("overloaded", problem.clone()).sleep();
    }
    let over = Some(Problem::Limited {
        until: Some(Timestamp::from_millis(5)),
    });
    play.failed("a moment that is over says nothing", over)
        .skip();
    insta::assert_snapshot!(play.log(), @"
    0.0 failed: TurnResulted(false), IterationLimited(1 attempt 1: overloaded; streak 1), WaitStarted(usage_limit 30s)
    30.0 wake: IterationStarted(1 attempt 2) ! prompt
    30.0 failed: TurnResulted(false), IterationLimited(1 attempt 2: overloaded; streak 2), WaitStarted(usage_limit 60s)
    90.0 wake: IterationStarted(1 attempt 3) ! prompt
    90.0 failed: TurnResulted(false), IterationLimited(1 attempt 3: overloaded; streak 3), WaitStarted(usage_limit 120s)
    210.0 wake: IterationStarted(1 attempt 4) ! prompt
    210.0 failed: TurnResulted(false), IterationLimited(1 attempt 4: overloaded; streak 4), WaitStarted(usage_limit 240s)
    450.0 wake: IterationStarted(1 attempt 5) ! prompt
    450.0 failed: TurnResulted(false), IterationLimited(1 attempt 5: overloaded; streak 5), WaitStarted(usage_limit 480s)
    930.0 wake: IterationStarted(1 attempt 6) ! prompt
    930.0 failed: TurnResulted(false), IterationLimited(1 attempt 6: overloaded; streak 6), WaitStarted(usage_limit 960s)
    1890.0 wake: IterationStarted(1 attempt 7) ! prompt
    1890.0 failed: TurnResulted(false), IterationLimited(1 attempt 7: overloaded; streak 7), WaitStarted(usage_limit 1800s)
    3690.0 wake: IterationStarted(1 attempt 8) ! prompt
    3690.0 failed: TurnResulted(false), IterationLimited(1 attempt 8: overloaded; streak 8), WaitStarted(usage_limit 1800s)
    5490.0 wake: IterationStarted(1 attempt 9) ! prompt
    5490.0 failed: TurnResulted(false), IterationLimited(1 attempt 9: a moment that is over says nothing; streak 9), WaitStarted(usage_limit 1280s)
    5490.0 skip: IterationStarted(1 attempt 10) ! prompt ! ok: skips the wait
    ");
    assert_eq!(
        play.state.failure_streak, 0,
        "a usage limit does not count as a failure"
    );
}

#[test]
fn loop_waits_through_an_outage_of_hours_and_repeats_the_iteration() {
    let mut play = Play::up(Policy {
        max_consecutive_failures: 3,
        ..session()
    });
    play.named("one").measured(100).resulted(true).hush();
    let began = play.moment();
    for _ in 0..20 {
        // The attempt fails as fast as a refused connection. It must not count as a fast failure of the conversation.
        play.failed("Connection refused", Some(Problem::Unreachable))
            .sleep();
    }
    assert!(play.moment().since(began) > Duration::from_secs(3600));
    play.resulted(true);
    let told = play.log();
    let lines: Vec<&str> = told.lines().collect();
    insta::assert_snapshot!([&lines[..4], &lines[lines.len() - 3..]].concat().join("\n"), @"
    0.0 failed: TurnResulted(false), IterationLimited(2 attempt 1: Connection refused; streak 1), WaitStarted(outage 5s)
    5.0 wake: IterationStarted(2 attempt 2) ! prompt
    5.0 failed: TurnResulted(false), IterationLimited(2 attempt 2: Connection refused; streak 2), WaitStarted(outage 10s)
    15.0 wake: IterationStarted(2 attempt 3) ! prompt
    4215.0 failed: TurnResulted(false), IterationLimited(2 attempt 20: Connection refused; streak 20), WaitStarted(outage 300s)
    4515.0 wake: IterationStarted(2 attempt 21) ! prompt
    4515.0 resulted true: TurnResulted(true), IterationCompleted(2 succeeded), IterationStarted(3 attempt 1) ! prompt
    ");
    assert_eq!(play.state.reboots.attempts, 0);
    assert_eq!(
        (play.state.failure_streak, play.state.outage_since),
        (0, None)
    );
    assert_eq!(
        play.state.session.samples.len(),
        2,
        "one sample for each iteration"
    );
}

#[test]
fn a_service_that_was_never_reached_ends_the_loop_after_ten_minutes() {
    let mut play = Play::up(session());
    play.named("one");
    for _ in 0..20 {
        if play.state.outcome().is_some() {
            break;
        }
        play.hush();
        play.failed("Connection refused", Some(Problem::Unreachable));
        if play.state.outcome().is_none() {
            play.sleep();
        }
    }
    insta::assert_snapshot!(play.log(), @"600.0 failed: TurnResulted(false), IterationLimited(1 attempt 8: Connection refused; streak 8), StopRequested(the model's service could not be reached for 600 s, and no request of this loop ever succeeded: Connection refused; check the network, the proxy and the address of the service, then `tachikoma run` continues the loop), Error(the model's service could not be reached for 600 s, and no request of this loop ever succeeded: Connection refused; check the network, the proxy and the address of the service, then `tachikoma run` continues the loop) ! finish");
    // Another start of the loop waits for ten minutes too.
    play.start().launched().hush();
    play.failed("Connection refused", Some(Problem::Unreachable));
    assert_eq!(play.state.outcome(), None);
}

#[test]
fn an_outage_ends_the_loop_when_it_lasts_longer_than_max_outage() {
    let mut play = Play::up(Policy {
        max_outage: Duration::from_secs(12),
        ..session()
    });
    play.named("one").measured(100).resulted(true).hush();
    for _ in 0..2 {
        play.failed("no route to host", Some(Problem::Unreachable))
            .sleep();
    }
    play.failed("no route to host", Some(Problem::Unreachable));
    insta::assert_snapshot!(play.log(), @"
    0.0 failed: TurnResulted(false), IterationLimited(2 attempt 1: no route to host; streak 1), WaitStarted(outage 5s)
    5.0 wake: IterationStarted(2 attempt 2) ! prompt
    5.0 failed: TurnResulted(false), IterationLimited(2 attempt 2: no route to host; streak 2), WaitStarted(outage 7s)
    12.0 wake: IterationStarted(2 attempt 3) ! prompt
    12.0 failed: TurnResulted(false), IterationLimited(2 attempt 3: no route to host; streak 3), StopRequested(the model's service could not be reached for 12 s (stop_conditions.max_outage): no route to host; `tachikoma run` continues the loop when the network is back), Error(the model's service could not be reached for 12 s (stop_conditions.max_outage): no route to host; `tachikoma run` continues the loop when the network is back) ! finish
    ");
}

#[test]
fn broken_conversation_is_replaced_at_once_without_a_hand_off() {
    let mut play = Play::up(session());
    play.named("one").resulted(true).hush();
    play.failed("Prompt is too long", Some(Problem::Poisoned));
    play.exited(0).opened().sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 failed: TurnResulted(false), IterationFailed(2: the agent reported that its turn failed: Prompt is too long; streak 1), RebootRequested(the conversation is broken: the agent reported that its turn failed: Prompt is too long), RebootStarted(the conversation is broken: the agent reported that its turn failed: Prompt is too long), ClosingStarted(within 10s) ! close
    0.0 exited 0: AgentExited(exit 0), SessionOpening(2) ! open 2
    0.0 launched: AgentLaunched(77)
    0.0 opened: SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), WaitStarted(backoff 1s)
    1.0 wake: IterationStarted(3 attempt 1) ! prompt
    ");
}

#[test]
fn attempt_cut_by_a_lost_server_is_repeated_at_once_and_is_not_a_failure() {
    let mut play = Play::up(session());
    play.named("one").hush();
    play.died("the server was lost", Some(Problem::Cut));
    play.launched();
    play.failed("no such conversation", Some(Problem::Cut));
    insta::assert_snapshot!(play.log(), @"
    0.0 died: AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch in one
    0.0 launched: AgentLaunched(77)
    0.0 failed: TurnResulted(false), AttemptCut(1 attempt 2), IterationStarted(1 attempt 3) ! prompt
    ");
    assert_eq!(play.state.failure_streak, 0);
    assert_eq!(play.state.session.fast_failures, 0);
    // After 32 attempts that were cut, the iteration fails.
    play.hush();
    for _ in 0..40 {
        play.failed("lost again", Some(Problem::Cut));
        if play.state.failure_streak > 0 {
            break;
        }
    }
    assert_eq!((play.state.iteration, play.state.attempt), (1, 32));
    assert_eq!(play.state.failure_streak, 1);
}

#[test]
fn three_fast_failures_replace_the_session() {
    let mut play = Play::up(session());
    play.named("one").hush();
    for _ in 0..3 {
        play.seconds(2).failed("hm", None).sleep();
    }
    insta::assert_snapshot!(play.log(), @"
    2.0 failed: TurnResulted(false), IterationFailed(1: the agent reported that its turn failed: hm; streak 1), WaitStarted(backoff 1s)
    3.0 wake: IterationStarted(2 attempt 1) ! prompt
    5.0 failed: TurnResulted(false), IterationFailed(2: the agent reported that its turn failed: hm; streak 2), WaitStarted(backoff 2s)
    7.0 wake: IterationStarted(3 attempt 1) ! prompt
    9.0 failed: TurnResulted(false), IterationFailed(3: the agent reported that its turn failed: hm; streak 3), RebootRequested(the conversation is broken: 3 iterations failed at once: the agent reported that its turn failed: hm), RebootStarted(the conversation is broken: 3 iterations failed at once: the agent reported that its turn failed: hm), ClosingStarted(within 10s) ! close
    19.0 wake: AgentSignaled(terminate 5s) ! signal terminate
    ");
    let mut slow = Play::up(session());
    slow.named("one");
    for _ in 0..4 {
        slow.seconds(20).failed("hm", None).sleep();
    }
    assert_eq!(
        slow.state.stats.reboots, 0,
        "iterations that fail after some work do not replace the session"
    );
    assert_eq!(slow.state.reboots.attempts, 0);
}

#[test]
fn broken_conversation_is_a_failure_if_reboots_are_off() {
    let mut play = Play::up(Policy {
        reboot: RebootRules {
            enabled: false,
            ..RebootRules::default()
        },
        ..session()
    });
    play.named("one").hush();
    play.failed("Prompt is too long", Some(Problem::Poisoned));
    insta::assert_snapshot!(play.log(), @"0.0 failed: TurnResulted(false), IterationFailed(1: the agent reported that its turn failed: Prompt is too long; streak 1), WaitStarted(backoff 1s)");
}

#[test]
fn permanent_problem_ends_the_loop_with_advice() {
    let mut play = Play::up(session());
    play.named("one").hush();
    let advice = "log in with `claude /login`".to_owned();
    play.failed("Not logged in", Some(Problem::Permanent { advice }));
    insta::assert_snapshot!(play.log(), @"0.0 failed: TurnResulted(false), IterationFailed(1: the agent reported that its turn failed: Not logged in; streak 1), StopRequested(the agent reported that its turn failed: Not logged in; log in with `claude /login`), Error(the agent reported that its turn failed: Not logged in; log in with `claude /login`) ! finish");
}

#[test]
fn agent_that_closes_its_output_without_exiting_is_ended() {
    let mut play = Play::up(session());
    play.named("one").hush();
    play.event("stream ended", tachikoma_core::AgentInput::StreamEnded);
    play.sleep().sleep().killed(15);
    insta::assert_snapshot!(play.log(), @"
    0.0 stream ended: StreamEnded
    30.0 wake: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    40.0 wake: AgentSignaled(terminate 5s) ! signal terminate
    40.0 killed 15: IterationFailed(1: the agent closed its output and did not end; streak 1), WaitStarted(backoff 1s)
    ");
}
