//! Hooks: the loop waits for blocking hooks, and does not wait for the others.

use std::time::Duration;

use tachikoma_core::{HookPoint, Input, OperatorRequest, Policy, Ticket, Urgency};

use crate::play::Play;

fn policy(points: &[HookPoint]) -> Policy {
    let limit = Duration::from_secs(30);
    Policy {
        hooks: points.iter().map(|point| (*point, limit)).collect(),
        max_iterations: 1,
        ..Policy::default()
    }
}

#[test]
fn blocking_hooks_run_in_order() {
    let frames = [
        HookPoint::LoopStart,
        HookPoint::SessionStart,
        HookPoint::IterationStart,
        HookPoint::IterationEnd,
        HookPoint::LoopEnd,
    ];
    let mut play = Play::new(policy(&frames));
    play.start();
    for point in frames.into_iter().take(3) {
        play.hooks(point, None);
    }
    play.launched().exited(0);
    play.hooks(HookPoint::IterationEnd, None);
    play.hooks(HookPoint::LoopEnd, None);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), HooksStarted(loop_start) ! run loop_start
    0.0 hooks: HooksRan(loop_start, 1), SessionStarted(1), HooksStarted(session_start) ! run session_start
    0.0 hooks: HooksRan(session_start, 1), HooksStarted(iteration_start) ! run iteration_start
    0.0 hooks: HooksRan(iteration_start, 1), IterationStarted(1 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(1 succeeded), HooksStarted(iteration_end) ! run iteration_end
    0.0 hooks: HooksRan(iteration_end, 1), HooksStarted(loop_end) ! run loop_end
    0.0 hooks: HooksRan(loop_end, 1), Completed(the limit of 1 iteration is reached) ! finish
    ");
}

#[test]
fn hook_results_of_another_point_are_dropped() {
    let mut play = Play::new(policy(&[HookPoint::LoopStart]));
    play.start().hush();
    play.hooks(HookPoint::LoopEnd, None);
    insta::assert_snapshot!(play.log(), @"0.0 hooks: -");
}

#[test]
fn hanging_hooks_time_out_and_failed_hooks_are_warnings() {
    let mut play = Play::new(policy(&[HookPoint::LoopStart, HookPoint::IterationStart]));
    play.start().sleep();
    play.hooks(HookPoint::IterationStart, Some("exit 1"));
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), HooksStarted(loop_start) ! run loop_start
    30.0 wake: HooksRan(loop_start, the hooks did not end in time), SessionStarted(1), HooksStarted(iteration_start) ! run iteration_start
    30.0 hooks: HooksRan(iteration_start, 1), Warned(the hook `hook.sh` (iteration_start) failed: exit 1), IterationStarted(1 attempt 1) ! launch
    ");
}

#[test]
fn hook_with_exit_code_125_stops_the_loop() {
    let mut play = Play::new(policy(&[HookPoint::IterationStart]));
    play.start();
    play.hooks(HookPoint::IterationStart, Some("exit 125"));
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), SessionStarted(1), HooksStarted(iteration_start) ! run iteration_start
    0.0 hooks: HooksRan(iteration_start, 1), StopRequested(the hook `hook.sh` stopped the loop: exit 125), Stopped(the hook `hook.sh` stopped the loop: exit 125) ! finish
    ");
}

#[test]
fn hook_with_exit_code_125_during_a_turn_ends_the_turn() {
    let mut play = Play::up(Policy {
        max_iterations: 0,
        ..policy(&[HookPoint::Error])
    });
    play.exited(1).sleep().launched().hush();
    play.hooks(HookPoint::Error, Some("exit 125"));
    insta::assert_snapshot!(play.log(), @"1.0 hooks: HooksRan(error, 1), StopRequested(the hook `hook.sh` stopped the loop: exit 125), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt");
}

#[test]
fn stop_cancels_running_hooks_and_still_runs_the_end_hooks() {
    let points = [HookPoint::IterationEnd, HookPoint::LoopEnd];
    let mut play = Play::up(policy(&points));
    play.exited(0).hush();
    play.stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 stop: HooksRan(iteration_end, the loop is stopping), HooksStarted(loop_end) ! run loop_end ! ok: stops after the hooks");
    // A second request to stop cancels the end hooks too.
    play.stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 stop: HooksRan(loop_end, the loop is stopping), Stopped(stopped by the operator) ! finish ! ok: stopped");
}

