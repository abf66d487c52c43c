//! Reboots of an agent with one process per turn: when a session is replaced.

use tachikoma_core::policy::RebootRules;
use tachikoma_core::{LoopEvent, Policy, Record, SessionNo, Urgency};

use super::stream;
use crate::play::Play;

fn rules(rules: RebootRules) -> Policy {
    Policy {
        reboot: rules,
        ..stream()
    }
}

#[test]
fn context_at_exactly_the_redline_causes_a_reboot() {
    let mut play = Play::up(stream());
    play.hush().measured(849).measured(850).killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 849: ContextMeasured(84.9%)
    0.0 measured 850: ContextMeasured(85%), RebootRequested(context at 85%), EndingRequested(hand over within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 killed 2: IterationCompleted(1 handed over, needs reboot), RebootStarted(context at 85%), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn a_reboot_waits_for_the_tool_call_in_flight_unless_it_is_immediate() {
    let mut play = Play::up(stream());
    play.tool("a").hush().measured(900).measured(910);
    play.seconds(2).tool_ended("a");
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 900: ContextMeasured(90%), RebootRequested(context at 90%), EndingRequested(hand over within 30s)
    0.0 measured 910: ContextMeasured(91%)
    2.0 tool ended: ToolEnded(a), AgentSignaled(interrupt 10s) ! signal interrupt
    ");
    let mut play = Play::up(rules(RebootRules {
        immediate: true,
        ..RebootRules::default()
    }));
    play.tool("a").hush().measured(900);
    insta::assert_snapshot!(play.log(), @"0.0 measured 900: ContextMeasured(90%), RebootRequested(context at 90%), EndingRequested(hand over within 0s), AgentSignaled(interrupt 10s) ! signal interrupt");
}

#[test]
fn an_iteration_that_was_handed_over_counts_toward_the_limit_but_not_as_failure() {
    let mut play = Play::up(Policy {
        max_iterations: 1,
        ..stream()
    });
    play.hush().measured(900).killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 900: ContextMeasured(90%), RebootRequested(context at 90%), EndingRequested(hand over within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 killed 2: IterationCompleted(1 handed over, needs reboot), Completed(the limit of 1 iteration is reached) ! finish
    ");
    assert_eq!(play.state.stats.handed_over, 1);
    assert_eq!(play.state.failure_streak, 0);
}

#[test]
fn a_reboot_of_a_paused_loop_keeps_it_paused() {
    let mut play = Play::up(Policy::default());
    play.exited(0).pause(Urgency::Graceful).hush();
    play.reboot();
    insta::assert_snapshot!(play.log(), @"0.0 reboot: PauseRequested, RebootStarted(asked for by the operator), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), Paused(delay 5s) ! ok: reboots and stays paused");
}

#[test]
fn manual_reboot_works_with_reboots_disabled_and_hands_the_iteration_over() {
    let mut play = Play::up(rules(RebootRules {
        enabled: false,
        max_reboots: Some(0),
        ..RebootRules::default()
    }));
    play.hush().measured(990).reboot().killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 990: ContextMeasured(99%)
    0.0 reboot: RebootRequested(asked for by the operator), EndingRequested(hand over within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: reboots; iteration 1 ends, and the new session continues its work
    0.0 killed 2: IterationCompleted(1 handed over, needs reboot), RebootStarted(asked for by the operator), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn loop_ends_with_advice_when_a_reboot_is_needed_and_max_restarts_is_reached() {
    let mut play = Play::up(rules(RebootRules {
        max_reboots: Some(1),
        ..RebootRules::default()
    }));
    play.measured(900).killed(2).launched().hush();
    play.measured(900).killed(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 900: ContextMeasured(90%), RebootVerified(its first reading is 90.0 %, which is not below the redline of 85.0 %), StopRequested(a reboot is needed (context at 90%), but all 1 are used up (max_restarts = 1); make the task smaller, or raise max_restarts), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 killed 2: IterationCompleted(2 interrupted), Error(a reboot is needed (context at 90%), but all 1 are used up (max_restarts = 1); make the task smaller, or raise max_restarts) ! finish
    ");
}

#[test]
fn reboot_by_iteration_count_happens_between_iterations_and_never_interrupts_one() {
    let mut play = Play::up(rules(RebootRules {
        after_iterations: Some(1),
        ..RebootRules::default()
    }));
    play.hush().resulted(true).exited(0);
    play.sleep().launched().measured(500);
    play.resulted(true).exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(1 succeeded), RebootRequested(1 iteration in this session), RebootStarted(1 iteration in this session), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 launched: AgentLaunched(77)
    5.0 measured 500: ContextMeasured(50%), RebootVerified(50%)
    5.0 resulted true: TurnResulted(true)
    5.0 exited 0: IterationCompleted(2 succeeded), RebootRequested(1 iteration in this session, not before 295s), WaitStarted(delay 5s)
    ");
}

#[test]
fn session_above_the_redline_is_rebooted_before_the_first_prompt_of_the_next_run() {
    let mut play = Play::up(stream());
    play.measured(900).stop(Urgency::Now).killed(2).hush();
    play.start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after operator), RebootStarted(context at 90%), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! launch");
    let mut play = Play::up(rules(RebootRules {
        after_iterations: Some(1),
        ..RebootRules::default()
    }));
    play.resulted(true).exited(0).stop(Urgency::Now).hush();
    play.start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after operator), IterationStarted(2 attempt 1) ! launch");
}

#[test]
fn reboot_happens_once_after_a_crash_at_any_record() {
    let one = rules(RebootRules {
        after_iterations: Some(1),
        max_reboots: Some(1),
        ..RebootRules::default()
    });
    let played = || {
        let mut play = Play::up(one.clone());
        play.resulted(true).exited(0);
        play
    };
    let journal = played().journal;
    let completed = |record: &Record| matches!(record.event, LoopEvent::IterationCompleted { .. });
    let first = journal
        .iter()
        .position(completed)
        .expect("the iteration ended")
        + 1;
    for synced in first..=journal.len() {
        let mut play = played();
        play.crash_after(synced);
        assert_eq!(play.state.stats.reboots, 1, "after {synced} records");
        assert_eq!(play.state.session.number, SessionNo(2));
    }
}
