//! An agent with one process for all turns: prompts, messages to the agent, and reboots stage by stage.

use std::time::Duration;

use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::{AgentInput, HookPoint, Policy, RebootResult, SessionNo, Urgency};

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

fn rules(rules: RebootRules) -> Policy {
    Policy {
        reboot: rules,
        ..session()
    }
}

/// A loop in a reboot with hand-off, up to the start of the new session.
fn up_to_the_opening(policy: Policy) -> Play {
    let mut play = Play::up(policy);
    play.named("one").measured(500).tool("a").measured(860);
    play.tool_ended("a").resulted(false).said("b is left");
    play.exited(0);
    play
}

#[test]
fn a_turn_ends_with_its_result_and_the_next_prompt_goes_to_the_same_process() {
    let mut play = Play::up(session());
    play.hush()
        .named("one")
        .resulted(true)
        .resulted(false)
        .exited(3);
    play.sleep().launched().named("one");
    insta::assert_snapshot!(play.log(), @"
    0.0 named: SessionNamed(one)
    0.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), IterationStarted(2 attempt 1) ! prompt
    0.0 resulted false: TurnResulted(false), IterationFailed(2: the agent reported that its turn failed; streak 1), WaitStarted(backoff 1s)
    0.0 exited 3: AgentExited(exit 3)
    1.0 wake: IterationStarted(3 attempt 1) ! launch in one
    1.0 launched: AgentLaunched(77)
    1.0 named: -
    ");
}

#[test]
fn a_process_that_ends_between_two_turns_is_replaced_in_the_same_conversation() {
    let mut play = Play::up(Policy {
        iteration_delay: Duration::from_secs(5),
        ..session()
    });
    play.named("one").resulted(true).hush().exited(0).sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: AgentExited(exit 0)
    5.0 wake: IterationStarted(2 attempt 1) ! launch in one
    ");
}