#[test]
fn hook_that_requests_a_stop_may_finish_or_times_out() {
    let points = [HookPoint::IterationStart, HookPoint::LoopEnd];
    let begin = || {
        let mut play = Play::new(policy(&points));
        play.start().hush();
        play.request("stop by a hook", OperatorRequest::StopAfterHooks);
        play
    };
    let mut heard = begin();
    heard.hooks(HookPoint::IterationStart, None);
    insta::assert_snapshot!(heard.log(), @"
    0.0 stop by a hook: StopRequested(stopped by the operator) ! ok: stops after the hooks
    0.0 hooks: HooksRan(iteration_start, 1), HooksStarted(loop_end) ! run loop_end
    ");
    let mut late = begin();
    late.hush().sleep();
    insta::assert_snapshot!(late.log(), @"30.0 wake: HooksRan(iteration_start, the hooks did not end in time), HooksStarted(loop_end) ! run loop_end");
    // A stop by the operator does not wait for the hook.
    let mut operator = begin();
    operator.hush().stop(Urgency::Graceful);
    insta::assert_snapshot!(operator.log(), @"0.0 stop: HooksRan(iteration_start, the loop is stopping), HooksStarted(loop_end) ! run loop_end ! ok: stops after the hooks");
}

#[test]
fn urgent_stop_gives_end_hooks_five_seconds() {
    let points = [HookPoint::IterationEnd, HookPoint::LoopEnd];
    let mut play = Play::up(policy(&points));
    play.shutdown(15, Urgency::Now).exited(0).hush();
    play.sleep();
    insta::assert_snapshot!(play.log(), @"5.0 wake: HooksRan(loop_end, the hooks did not end in time), Stopped(stopped by SIGTERM) ! finish");
}

#[test]
fn pause_waits_for_the_hooks_and_skip_cancels_them() {
    let mut play = Play::up(Policy {
        max_iterations: 0,
        ..policy(&[HookPoint::IterationEnd])
    });
    play.exited(0).hush();
    play.pause(Urgency::Graceful);
    play.hooks(HookPoint::IterationEnd, None);
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: PauseRequested ! ok: pauses after the hooks
    0.0 hooks: HooksRan(iteration_end, 1), Paused(delay 5s)
    ");
    play.resume().sleep().launched().exited(0).hush();
    play.skip();
    insta::assert_snapshot!(play.log(), @"5.0 skip: HooksRan(iteration_end, the operator skipped the hooks), WaitStarted(delay 5s) ! ok: skips the hooks");
}

#[test]
fn hooks_interrupted_by_a_crash_are_run_by_the_next_runner() {
    let points = [HookPoint::IterationEnd, HookPoint::LoopEnd];
    let mut play = Play::up(policy(&points));
    play.exited(0).hush();
    play.crash();
    play.hooks(HookPoint::IterationEnd, None);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), HooksStarted(iteration_end) ! run iteration_end
    0.0 hooks: HooksRan(iteration_end, 1), HooksStarted(loop_end) ! run loop_end
    ");
    play.crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), HooksStarted(loop_end) ! run loop_end");
}

#[test]
fn paused_loop_stays_paused_after_the_hooks_of_a_new_runner() {
    let mut play = Play::up(Policy {
        max_iterations: 0,
        ..policy(&[HookPoint::LoopStart])
    });
    play.hooks(HookPoint::LoopStart, None);
    play.launched().pause(Urgency::Graceful).exited(0).hush();
    play.crash().hooks(HookPoint::LoopStart, None);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), HooksStarted(loop_start) ! run loop_start
    0.0 hooks: HooksRan(loop_start, 1)
    ");
}

#[test]
fn rollback_during_end_hooks_cancels_the_end() {
    let mut play = Play::up(Policy {
        max_iterations: 0,
        ..policy(&[HookPoint::LoopEnd])
    });
    play.claimed().hush();
    let note = Input::Note {
        ticket: Ticket(9),
        text: "rolled back".to_owned(),
        tell: true,
        operator: true,
    };
    play.input("note", note);
    play.hooks(HookPoint::LoopEnd, None);
    insta::assert_snapshot!(play.log(), @"
    0.0 note: Noted(rolled back), CheckGivenUp(the work tree was rolled back after the claim) ! ok: noted
    0.0 hooks: HooksRan(loop_end, 1), ClaimRefused(the agent's promise: the work tree was rolled back after the claim), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn pause_and_reboot_are_refused_in_a_check_when_a_hook_has_stopped_the_loop() {
    let mut policy = policy(&[HookPoint::Error]);
    policy.max_iterations = 0;
    policy.completion.asking = Some(Duration::from_secs(40));
    let mut play = Play::up(policy);
    play.hush().exited(1);
    play.hooks(HookPoint::Error, Some("exit 125"));
    play.pause(Urgency::Graceful).reboot();
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 1: IterationFailed(1: the agent ended with exit 1; streak 1), CheckStarted(asking within 40s) ! run error ! ask
    0.0 hooks: HooksRan(error, 1), StopRequested(the hook `hook.sh` stopped the loop: exit 125)
    0.0 pause: - ! refused in running: the loop is stopping
    0.0 reboot: - ! refused in running: the loop is stopping
    ");
}

#[test]
fn reboot_resumed_by_a_new_runner_is_not_requested_twice() {
    let mut policy = policy(&[HookPoint::LoopStart]);
    policy.max_iterations = 0;
    policy.agent.persistent = true;
    policy.persist_sessions = false;
    let mut play = Play::new(policy);
    play.start().hooks(HookPoint::LoopStart, None);
    play.launched().named("one").resulted(true).reboot();
    play.hush().crash().reboot();
    play.hooks(HookPoint::LoopStart, None);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), SessionEnded(1), SessionStarted(2), HooksStarted(loop_start) ! run loop_start
    0.0 reboot: - ! ok: reboots after the hooks
    0.0 hooks: HooksRan(loop_start, 1), RebootCompleted(1 to 2), WaitStarted(delay 5s)
    ");
}
