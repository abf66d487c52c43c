//! Stopping a loop: when it stops, which signals the agent gets, and the state of the loop afterwards.

use tachikoma_core::{LoopState, Policy, Urgency};

use super::stream;
use crate::play::Play;

#[test]
fn stopped_loop_stays_stopped() {
    let mut play = Play::up(Policy::default());
    play.hush().seconds(2).stop(Urgency::Graceful).killed(2);
    play.wake().exited(0);
    insta::assert_snapshot!(play.log(), @"
    2.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    2.0 killed 2: IterationCompleted(1 interrupted), Stopped(stopped by the operator) ! finish
    2.0 wake: -
    2.0 exited 0: -
    ");
    assert_eq!(play.state.public(), LoopState::Stopped);
}

#[test]
fn a_signal_ends_the_loop_with_a_stopped_event_and_its_reason() {
    let mut play = Play::up(Policy::default());
    play.hush().shutdown(15, Urgency::Now).killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 signal 15: StopRequested(stopped by SIGTERM), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 killed 2: IterationCompleted(1 interrupted), Stopped(stopped by SIGTERM) ! finish
    ");
}

#[test]
fn signal_before_the_start_stops_the_loop() {
    let mut play = Play::new(Policy::default());
    play.shutdown(2, Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 signal 2: Stopped(stopped by SIGINT (Ctrl-C)) ! finish");
}

#[test]
fn stop_ends_the_loop_at_once_in_a_delay_a_backoff_and_a_pause() {
    let mut play = Play::up(Policy::default());
    play.exited(0).hush().stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped");
    let mut play = Play::up(Policy::default());
    play.exited(1).hush().stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped");
    let mut play = Play::up(Policy::default());
    play.exited(0).pause(Urgency::Graceful).hush();
    play.stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped");
}

#[test]
fn graceful_stop_waits_for_running_tool_calls() {
    let mut play = Play::up(stream());
    play.tool("a").tool("b").hush().stop(Urgency::Graceful);
    play.seconds(3).tool_ended("a").seconds(3).tool_ended("b");
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 30s) ! ok: stops; iteration 1 is interrupted
    3.0 tool ended: ToolEnded(a)
    6.0 tool ended: ToolEnded(b), AgentSignaled(interrupt 10s) ! signal interrupt
    ");
}

#[test]
fn graceful_stop_waits_for_a_tool_call_no_longer_than_graceful_timeout() {
    let mut play = Play::up(stream());
    play.tool("a").hush().stop(Urgency::Graceful);
    play.seconds(10).tool("b").stop(Urgency::Graceful).sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 30s) ! ok: stops; iteration 1 is interrupted
    10.0 tool: ToolStarted(b)
    10.0 stop: - ! ok: stops; iteration 1 is interrupted
    30.0 wake: AgentSignaled(interrupt 10s) ! signal interrupt
    ");
}

#[test]
fn stop_interrupts_an_agent_without_event_stream_at_once() {
    let mut play = Play::up(Policy::default());
    play.tool("a").hush().stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted");
}

#[test]
fn agent_that_survives_sigkill_ends_the_loop_with_an_error() {
    let mut play = Play::up(Policy::default());
    play.hush().stop(Urgency::Now);
    play.sleep().sleep().sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    10.0 wake: AgentSignaled(terminate 5s) ! signal terminate
    15.0 wake: AgentSignaled(kill 15s) ! signal kill
    30.0 wake: IterationFailed(1: the agent (pid 77) cannot be killed; streak 1), Error(the agent (pid 77) cannot be killed: it is stuck in the kernel, or its parent `loop-guard` is stopped; look at both with `ps`, then run the loop again) ! finish
    ");
    assert_eq!(play.state.stats.failed, 1);
    assert_eq!(play.state.stats.execution_ms, 30_000);
}

