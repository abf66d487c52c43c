//! Failed iterations, the backoff after them, and totals that add up.

use tachikoma_core::{
    AgentInput, Exit, Leftover, LoopState, LoopStats, Policy, Urgency, next_deadline,
};

use super::stream;
use crate::play::{Play, exited};

#[test]
fn a_failure_is_followed_by_a_backoff_that_doubles_up_to_a_minute_and_success_resets_it() {
    let mut play = Play::new(Policy::default());
    play.start().hush();
    let mut waits = Vec::new();
    for code in [1, 1, 1, 1, 1, 1, 1, 0, 1] {
        play.launched().exited(code);
        let deadline = next_deadline(&play.policy, &play.state).unwrap();
        waits.push(deadline.since(play.state.time).as_secs());
        play.sleep();
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 5, 1]);
}

#[test]
fn a_prompt_or_program_that_is_missing_is_a_failed_iteration() {
    let mut play = Play::new(Policy::default());
    let reason = "prompt.md: no such file".to_owned();
    play.start()
        .event("not launched", AgentInput::NotLaunched { reason });
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 not launched: IterationFailed(1: prompt.md: no such file; streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn too_many_failures_in_a_row_end_the_loop_with_an_error_that_shows_the_last_failure() {
    let mut play = Play::new(Policy {
        max_consecutive_failures: 2,
        ..Policy::default()
    });
    play.start().launched().exited(1).sleep().launched().hush();
    play.exited(7);
    insta::assert_snapshot!(play.log(), @"1.0 exited 7: IterationFailed(2: the agent ended with exit 7; streak 2), Error(2 iterations failed in a row (max_consecutive_failures = 2); the last one: the agent ended with exit 7) ! finish");
    assert_eq!(play.state.public(), LoopState::Error);
}

#[test]
fn iterations_ended_by_the_operator_do_not_change_the_failure_streak() {
    let mut play = Play::up(Policy::default());
    play.exited(1).sleep().launched().skip().killed(2);
    play.launched().pause(Urgency::Now).killed(2);
    assert_eq!(play.state.failure_streak, 1);
}

#[test]
fn iteration_outcomes_add_up_and_failed_iterations_do_not_change_the_test_failure_streak() {
    let mut play = Play::up(Policy::default());
    play.seconds(1).exited(1).sleep();
    play.launched().seconds(2).exited(0).sleep();
    play.launched().seconds(4).skip().killed(2);
    play.launched().seconds(8).reboot().killed(2);
    play.launched().seconds(16).pause(Urgency::Now).killed(2);
    assert_eq!(
        play.state.stats,
        LoopStats {
            iterations: 5,
            successful: 1,
            failed: 1,
            handed_over: 1,
            skipped: 1,
            interrupted: 1,
            reboots: 1,
            execution_ms: 31_000,
            cost_microusd: 0,
            tokens: 0,
            on_subscription: false,
            test_failure_streak: 0,
            no_progress_count: 0,
        }
    );
}

#[test]
fn exit_of_the_agent_may_arrive_before_its_launch_event() {
    let mut play = Play::new(Policy::default());
    play.start().hush().exited(0).launched().sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), WaitStarted(delay 5s)
    0.0 launched: -
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn agent_that_exits_without_a_result_has_failed() {
    let mut play = Play::up(stream());
    play.hush().exited(0).sleep().launched();
    play.resulted(true).exited(1);
    play.sleep().launched().resulted(false).exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationFailed(1: the agent ended with exit 0 and without a final result; streak 1), WaitStarted(backoff 1s)
    1.0 wake: IterationStarted(2 attempt 1) ! launch
    1.0 launched: AgentLaunched(77)
    1.0 resulted true: TurnResulted(true)
    1.0 exited 1: IterationCompleted(2 succeeded), WaitStarted(delay 5s)
    6.0 wake: IterationStarted(3 attempt 1) ! launch
    6.0 launched: AgentLaunched(77)
    6.0 resulted false: TurnResulted(false)
    6.0 exited 0: IterationFailed(3: the agent reported that its turn failed, and ended with exit 0; streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn second_result_of_a_turn_is_ignored() {
    let mut play = Play::up(stream());
    play.hush().resulted(true).resulted(false).exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted true: TurnResulted(true)
    0.0 resulted false: -
    0.0 exited 0: IterationCompleted(1 succeeded), WaitStarted(delay 5s)
    ");
}

#[test]
fn iteration_fails_if_the_guard_process_is_lost() {
    let mut play = Play::up(Policy::default());
    play.hush().event("guard lost", AgentInput::GuardLost);
    insta::assert_snapshot!(play.log(), @"0.0 guard lost: IterationFailed(1: the guard process was lost, and the agent with it; streak 1), WaitStarted(backoff 1s)");
}

#[test]
fn turn_that_succeeded_before_the_guard_was_lost_counts_as_success() {
    let mut play = Play::up(stream());
    play.resulted(true)
        .hush()
        .event("guard lost", AgentInput::GuardLost);
    insta::assert_snapshot!(play.log(), @"0.0 guard lost: IterationCompleted(1 succeeded), WaitStarted(delay 5s)");
}

#[test]
fn launch_canceled_by_the_operator_is_not_a_failure() {
    let mut play = Play::new(Policy::default());
    play.start().hush().pause(Urgency::Kill);
    let reason = "killed before it was up".to_owned();
    play.event("not launched", AgentInput::NotLaunched { reason });
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: PauseRequested, EndingRequested(interrupt within 0s), AgentSignaled(kill 15s) ! signal kill ! ok: pauses; iteration 1 is interrupted
    0.0 not launched: IterationCompleted(1 interrupted), Paused(-)
    ");
}

#[test]
fn late_events_of_an_earlier_launch_are_dropped() {
    let mut play = Play::up(Policy::default());
    play.exited(0).sleep().launched().hush();
    let done = exited(Exit::Code(0), true);
    play.stale("late claim", done)
        .stale("late output", AgentInput::Output);
    insta::assert_snapshot!(play.log(), @"
    5.0 late claim: -
    5.0 late output: -
    ");
}

#[test]
fn leftover_processes_of_the_agent_are_recorded() {
    let mut play = Play::up(Policy::default());
    let leftover = Leftover {
        pid: 99,
        name: "sleep".to_owned(),
        command: "sleep 1000".to_owned(),
        unkillable: false,
    };
    play.hush().event(
        "exited",
        AgentInput::Exited {
            exit: Exit::Code(0),
            claimed: false,
            stop_pattern: None,
            last_words: None,
            problem: None,
            leftovers: vec![leftover],
        },
    );
    insta::assert_snapshot!(play.log(), @"0.0 exited: LeftoversEnded(1), IterationCompleted(1 succeeded), WaitStarted(delay 5s)");
}