#[test]
fn agent_is_asked_once_to_finish_and_the_redline_waits_for_the_end_of_the_tool_call() {
    let mut play = Play::up(session());
    play.named("one").hush();
    play.answering(699).answering(700).measured(720).tool("a");
    play.answering(860).seconds(1).tool_ended("a").measured(861);
    insta::assert_snapshot!(play.log(), @"
    0.0 answering 699: ContextMeasured(69.9%)
    0.0 answering 700: ContextMeasured(70%)
    0.0 measured 720: ContextMeasured(72%)
    0.0 tool: ToolStarted(a), WrapUpAdvised(72%) ! advise 72%
    0.0 answering 860: ContextMeasured(86%), RebootRequested(context at 86%), EndingRequested(hand over within 30s)
    1.0 tool ended: ToolEnded(a)
    1.0 measured 861: ContextMeasured(86.1%), AgentSignaled(interrupt 5s) ! signal interrupt
    ");
    play.hush()
        .resulted(false)
        .said("b is left")
        .exited(0)
        .opened();
    insta::assert_snapshot!(play.log(), @"
    1.0 resulted false: TurnResulted(false), IterationCompleted(1 handed over, needs reboot), RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    1.0 said: TurnResulted(true), HandOffWritten(b is left), ClosingStarted(within 10s) ! close
    1.0 exited 0: AgentExited(exit 0), SessionOpening(2) ! open 2
    1.0 launched: AgentLaunched(77)
    1.0 opened: SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! prompt
    ");
}

#[test]
fn turn_that_ends_before_the_redline_interrupt_counts_as_success() {
    let mut play = Play::up(session());
    play.named("one").answering(860).hush().resulted(true);
    insta::assert_snapshot!(play.log(), @"0.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded, needs reboot), RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off");
}

#[test]
fn no_hand_off_is_asked_for_in_a_full_window_in_an_immediate_reboot_or_without_preserve_summary() {
    let immediate = RebootRules {
        immediate: true,
        ..RebootRules::default()
    };
    let silent = RebootRules {
        ask_hand_off: false,
        ..RebootRules::default()
    };
    for (policy, tokens) in [
        (session(), 1000),
        (rules(immediate), 860),
        (rules(silent), 860),
    ] {
        let mut play = Play::up(policy);
        play.named("one").measured(tokens).hush().resulted(false);
        insta::allow_duplicates! {
            insta::assert_snapshot!(play.log().replace("100%", "86%"), @"0.0 resulted false: TurnResulted(false), IterationCompleted(1 handed over, needs reboot), RebootStarted(context at 86%), ClosingStarted(within 10s) ! close");
        }
    }
}

#[test]
fn reboot_continues_without_a_missing_hand_off() {
    let mut play = Play::up(session());
    play.named("one")
        .measured(860)
        .resulted(false)
        .hush()
        .sleep()
        .exited(0);
    insta::assert_snapshot!(play.log(), @"
    120.0 wake: Warned(the old session wrote no hand-off (it did not answer in time); the new session gets its last output and tool calls instead), ClosingStarted(within 10s) ! signal interrupt ! close
    120.0 exited 0: AgentExited(exit 0), SessionOpening(2) ! open 2
    ");
    let mut play = Play::up(session());
    play.named("one")
        .measured(860)
        .resulted(false)
        .hush()
        .resulted(false);
    insta::assert_snapshot!(play.log(), @"0.0 resulted false: TurnResulted(false), Warned(the old session wrote no hand-off (it printed nothing); the new session gets its last output and tool calls instead), ClosingStarted(within 10s) ! close");
}

#[test]
fn first_context_reading_of_the_new_session_verifies_the_reboot() {
    let mut play = up_to_the_opening(session());
    play.opened()
        .hush()
        .named("two")
        .measured(100)
        .measured(120);
    insta::assert_snapshot!(play.log(), @"
    0.0 named: SessionNamed(two)
    0.0 measured 100: ContextMeasured(10%), RebootVerified(10%)
    0.0 measured 120: ContextMeasured(12%)
    ");
    let entry = play
        .state
        .reboots
        .history
        .last()
        .expect("there was a reboot");
    assert_eq!(entry.result, RebootResult::Done);
    assert_eq!(entry.from_agent_id.as_deref(), Some("one"));
    assert_eq!(entry.to_agent_id.as_deref(), Some("two"));
    assert_eq!((entry.iteration, entry.from), (1, SessionNo(1)));
    assert_eq!(play.state.checkpoint.words.as_deref(), Some("b is left"));
}

#[test]
fn two_futile_reboots_in_a_row_end_the_loop_with_advice() {
    let mut play = up_to_the_opening(rules(RebootRules {
        min_interval: Duration::ZERO,
        ..RebootRules::default()
    }));
    play.opened()
        .named("two")
        .measured(870)
        .resulted(false)
        .said("x");
    play.exited(0)
        .opened()
        .hush()
        .named("three")
        .measured(880)
        .resulted(false);
    insta::assert_snapshot!(play.log(), @"
    0.0 named: SessionNamed(three)
    0.0 measured 880: ContextMeasured(88%), RebootVerified(its first reading is 88.0 %, which is not below the redline of 85.0 %), StopRequested(2 reboots in a row changed nothing (its first reading is 88.0 %, which is not below the redline of 85.0 %): the prompt and its hand-off alone fill the context; shorten the prompt, or lower handoff_max_bytes), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 resulted false: TurnResulted(false), IterationCompleted(3 interrupted), Error(2 reboots in a row changed nothing (its first reading is 88.0 %, which is not below the redline of 85.0 %): the prompt and its hand-off alone fill the context; shorten the prompt, or lower handoff_max_bytes) ! finish
    ");
    let mut play = up_to_the_opening(session());
    play.opened().hush().named("one");
    insta::assert_snapshot!(play.log(), @"0.0 named: SessionNamed(one), RebootVerified(the agent continued the same conversation)");
}

#[test]
fn reboot_within_min_reboot_interval_is_pending_and_its_hand_off_is_requested_at_once() {
    let mut play = up_to_the_opening(session());
    play.opened().named("two").measured(100).hush();
    play.seconds(100).measured(860).resulted(true);
    play.seconds(200).measured(870).resulted(false);
    insta::assert_snapshot!(play.log(), @"
    100.0 measured 860: ContextMeasured(86%), RebootRequested(context at 86%, not before 200s), EndingRequested(hand over within 0s), AgentSignaled(interrupt 5s) ! signal interrupt
    100.0 resulted true: TurnResulted(true), IterationCompleted(2 succeeded, needs reboot), RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    300.0 measured 870: ContextMeasured(87%)
    300.0 resulted false: TurnResulted(false), Warned(the old session wrote no hand-off (it printed nothing); the new session gets its last output and tool calls instead), ClosingStarted(within 10s) ! close
    ");
}

/// Turns in a context that is almost full cost the most and achieve the least.
#[test]
fn a_context_at_the_hard_limit_hands_off_and_waits_for_its_reboot() {
    let mut play = up_to_the_opening(session());
    play.opened().named("two").measured(100).hush();
    play.seconds(100).measured(960).resulted(false).skip();
    play.sleep();
    insta::assert_snapshot!(play.log(), @"
    100.0 measured 960: ContextMeasured(96%), RebootRequested(context at 96%, not before 200s), EndingRequested(hand over within 0s), AgentSignaled(interrupt 5s) ! signal interrupt
    100.0 resulted false: TurnResulted(false), IterationCompleted(2 handed over, needs reboot), RebootStarted(context at 96%), HandOffRequested(within 120s) ! ask for the hand-off
    100.0 skip: - ! refused in rebooting: the loop is rebooting; no iteration runs
    220.0 wake: Warned(the old session wrote no hand-off (it did not answer in time); the new session gets its last output and tool calls instead), RebootRequested(context at 96%, not before 80s), WaitStarted(reboot_window 80s) ! signal interrupt
    ");
}

#[test]
fn reboot_by_the_operator_ignores_the_rate_limit() {
    let mut play = up_to_the_opening(session());
    play.opened()
        .named("two")
        .measured(100)
        .measured(860)
        .hush();
    play.reboot().resulted(false);
    insta::assert_snapshot!(play.log(), @"
    0.0 reboot: RebootRequested(asked for by the operator) ! ok: reboots; iteration 2 ends, and the new session continues its work
    0.0 resulted false: TurnResulted(false), IterationCompleted(2 handed over, needs reboot), RebootStarted(asked for by the operator), HandOffRequested(within 120s) ! ask for the hand-off
    ");
}

#[test]
fn failed_start_of_a_new_session_resumes_the_old_conversation_and_delays_the_next_reboot() {
    let mut play = up_to_the_opening(session());
    play.hush().not_opened().launched().measured(860);
    insta::assert_snapshot!(play.log(), @"
    0.0 not opened: AgentExited(an unknown exit), RebootFailed(the new session could not be opened: no such program), RebootRequested(context at 86%, not before 60s), IterationStarted(2 attempt 1) ! launch in one
    0.0 launched: AgentLaunched(77)
    0.0 measured 860: -
    ");
    assert_eq!(play.state.session.number, SessionNo(1));
}

#[test]
fn new_session_that_does_not_answer_is_killed_before_the_old_one_resumes() {
    let mut play = up_to_the_opening(session());
    play.launched().hush().sleep().killed(9);
    insta::assert_snapshot!(play.log(), @"
    60.0 wake: ClosingStarted(within 15s) ! signal kill
    60.0 killed 9: AgentExited(signal 9), RebootFailed(the new session did not answer in time), RebootRequested(context at 86%, not before 60s), IterationStarted(2 attempt 1) ! launch in one
    ");
}

#[test]
fn reboots_that_fail_again_and_again_end_the_loop() {
    let mut play = up_to_the_opening(rules(RebootRules {
        failure_cooldown: Duration::ZERO,
        ask_hand_off: false,
        ..RebootRules::default()
    }));
    for _ in 0..2 {
        play.not_opened();
    }
    play.hush().not_opened();
    insta::assert_snapshot!(play.log(), @"0.0 not opened: AgentExited(an unknown exit), RebootFailed(the new session could not be opened: no such program), StopRequested(3 reboots failed in a row ([reboot] max_consecutive_failures = 3); the last one: the new session could not be opened: no such program), Error(3 reboots failed in a row ([reboot] max_consecutive_failures = 3); the last one: the new session could not be opened: no such program) ! finish");
}

#[test]
fn old_process_that_does_not_exit_is_terminated_and_killed() {
    let mut play = Play::up(session());
    play.named("one")
        .measured(860)
        .resulted(false)
        .said("b is left");
    play.hush().sleep().sleep().sleep();
    insta::assert_snapshot!(play.log(), @"
    10.0 wake: AgentSignaled(terminate 5s) ! signal terminate
    15.0 wake: AgentSignaled(kill 15s) ! signal kill
    30.0 wake: Error(the agent (pid 77) cannot be killed: it is stuck in the kernel, or its parent `loop-guard` is stopped; look at both with `ps`, then run the loop again) ! finish
    ");
}

#[test]
fn reboot_hooks_run_before_the_old_session_is_closed_and_after_the_new_one_answers() {
    let hooked = rules(RebootRules {
        hooks_before: Some(Duration::from_secs(30)),
        hooks_after: Some(Duration::from_secs(30)),
        ask_hand_off: false,
        ..RebootRules::default()
    });
    let mut play = Play::up(hooked.clone());
    play.named("one").measured(860).hush().resulted(false);
    play.hooks(HookPoint::BeforeReboot, None).exited(0).opened();
    play.hooks(HookPoint::AfterReboot, Some("exit 1"));
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted false: TurnResulted(false), IterationCompleted(1 handed over, needs reboot), RebootStarted(context at 86%), HooksStarted(before_reboot) ! run before_reboot
    0.0 hooks: HooksRan(before_reboot, 1), ClosingStarted(within 10s) ! close
    0.0 exited 0: AgentExited(exit 0), SessionOpening(2) ! open 2
    0.0 launched: AgentLaunched(77)
    0.0 opened: SessionEnded(1), SessionStarted(2), HooksStarted(after_reboot) ! run after_reboot
    0.0 hooks: HooksRan(after_reboot, 1), Warned(the hook `hook.sh` failed: exit 1; the reboot is not undone), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! prompt
    ");
    let entry = play
        .state
        .reboots
        .history
        .last()
        .expect("there was a reboot");
    assert_eq!(
        entry.result,
        RebootResult::Done,
        "a failed hook does not undo the reboot"
    );
    assert_eq!(entry.hooks.len(), 2);
    let mut play = Play::up(hooked);
    play.named("one").measured(860).resulted(false).hush();
    play.hooks(HookPoint::BeforeReboot, Some("exit 1"));
    insta::assert_snapshot!(play.log(), @"0.0 hooks: HooksRan(before_reboot, 1), RebootFailed(the hook `hook.sh` failed: exit 1), RebootRequested(context at 86%, not before 60s), IterationStarted(2 attempt 1) ! prompt");
}

#[test]
fn reboot_hook_can_stop_the_loop() {
    let hooked = rules(RebootRules {
        hooks_before: Some(Duration::from_secs(30)),
        hooks_after: Some(Duration::from_secs(30)),
        ask_hand_off: false,
        ..RebootRules::default()
    });
    let mut play = Play::up(hooked.clone());
    play.named("one").measured(860).resulted(false).hush();
    play.hooks(HookPoint::BeforeReboot, Some("exit 125"));
    insta::assert_snapshot!(play.log(), @"0.0 hooks: HooksRan(before_reboot, 1), StopRequested(the hook `hook.sh` stopped the loop: exit 125), RebootFailed(the hook `hook.sh` failed: exit 125), Stopped(the hook `hook.sh` stopped the loop: exit 125) ! finish");
    let mut play = Play::up(hooked);
    play.named("one").measured(860).resulted(false);
    play.hooks(HookPoint::BeforeReboot, None).exited(0).opened();
    play.hush();
    play.hooks(HookPoint::AfterReboot, Some("exit 125"));
    insta::assert_snapshot!(play.log(), @"0.0 hooks: HooksRan(after_reboot, 1), StopRequested(the hook `hook.sh` stopped the loop: exit 125), Warned(the hook `hook.sh` failed: exit 125; the reboot is not undone), RebootCompleted(1 to 2), Stopped(the hook `hook.sh` stopped the loop: exit 125) ! finish");
}

#[test]
fn stop_ends_the_loop_at_once_in_every_stage_of_a_reboot() {
    let mut play = up_to_the_opening(session());
    play.hush().stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped");
}

#[test]
fn crash_during_a_reboot_restarts_it_without_a_second_hand_off_request() {
    let mut play = up_to_the_opening(session());
    play.hush().crash().opened();
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), RebootStarted(context at 86%), SessionOpening(2) ! open 2
    0.0 launched: AgentLaunched(77)
    0.0 opened: SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! prompt
    ");
    assert_eq!(play.state.stats.reboots, 1);
}

#[test]
fn later_runner_resumes_the_conversation_unless_configured_otherwise() {
    let mut play = Play::up(session());
    play.named("one").hush().crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch in one");
    let mut play = Play::up(Policy {
        persist_sessions: false,
        ..session()
    });
    play.named("one").hush().crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), SessionEnded(1), SessionStarted(2), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch");
}

#[test]
fn session_per_iteration_is_not_a_reboot() {
    let mut play = Play::up(Policy {
        fresh_each_iteration: true,
        agent: AgentTraits {
            event_stream: true,
            ..AgentTraits::default()
        },
        iteration_delay: Duration::ZERO,
        ..Policy::default()
    });
    play.named("one").resulted(true).hush().exited(0);
    insta::assert_snapshot!(play.log(), @"0.0 exited 0: IterationCompleted(1 succeeded), SessionEnded(1), SessionStarted(2), IterationStarted(2 attempt 1) ! launch");
    assert_eq!(play.state.stats.reboots, 0);
}

#[test]
fn redline_above_the_agents_refusal_is_lowered_with_a_warning() {
    let mut play = Play::up(Policy {
        agent: AgentTraits {
            tells_cost: false,
            refuses_before: Some(23_000),
            ..session().agent
        },
        ..rules(RebootRules {
            redline_percent: 92.0,
            ..RebootRules::default()
        })
    });
    play.named("one").hush().reading(10, 200_000);
    insta::assert_snapshot!(play.log(), @"0.0 measured 10: ContextMeasured(0.005%), Warned(context_redline_percent = 92 is above the point at which the agent rejects prompts (87.0 % of 200000 tokens): sessions are rebooted there; choose a smaller value)");
}

#[test]
fn tool_call_ended_by_our_interrupt_does_not_count_as_failed() {
    let failed = |play: &mut Play, id: &str| {
        let error = Some("no".to_owned());
        let id = id.to_owned();
        play.event("tool ended", AgentInput::ToolEnded { id, error });
    };
    let mut play = Play::up(session());
    play.tool("a");
    failed(&mut play, "a");
    play.tool("b").stop(Urgency::Now);
    failed(&mut play, "b");
    let calls: Vec<u32> = play
        .state
        .session
        .failed_calls
        .iter()
        .map(|call| call.times)
        .collect();
    assert_eq!(calls, [1], "{:?}", play.state.session.failed_calls);
}

#[test]
fn process_that_exits_before_reading_its_prompt_is_replaced() {
    let mut play = Play::up(session());
    play.named("one").resulted(true).hush().exited(0).launched();
    // The exit is a failure if the process is new, or if it has already reported something for this prompt.
    play.exited(1).sleep().launched().resulted(true);
    play.output().exited(2);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: AgentExited(exit 0), IterationStarted(2 attempt 2) ! launch in one
    0.0 launched: AgentLaunched(77)
    0.0 exited 1: IterationFailed(2: the agent ended with exit 1 and without a final result; streak 1), WaitStarted(backoff 1s)
    1.0 wake: IterationStarted(3 attempt 1) ! launch in one
    1.0 launched: AgentLaunched(77)
    1.0 resulted true: TurnResulted(true), IterationCompleted(3 succeeded), IterationStarted(4 attempt 1) ! prompt
    1.0 output: OutputSeen
    1.0 exited 2: IterationFailed(4: the agent ended with exit 2 and without a final result; streak 1), WaitStarted(backoff 1s)
    ");
}

#[test]
fn hand_off_of_an_earlier_session_keeps_its_session_number() {
    let mut play = up_to_the_opening(session());
    play.opened().named("two").resulted(true);
    assert_eq!(play.state.checkpoint.words.as_deref(), Some("b is left"));
    play.policy.reboot.ask_hand_off = false;
    play.reboot().resulted(false).exited(0).opened();
    assert_eq!(play.state.session.number, SessionNo(3));
    assert_eq!(play.state.checkpoint.words.as_deref(), Some("b is left"));
    assert_eq!(play.state.checkpoint.words_of, SessionNo(1));
}

#[test]
fn manual_reboot_ends_the_wait_for_a_reboot() {
    let mut play = up_to_the_opening(session());
    play.opened().named("two").measured(100).seconds(100);
    play.measured(960).resulted(false).said("done").hush();
    play.reboot().exited(0).opened();
    insta::assert_snapshot!(play.log(), @"
    100.0 reboot: RebootStarted(asked for by the operator), ClosingStarted(within 10s) ! close ! ok: reboots
    100.0 exited 0: AgentExited(exit 0), SessionOpening(3) ! open 3
    100.0 launched: AgentLaunched(77)
    100.0 opened: SessionEnded(2), SessionStarted(3), RebootCompleted(2 to 3), IterationStarted(3 attempt 1) ! prompt
    ");
}

#[test]
fn hand_off_turn_that_works_continues_past_the_hard_limit() {
    let mut play = Play::up(session());
    play.named("one").measured(860).resulted(false).hush();
    play.measured(900).measured(960).exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 900: ContextMeasured(90%)
    0.0 measured 960: ContextMeasured(96%)
    0.0 exited 0: AgentExited(exit 0), SessionOpening(1) ! open 1
    ");
}
