//! Pausing, resuming and skipping.

use tachikoma_core::{Policy, Status, Urgency, next_deadline};

use crate::play::Play;

#[test]
fn pause_waits_for_the_iteration_and_resume_waits_for_the_rest_of_the_delay() {
    let mut play = Play::up(Policy::default());
    play.hush().pause(Urgency::Graceful).exited(0).seconds(2);
    play.pause(Urgency::Graceful).resume().sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: PauseRequested ! ok: pauses after iteration 1
    0.0 exited 0: IterationCompleted(1 succeeded), Paused(delay 5s)
    2.0 pause: - ! ok: already paused
    2.0 resume: Resumed, WaitStarted(delay 3s) ! ok: the loop continues
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn resume_after_the_delay_starts_the_next_iteration_at_once() {
    let mut play = Play::up(Policy::default());
    play.exited(0).hush().pause(Urgency::Graceful);
    play.seconds(60).wake().resume();
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: Paused(delay 5s) ! ok: paused
    60.0 wake: -
    60.0 resume: Resumed, IterationStarted(2 attempt 1) ! launch ! ok: the loop continues
    ");
}

#[test]
fn an_immediate_pause_interrupts_the_iteration() {
    let mut play = Play::up(Policy::default());
    play.hush().pause(Urgency::Now).killed(2).resume();
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: PauseRequested, EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: pauses; iteration 1 is interrupted
    0.0 killed 2: IterationCompleted(1 interrupted), Paused(-)
    0.0 resume: Resumed, IterationStarted(2 attempt 1) ! launch ! ok: the loop continues
    ");
    assert_eq!(play.state.stats.interrupted, 1);
}

#[test]
fn pending_pause_can_be_canceled() {
    let mut play = Play::up(Policy::default());
    play.hush().pause(Urgency::Graceful).resume().exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: PauseRequested ! ok: pauses after iteration 1
    0.0 resume: PauseWithdrawn ! ok: the loop continues; the requested pause is canceled
    0.0 exited 0: IterationCompleted(1 succeeded), WaitStarted(delay 5s)
    ");
}

#[test]
fn status_shows_pending_pause_and_stop() {
    let shown = |play: &Play| {
        let status = Status::of(&play.state, true);
        (status.pause_requested, status.ending.map(|end| end.kind))
    };
    let mut play = Play::up(Policy::default());
    assert_eq!(shown(&play), (false, None));
    play.pause(Urgency::Graceful);
    assert_eq!(shown(&play), (true, None));
    play.stop(Urgency::Graceful);
    assert_eq!(shown(&play), (true, Some("operator".to_owned())));
    play.killed(2);
    assert_eq!(
        shown(&play),
        (false, None),
        "the pending pause and stop ended with the loop"
    );
    let mut play = Play::up(Policy::default());
    play.pause(Urgency::Graceful).exited(0);
    assert_eq!(
        shown(&play),
        (false, None),
        "the pause is no longer pending once the loop is paused"
    );
}

#[test]
fn a_pause_waits_for_the_reboot() {
    let mut play = Play::up(Policy::default());
    play.exited(0).reboot().hush();
    play.pause(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 pause: Paused(delay 5s) ! ok: paused");
}

#[test]
fn paused_loop_has_no_deadline_and_stays_paused_after_a_crash() {
    let mut play = Play::up(Policy::default());
    play.exited(0).pause(Urgency::Graceful).hush();
    assert_eq!(
        next_deadline(&play.policy, &play.state),
        None,
        "a paused loop does not wake up"
    );
    play.seconds(9).crash().wake().resume();
    insta::assert_snapshot!(play.log(), @"
    9.0 start: Started(after crash)
    9.0 wake: -
    9.0 resume: Resumed, IterationStarted(2 attempt 1) ! launch ! ok: the loop continues
    ");
}

#[test]
fn resume_of_a_loop_that_is_not_paused_is_refused_with_advice() {
    let mut play = Play::new(Policy::default());
    play.resume().start().hush().resume();
    play.stop(Urgency::Kill).killed(9).resume();
    insta::assert_snapshot!(play.log(), @"
    0.0 resume: - ! refused in running: the loop is not paused
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(kill 15s) ! signal kill ! ok: stops; iteration 1 is interrupted
    0.0 killed 9: IterationCompleted(1 interrupted), Stopped(stopped by the operator) ! finish
    0.0 resume: - ! refused in stopped: the loop is not running; `tachikoma run` continues it
    ");
}

#[test]
fn skip_interrupts_the_iteration_and_starts_the_next() {
    let mut play = Play::up(Policy::default());
    play.hush().skip().killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 skip: EndingRequested(skip within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: skips iteration 1
    0.0 killed 2: IterationCompleted(1 skipped), IterationStarted(2 attempt 1) ! launch
    ");
    assert_eq!(play.state.stats.skipped, 1);
}

#[test]
fn a_skip_ends_a_wait_and_is_refused_in_a_pause_and_a_reboot() {
    let mut play = Play::up(Policy::default());
    play.exited(1).hush().skip();
    play.exited(0).pause(Urgency::Graceful).skip();
    play.reboot().skip();
    insta::assert_snapshot!(play.log(), @"
    0.0 skip: IterationStarted(2 attempt 1) ! launch ! ok: skips the wait
    0.0 exited 0: IterationCompleted(2 succeeded), WaitStarted(delay 5s)
    0.0 pause: Paused(delay 5s) ! ok: paused
    0.0 skip: - ! refused in paused: the loop is paused; `tachikoma resume` continues it
    0.0 reboot: PauseRequested, RebootStarted(asked for by the operator), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), Paused(delay 5s) ! ok: reboots and stays paused
    0.0 skip: - ! refused in paused: the loop is paused; `tachikoma resume` continues it
    ");
}