#[test]
fn second_interrupt_is_urgent_and_third_kills() {
    let mut play = Play::up(stream());
    play.tool("a").hush();
    play.shutdown(2, Urgency::Graceful);
    play.shutdown(2, Urgency::Now);
    play.shutdown(2, Urgency::Now);
    play.shutdown(2, Urgency::Kill);
    play.shutdown(2, Urgency::Kill).killed(9);
    insta::assert_snapshot!(play.log(), @"
    0.0 signal 2: StopRequested(stopped by SIGINT (Ctrl-C)), EndingRequested(interrupt within 30s)
    0.0 signal 2: EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 signal 2: AgentSignaled(terminate 5s) ! signal terminate
    0.0 signal 2: AgentSignaled(kill 15s) ! signal kill
    0.0 signal 2: -
    0.0 killed 9: IterationCompleted(1 interrupted), Stopped(stopped by SIGINT (Ctrl-C)) ! finish
    ");
}

#[test]
fn stop_during_a_launch_ends_the_agent_and_the_loop() {
    let mut play = Play::new(Policy::default());
    play.start().hush().stop(Urgency::Now).wake().launched();
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s) ! ok: stops; iteration 1 is interrupted
    0.0 wake: -
    0.0 launched: AgentLaunched(77), AgentSignaled(interrupt 10s) ! signal interrupt
    ");
    let mut play = Play::new(Policy::default());
    play.start().hush().stop(Urgency::Now).sleep().killed(9);
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s) ! ok: stops; iteration 1 is interrupted
    30.0 wake: EndingRequested(time-out within 0s), AgentSignaled(kill 15s) ! signal kill
    30.0 killed 9: IterationFailed(1: the launch was not answered in time; streak 1), Stopped(stopped by the operator) ! finish
    ");
    let mut play = Play::new(Policy::default());
    play.start().hush().stop(Urgency::Kill).launched().killed(9);
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(kill 15s) ! signal kill ! ok: stops; iteration 1 is interrupted
    0.0 launched: AgentLaunched(77)
    0.0 killed 9: IterationCompleted(1 interrupted), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn first_stop_request_decides_the_outcome() {
    let mut play = Play::up(Policy::default());
    play.hush().stop(Urgency::Graceful);
    play.shutdown(15, Urgency::Now).killed(15);
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    0.0 signal 15: AgentSignaled(terminate 5s) ! signal terminate
    0.0 killed 15: IterationCompleted(1 interrupted), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn a_loop_that_stops_refuses_to_pause_or_reboot() {
    let mut play = Play::up(Policy::default());
    play.stop(Urgency::Graceful).hush();
    play.pause(Urgency::Now).reboot().resume();
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: - ! refused in running: the loop is stopping
    0.0 reboot: - ! refused in running: the loop is stopping
    0.0 resume: - ! refused in running: the loop is not paused
    ");
}

#[test]
fn turn_that_succeeded_before_the_interrupt_counts_as_success() {
    let mut play = Play::up(stream());
    play.resulted(true).hush().stop(Urgency::Graceful).killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    0.0 killed 2: IterationCompleted(1 succeeded), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn accepted_claim_completes_the_loop_even_during_a_stop() {
    let mut play = Play::up(stream());
    play.tool("t").tool_ended("t").resulted(true).hush();
    play.stop(Urgency::Graceful).claimed();
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    0.0 claimed: IterationCompleted(1 succeeded, claimed), Completed(the work is complete) ! finish
    ");
}

#[test]
fn worse_of_two_causes_decides_the_outcome_of_the_iteration() {
    let mut play = Play::up(stream());
    play.tool("a")
        .hush()
        .reboot()
        .skip()
        .stop(Urgency::Graceful);
    play.skip().killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 reboot: RebootRequested(asked for by the operator), EndingRequested(hand over within 30s) ! ok: reboots; iteration 1 ends, and the new session continues its work
    0.0 skip: EndingRequested(skip within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: skips iteration 1
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s) ! ok: stops; iteration 1 is interrupted
    0.0 skip: - ! refused in running: the loop is stopping
    0.0 killed 2: IterationCompleted(1 interrupted, needs reboot), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn claim_of_an_interrupted_turn_is_refused() {
    let mut play = Play::up(Policy::default());
    play.hush().stop(Urgency::Graceful).claimed();
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    0.0 claimed: IterationCompleted(1 interrupted), Stopped(stopped by the operator) ! finish
    ");
}
