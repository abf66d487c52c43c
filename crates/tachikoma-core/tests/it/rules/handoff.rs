//! Hand-offs: when a session is asked for one, and how the loop uses the answer.

use std::time::Duration;

use tachikoma_core::policy::{AgentTraits, RebootRules};
use tachikoma_core::{AgentInput, Context, LastSeen, Policy, Problem, WorkTree, checkpoint};

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

/// A loop after its session was asked for a hand-off at the redline.
fn asked(policy: Policy) -> Play {
    let mut play = Play::up(policy);
    play.named("one").measured(860).resulted(false).hush();
    play
}

/// A loop with a new session after a reboot and the first reading of its context.
fn rebooted() -> Play {
    let mut play = asked(session());
    play.said("of the first session").exited(0).opened();
    play.named("two").measured(100).hush();
    play
}

fn says(play: &mut Play, text: &str) {
    let text = text.to_owned();
    play.event("says", AgentInput::HandOffText { text });
}

fn handed_over(play: &Play) -> String {
    checkpoint(
        &play.state,
        &WorkTree::default(),
        &LastSeen::default(),
        50_000,
    )
}

#[test]
fn a_context_refilled_within_min_reboot_interval_hands_off_first_and_then_waits() {
    let mut play = rebooted();
    play.seconds(100).measured(860).resulted(false);
    play.said("of the second session").skip().sleep();
    play.exited(0).opened();
    insta::assert_snapshot!(play.log(), @"
    100.0 measured 860: ContextMeasured(86%), RebootRequested(context at 86%, not before 200s), EndingRequested(hand over within 0s), AgentSignaled(interrupt 5s) ! signal interrupt
    100.0 resulted false: TurnResulted(false), IterationCompleted(2 handed over, needs reboot), RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    100.0 said: TurnResulted(true), HandOffWritten(of the second session), RebootRequested(context at 86%, not before 200s), WaitStarted(reboot_window 200s)
    100.0 skip: - ! refused in running: the context is full, and the rate limits do not allow a reboot yet; `tachikoma reboot` reboots now
    300.0 wake: RebootStarted(context at 86%), ClosingStarted(within 10s) ! close
    300.0 exited 0: AgentExited(exit 0), SessionOpening(3) ! open 3
    300.0 launched: AgentLaunched(77)
    300.0 opened: SessionEnded(2), SessionStarted(3), RebootCompleted(2 to 3), IterationStarted(3 attempt 1) ! prompt
    ");
    assert_eq!(
        play.state.reboots.attempts, 2,
        "the reboot of each session counts once"
    );
}

#[test]
fn session_with_an_empty_early_hand_off_waits_and_is_asked_again() {
    let mut play = rebooted();
    play.seconds(100).measured(860).resulted(false);
    play.resulted(false).sleep().said("at last");
    insta::assert_snapshot!(play.log(), @"
    100.0 measured 860: ContextMeasured(86%), RebootRequested(context at 86%, not before 200s), EndingRequested(hand over within 0s), AgentSignaled(interrupt 5s) ! signal interrupt
    100.0 resulted false: TurnResulted(false), IterationCompleted(2 handed over, needs reboot), RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    100.0 resulted false: TurnResulted(false), Warned(the old session wrote no hand-off (it printed nothing); the new session gets its last output and tool calls instead), RebootRequested(context at 86%, not before 200s), WaitStarted(reboot_window 200s)
    300.0 wake: RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    300.0 said: TurnResulted(true), HandOffWritten(at last), ClosingStarted(within 10s) ! close
    ");
}

#[test]
fn hand_off_is_used_until_a_session_writes_a_newer_one() {
    let mut play = rebooted();
    play.seconds(400).measured(860).resulted(false);
    play.resulted(false).exited(0).opened();
    let text = handed_over(&play);
    assert!(
        text.contains("In the words of session 1, the last one that wrote a hand-off"),
        "{text}"
    );
    assert!(text.contains("of the first session"), "{text}");
}

#[test]
fn hand_off_request_that_hits_a_usage_limit_is_repeated_after_it() {
    let mut play = asked(session());
    let until = Some(play.moment().after(Duration::from_secs(3600)));
    play.failed("you have hit your limit", Some(Problem::Limited { until }));
    play.sleep().said("b is left");
    insta::assert_snapshot!(play.log(), @"
    0.0 failed: TurnResulted(false), RebootRequested(context at 86%), WaitStarted(usage_limit 3605s)
    3605.0 wake: RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    3605.0 said: TurnResulted(true), HandOffWritten(b is left), ClosingStarted(within 10s) ! close
    ");
    assert_eq!(play.state.limit_streak, 0);
}

#[test]
fn hand_off_request_that_fails_by_an_outage_is_repeated_after_it() {
    let mut play = asked(session());
    for _ in 0..2 {
        play.failed("Connection refused", Some(Problem::Unreachable))
            .sleep();
    }
    play.said("b is left");
    insta::assert_snapshot!(play.log(), @"
    0.0 failed: TurnResulted(false), RebootRequested(context at 86%), WaitStarted(outage 5s)
    5.0 wake: RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    5.0 failed: TurnResulted(false), RebootRequested(context at 86%), WaitStarted(outage 10s)
    15.0 wake: RebootStarted(context at 86%), HandOffRequested(within 120s) ! ask for the hand-off
    15.0 said: TurnResulted(true), HandOffWritten(b is left), ClosingStarted(within 10s) ! close
    ");
}

#[test]
fn a_runner_that_dies_during_the_hand_off_asks_again_in_the_same_conversation() {
    let mut play = asked(session());
    play.crash().opened().said("b is left");
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), RebootStarted(context at 86%), SessionOpening(1) ! open 1
    0.0 launched: AgentLaunched(77)
    0.0 opened: HandOffRequested(within 120s) ! ask for the hand-off
    0.0 said: TurnResulted(true), HandOffWritten(b is left), ClosingStarted(within 10s) ! close
    ");
}

#[test]
fn an_agent_that_dies_during_the_hand_off_is_asked_again_once() {
    let mut play = asked(session());
    play.exited(1).opened().exited(1);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 1: AgentExited(exit 1), SessionOpening(1) ! open 1
    0.0 launched: AgentLaunched(77)
    0.0 opened: HandOffRequested(within 120s) ! ask for the hand-off
    0.0 exited 1: AgentExited(exit 1), Warned(the old session wrote no hand-off (it ended with exit 1); the new session gets its last output and tool calls instead), SessionOpening(2) ! open 2
    ");
}

#[test]
fn unfinished_hand_off_text_is_used() {
    let mut play = asked(session());
    says(&mut play, "b is left");
    play.sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 says: HandOffWritten(b is left)
    120.0 wake: HandOffWritten((This hand-off was cut short: it did not answer in time.)

    b is left), ClosingStarted(within 10s) ! signal interrupt ! close
    ");
    // A Stop hook of the user makes the agent continue after its hand-off. The first text is used.
    let mut play = asked(session());
    says(&mut play, "all of what the next one has to know");
    says(&mut play, "done");
    play.said("done");
    insta::assert_snapshot!(play.log(), @"
    0.0 says: HandOffWritten(all of what the next one has to know)
    0.0 says: HandOffWritten(done)
    0.0 said: TurnResulted(true), HandOffWritten(all of what the next one has to know), ClosingStarted(within 10s) ! close
    ");
}

#[test]
fn hand_off_continues_above_the_hard_limit() {
    let mut play = asked(Policy {
        reboot: RebootRules::default(),
        ..session()
    });
    play.answering(960);
    says(&mut play, "b is left");
    play.measured(970).said("b is left");
    insta::assert_snapshot!(play.log(), @"
    0.0 answering 960: ContextMeasured(96%)
    0.0 says: HandOffWritten(b is left)
    0.0 measured 970: ContextMeasured(97%)
    0.0 said: TurnResulted(true), HandOffWritten(b is left), ClosingStarted(within 10s) ! close
    ");
    // A session above the hard limit, but below the size that the agent refuses, is asked for a hand-off too.
    let mut play = Play::up(session());
    let context = Context {
        tokens: 980,
        window: 1000,
        estimated: false,
    };
    let answering = false;
    play.named("one").event(
        "measured",
        AgentInput::ContextMeasured { context, answering },
    );
    play.hush().resulted(false);
    insta::assert_snapshot!(play.log(), @"0.0 resulted false: TurnResulted(false), IterationCompleted(1 handed over, needs reboot), RebootStarted(context at 98%), HandOffRequested(within 120s) ! ask for the hand-off");
}
