//! The life of a loop over many runs: its numbers go on, its limits hold, its end has a reason.

use std::time::Duration;

use tachikoma_core::{
    Input, LoopEvent, LoopState, Policy, Record, State, Timestamp, Urgency, step,
};

use super::stream;
use crate::play::Play;

fn limited(max_iterations: u32) -> Policy {
    Policy {
        max_iterations,
        ..Policy::default()
    }
}

#[test]
fn a_limit_that_is_reached_is_completed_with_its_reason() {
    let mut play = Play::up(limited(1));
    play.hush().exited(0);
    insta::assert_snapshot!(play.told(), @"0.0 exited 0: IterationCompleted(1 succeeded), Completed(the limit of 1 iterations is reached) ! finish");
    assert_eq!(play.state.public(), LoopState::Completed);
}

#[test]
fn a_limit_that_is_already_met_ends_the_next_run_at_once() {
    let mut play = Play::up(limited(1));
    play.exited(1).hush().start();
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after limit_reached), Completed(the limit of 1 iterations is reached) ! finish");
}

#[test]
fn a_raised_limit_goes_on_where_the_loop_was() {
    let mut play = Play::up(limited(1));
    play.exited(0).hush();
    play.policy.max_iterations = 2;
    play.start();
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after limit_reached), IterationStarted(2 attempt 1) ! launch");
}

#[test]
fn a_stopped_loop_starts_again_and_its_numbers_go_on() {
    let mut play = Play::up(Policy::default());
    play.exited(0).stop(Urgency::Graceful).hush();
    play.start();
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after operator), IterationStarted(2 attempt 1) ! launch");
}

#[test]
fn a_loop_that_ended_with_an_error_starts_again_and_counts_its_failures_anew() {
    let mut play = Play::up(Policy {
        max_consecutive_failures: 1,
        ..Policy::default()
    });
    play.exited(1).hush().start();
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after error), IterationStarted(2 attempt 1) ! launch");
    assert_eq!(play.state.failure_streak, 0);
}

#[test]
fn a_loop_that_is_done_does_not_start_again() {
    let mut play = Play::up(Policy::default());
    play.hush().claimed().start();
    insta::assert_snapshot!(play.told(), @"
    0.0 claimed: IterationCompleted(1 succeeded, claimed), Completed(the agent reported completion) ! finish
    0.0 start: - ! finish
    ");
    let refusal = play.state.startable().unwrap_err();
    assert_eq!(refusal.to_string(), "cannot start a loop that is completed");
}

#[test]
fn the_guards_of_the_public_states_are_these() {
    use LoopState as S;
    let guards = |state: S| {
        (
            state.is_terminal(),
            state.is_active(),
            state.can_start(),
            state.can_pause(),
            state.can_resume(),
        )
    };
    assert_eq!(guards(S::Idle), (false, false, true, false, false));
    assert_eq!(guards(S::Running), (false, true, false, true, false));
    assert_eq!(guards(S::Paused), (false, false, false, false, true));
    assert_eq!(guards(S::Rebooting), (false, true, false, false, false));
    assert_eq!(guards(S::Completed), (true, false, false, false, false));
    assert_eq!(guards(S::Error), (true, false, true, false, false));
    assert_eq!(guards(S::Stopped), (true, false, true, false, false));
}

#[test]
fn an_iteration_that_a_crash_cut_keeps_its_number_and_gets_the_next_attempt() {
    let mut play = Play::up(limited(1));
    play.hush().crash().crash().launched().exited(0);
    insta::assert_snapshot!(play.told(), @"
    0.0 start: Started(after crash), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch
    0.0 start: Started(after crash), AttemptCut(1 attempt 2), IterationStarted(1 attempt 3) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(1 succeeded), Completed(the limit of 1 iterations is reached) ! finish
    ");
}

#[test]
fn an_iteration_that_the_operator_cut_keeps_its_number() {
    let mut play = Play::up(Policy::default());
    play.stop(Urgency::Now).killed(2).hush().start();
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after operator), IterationStarted(2 attempt 1) ! launch");
}

#[test]
fn a_claim_that_was_recorded_is_believed_by_the_next_runner() {
    let mut play = Play::up(limited(1));
    play.claimed().hush();
    let without_the_end = play.journal.len() - 1;
    play.crash_after(without_the_end);
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after crash), Completed(the agent reported completion) ! finish");
}

#[test]
fn a_claim_that_does_not_suffice_is_forgotten_with_the_next_iteration() {
    let mut play = Play::up(Policy {
        claim_suffices: false,
        ..Policy::default()
    });
    play.claimed().sleep().launched().exited(1).hush();
    play.policy.claim_suffices = true;
    play.crash();
    insta::assert_snapshot!(play.told(), @"5.0 start: Started(after crash), WaitStarted(backoff 1s)");
}

#[test]
fn a_wish_to_stop_dies_with_its_runner() {
    let mut play = Play::up(Policy::default());
    play.stop(Urgency::Graceful).hush().crash();
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after crash), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch");
}

#[test]
fn a_wait_goes_on_after_a_crash() {
    let mut play = Play::up(Policy::default());
    play.exited(0).hush().seconds(2).crash().sleep();
    insta::assert_snapshot!(play.told(), @"
    2.0 start: Started(after crash), WaitStarted(delay 3s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn no_delay_means_that_the_next_iteration_follows_at_once() {
    let mut play = Play::up(Policy {
        iteration_delay: Duration::ZERO,
        ..stream()
    });
    play.hush().resulted(true).exited(0);
    insta::assert_snapshot!(play.told(), @"
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(1 succeeded), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn time_never_falls_even_if_the_clock_does() {
    let mut play = Play::up(Policy::default());
    let before = play.state.time;
    let warning = "the clock was set back".to_owned();
    let early = Timestamp::from_millis(1);
    let step = step(
        &play.policy,
        &mut play.state,
        early,
        Input::Trouble { warning },
    );
    assert_eq!(step.records[0].time, before);
}

#[test]
fn a_segment_of_the_journal_is_enough_to_know_the_state() {
    let mut play = Play::up(stream());
    play.tool("a").stop(Urgency::Graceful);
    let opened = Record {
        seq: play.state.seq.next(),
        time: play.state.time,
        loop_id: play.state.loop_id,
        event: LoopEvent::SegmentOpened {
            format: 1,
            segment: 2,
            state: Box::new(play.state.clone()),
        },
    };
    let text = serde_json::to_string(&opened).unwrap();
    let read: Record = serde_json::from_str(&text).unwrap();
    let mut fresh = State::new(play.state.loop_id);
    fresh.apply(&read);
    play.state.apply(&opened);
    assert_eq!(fresh, play.state);
}

#[test]
fn a_signal_before_a_runner_takes_up_a_crashed_loop_ends_it_without_a_ladder() {
    let mut play = Play::up(Policy::default());
    play.hush().input("decline", Input::Decline { signal: 2 });
    insta::assert_snapshot!(play.told(), @"0.0 decline: AttemptCut(1 attempt 1), Stopped(stopped by signal 2) ! finish");
    play.hush().start();
    insta::assert_snapshot!(play.told(), @"0.0 start: Started(after signal), IterationStarted(1 attempt 2) ! launch");
}
