//! Timeouts: which waits have one, how long they are, and which time does not count.

use std::time::Duration;

use tachikoma_core::policy::Timeouts;
use tachikoma_core::{AgentInput, Input, Policy, State, Urgency, next_deadline};

use super::stream;
use crate::play::Play;

/// Returns the time from the latest record to the next deadline of the core.
fn patience(state: &State, policy: &Policy) -> Option<Duration> {
    let deadline = next_deadline(policy, state)?;
    Some(deadline.since(state.time))
}

#[test]
fn agent_is_killed_if_its_launch_is_not_confirmed_in_time() {
    let mut play = Play::new(Policy::default());
    play.start().hush().sleep().killed(9);
    insta::assert_snapshot!(play.log(), @"
    30.0 wake: EndingRequested(time-out within 0s), AgentSignaled(kill 15s) ! signal kill
    30.0 killed 9: IterationFailed(1: the launch was not answered in time; streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn agent_without_any_output_times_out_after_first_output_timeout() {
    let mut play = Play::up(stream());
    play.hush().sleep().looked(0).killed(2);
    insta::assert_snapshot!(play.log(), @"
    120.0 wake: SilenceChecked(within 20s) ! look
    120.0 looked: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    120.0 killed 2: IterationFailed(1: first_output_timeout ran out: the agent said nothing at all; streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn silent_agent_times_out_after_silence_timeout() {
    let mut play = Play::up(stream());
    play.seconds(1).output().hush();
    play.seconds(29).output().seconds(30).output();
    play.sleep().looked(0).killed(2);
    insta::assert_snapshot!(play.log(), @"
    30.0 output: -
    60.0 output: OutputSeen
    690.0 wake: SilenceChecked(within 20s) ! look
    690.0 looked: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    690.0 killed 2: IterationFailed(1: silence_timeout ran out: the agent fell silent (last seen: output, 630 s ago); streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn an_agent_that_is_busy_has_time_until_tool_timeout() {
    let mut policy = stream();
    policy.timeouts.tool = Duration::from_secs(1_500);
    let mut play = Play::up(policy);
    play.output().hush();
    play.sleep().seconds(2).looked(100);
    play.sleep().seconds(2).looked(1_000);
    play.sleep().killed(2);
    insta::assert_snapshot!(play.log(), @"
    630.0 wake: SilenceChecked(within 20s) ! look
    632.0 looked: AgentBusy(100 ms of CPU time in 1000 ms)
    1232.0 wake: SilenceChecked(within 20s) ! look
    1234.0 looked: AgentBusy(1000 ms of CPU time in 1000 ms)
    1530.0 wake: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    1530.0 killed 2: IterationFailed(1: silence_timeout ran out: the agent fell silent (last seen: output, 1530 s ago; busy 296 s ago: 1000 ms of CPU time in 1000 ms); streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn busy_agent_without_first_output_gets_more_time() {
    let mut play = Play::up(stream());
    play.hush().sleep().looked(1_000).sleep().looked(99);
    play.killed(2);
    insta::assert_snapshot!(play.log(), @"
    120.0 wake: SilenceChecked(within 20s) ! look
    120.0 looked: AgentBusy(1000 ms of CPU time in 1000 ms)
    240.0 wake: SilenceChecked(within 20s) ! look
    240.0 looked: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    240.0 killed 2: IterationFailed(1: first_output_timeout ran out: the agent said nothing at all (last seen: busy 120 s ago: 1000 ms of CPU time in 1000 ms); streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn output_cancels_the_silence_check() {
    let mut play = Play::up(stream());
    play.output().sleep().hush();
    play.output().looked(0).looked(1_000);
    insta::assert_snapshot!(play.log(), @"
    630.0 output: OutputSeen
    630.0 looked: -
    630.0 looked: -
    ");
    play.hush().sleep().tool("a").looked(0);
    insta::assert_snapshot!(play.log(), @"
    1260.0 wake: SilenceChecked(within 20s) ! look
    1260.0 tool: ToolStarted(a)
    1260.0 looked: -
    ");
}

#[test]
fn unanswered_or_idle_sample_ends_the_agent() {
    let mut play = Play::up(stream());
    play.hush().sleep().sleep();
    insta::assert_snapshot!(play.log(), @"
    120.0 wake: SilenceChecked(within 20s) ! look
    140.0 wake: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    ");
    let mut play = Play::up(stream());
    let unseen = AgentInput::ProcessesSampled { activity: None };
    play.hush().sleep().event("not seen", unseen);
    insta::assert_snapshot!(play.log(), @"
    120.0 wake: SilenceChecked(within 20s) ! look
    120.0 not seen: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    ");
}

#[test]
fn process_samples_of_ending_or_finished_agents_are_ignored() {
    let mut play = Play::up(stream());
    play.output().sleep().hush();
    play.stop(Urgency::Graceful).looked(0).looked(1_000);
    insta::assert_snapshot!(play.log(), @"
    630.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    630.0 looked: -
    630.0 looked: -
    ");
    let mut play = Play::up(stream());
    play.output().sleep().resulted(true).hush().looked(0);
    insta::assert_snapshot!(play.log(), @"630.0 looked: -");
}

#[test]
fn busy_agent_without_tool_timeout_has_no_limit() {
    let mut policy = stream();
    policy.timeouts.tool = Duration::ZERO;
    policy.timeouts.session = Duration::ZERO;
    let mut play = Play::up(policy);
    play.output();
    for _ in 0..100 {
        play.sleep().looked(1_000);
    }
    assert!(play.state.outcome().is_none());
    assert_eq!(play.state.failure_streak, 0);
}

#[test]
fn silence_is_not_counted_while_a_tool_runs() {
    let mut play = Play::up(stream());
    play.tool("a").hush();
    assert_eq!(
        patience(&play.state, &play.policy),
        Some(Duration::from_secs(3600))
    );
    play.seconds(3000).wake().tool_ended("a");
    assert_eq!(
        patience(&play.state, &play.policy),
        Some(Duration::from_secs(600)),
        "the session timeout comes before the silence timeout"
    );
    insta::assert_snapshot!(play.log(), @"
    3000.0 wake: -
    3000.0 tool ended: ToolEnded(a)
    ");
}

#[test]
fn tool_timeout_is_measured_from_the_oldest_open_tool_call() {
    let mut policy = stream();
    policy.timeouts.tool = Duration::from_secs(100);
    let mut play = Play::up(policy);
    play.tool("a")
        .seconds(60)
        .tool("b")
        .hush()
        .sleep()
        .killed(2);
    insta::assert_snapshot!(play.log(), @"
    100.0 wake: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    100.0 killed 2: IterationFailed(1: tool_timeout ran out: a tool call did not end (last seen: tool Bash: make test for 100 s); streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn output_after_the_interrupt_does_not_replace_the_last_activity() {
    let mut play = Play::up(stream());
    play.tool("a").hush().sleep();
    play.tool_ended("a").output().measured(20).killed(2);
    insta::assert_snapshot!(play.log(), @"
    3600.0 wake: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    3600.0 tool ended: ToolEnded(a)
    3600.0 output: -
    3600.0 measured 20: ContextMeasured(2%)
    3600.0 killed 2: IterationFailed(1: session_timeout ran out (last seen: tool Bash: make test for 3600 s); streak 1), WaitStarted(backoff 1s)
    ");
    let mut play = Play::up(stream());
    play.output().sleep().looked(0).hush();
    play.seconds(3).output().measured(20).killed(2);
    insta::assert_snapshot!(play.log(), @"
    633.0 output: -
    633.0 measured 20: ContextMeasured(2%)
    633.0 killed 2: IterationFailed(1: silence_timeout ran out: the agent fell silent (last seen: output, 633 s ago); streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn agent_that_does_not_exit_after_its_result_keeps_its_success() {
    let mut play = Play::up(stream());
    play.resulted(true).hush().sleep().sleep().killed(15);
    insta::assert_snapshot!(play.log(), @"
    30.0 wake: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    40.0 wake: AgentSignaled(terminate 5s) ! signal terminate
    40.0 killed 15: IterationCompleted(1 succeeded), WaitStarted(delay 5s)
    ");
}

#[test]
fn a_command_agent_has_the_session_timeout_only() {
    let mut play = Play::up(Policy::default());
    play.hush().output().sleep().killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 output: -
    3600.0 wake: EndingRequested(time-out within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    3600.0 killed 2: IterationFailed(1: session_timeout ran out; streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn timeouts_of_zero_mean_no_limit() {
    let none = Duration::ZERO;
    let mut policy = stream();
    policy.timeouts = Timeouts {
        launch: none,
        session: none,
        first_output: none,
        silence: none,
        tool: none,
        result_grace: none,
        graceful: none,
        renew: none,
    };
    let mut play = Play::new(policy);
    let waits = |play: &Play| patience(&play.state, &play.policy);
    play.start();
    assert_eq!(waits(&play), None, "launch timeout");
    play.launched();
    assert_eq!(
        waits(&play),
        None,
        "first output timeout and session timeout"
    );
    play.output();
    assert_eq!(waits(&play), None, "silence timeout");
    play.tool("a");
    assert_eq!(waits(&play), None, "tool timeout");
    play.resulted(true);
    assert_eq!(waits(&play), None, "result grace period");
    play.policy.agent.persistent = true;
    play.exited(0).reboot().launched();
    assert_eq!(waits(&play), None, "timeout for a new session");
    play.hush().seconds(9999).wake().opened();
    insta::assert_snapshot!(play.log(), @"
    9999.0 wake: -
    9999.0 launched: AgentLaunched(77)
    9999.0 opened: SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! prompt
    ");
}

#[test]
fn output_is_recorded_at_most_once_per_interval() {
    let mut play = Play::up(stream());
    let before = play.journal.len();
    for _ in 0..10_000 {
        play.after(Duration::from_millis(100)).output();
    }
    assert_eq!(play.journal.len() - before, 34, "1000 s in steps of 30 s");
}

#[test]
fn context_reading_counts_as_output() {
    let mut play = Play::up(stream());
    play.measured(10);
    assert_eq!(
        patience(&play.state, &play.policy),
        Some(Duration::from_secs(630))
    );
}

#[test]
fn number_of_open_tool_calls_is_bounded() {
    let mut play = Play::up(stream());
    for call in 0..300 {
        play.tool(&call.to_string());
    }
    let tools = play.journal.len();
    play.tool("one more");
    assert_eq!(
        play.journal.len(),
        tools,
        "the number of recorded tool calls is bounded"
    );
}

#[test]
fn suspension_extends_every_timeout() {
    let mut play = Play::up(stream());
    play.tool("a").hush();
    let before = patience(&play.state, &play.policy).unwrap();
    let duration = Duration::from_secs(5000);
    play.seconds(5000)
        .input("stood still", Input::Suspended { duration })
        .wake();
    assert_eq!(patience(&play.state, &play.policy), Some(before));
    play.tool_ended("a").resulted(true).exited(0);
    insta::assert_snapshot!(play.log(), @"
    5000.0 stood still: Suspended(5000000 ms)
    5000.0 wake: -
    5000.0 tool ended: ToolEnded(a)
    5000.0 resulted true: TurnResulted(true)
    5000.0 exited 0: IterationCompleted(1 succeeded), WaitStarted(delay 5s)
    ");
    assert_eq!(
        play.state.stats.execution_ms, 0,
        "suspended time does not count as execution time"
    );
}

#[test]
fn suspension_does_not_extend_a_wait() {
    let mut play = Play::up(Policy::default());
    play.exited(0).hush().seconds(60);
    let duration = Duration::from_secs(60);
    play.input("stood still", Input::Suspended { duration })
        .wake();
    insta::assert_snapshot!(play.log(), @"
    60.0 stood still: -
    60.0 wake: IterationStarted(2 attempt 1) ! launch
    ");
}
