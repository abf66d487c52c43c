//! The operator is asked, answers or does not answer, and sends messages to the agent.

use std::time::Duration;

use tachikoma_core::policy::{AgentTraits, AutocommitRules, RebootRules};
use tachikoma_core::{
    Choice, Input, LoopState, OperatorRequest, Policy, Status, Urgency, next_deadline,
    text_before_prompt,
};

use crate::play::Play;

fn attended() -> Policy {
    Policy {
        attended: true,
        ..Policy::default()
    }
}

fn confirming() -> Policy {
    Policy {
        iteration_delay: Duration::ZERO,
        reboot: RebootRules {
            confirm: Some(Duration::from_secs(600)),
            ..RebootRules::default()
        },
        agent: AgentTraits {
            event_stream: true,
            ..AgentTraits::default()
        },
        ..Policy::default()
    }
}

#[test]
fn operator_is_asked_before_the_first_iteration_and_after_each() {
    let mut play = Play::new(attended());
    play.start().answer(Choice::Continue).launched().exited(0);
    play.seconds(1).answer(Choice::Continue).sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), Asked(1: iteration 1 is next? continue, reboot, edit, pause, stop within 600s)
    0.0 answer continue: Answered(1 continue by Operator), SessionStarted(1), IterationStarted(1 attempt 1) ! launch ! ok: the loop continues
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(1 succeeded), Asked(2: iteration 1 is over? continue, skip, reboot, edit, pause, stop within 600s)
    1.0 answer continue: Answered(2 continue by Operator), WaitStarted(delay 4s) ! ok: the loop continues
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn unanswered_question_pauses_the_loop() {
    let mut play = Play::new(attended());
    play.start().sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(new), Asked(1: iteration 1 is next? continue, reboot, edit, pause, stop within 600s)
    600.0 wake: Answered(1 pause by Default), Paused(-)
    ");
    assert_eq!(play.state.public(), LoopState::Paused);
    play.hush()
        .command("resume", tachikoma_core::LoopCommand::Resume);
    insta::assert_snapshot!(play.log(), @"600.0 resume: Resumed, SessionStarted(1), IterationStarted(1 attempt 1) ! launch ! ok: the loop continues");
    let mut endless = Play::new(Policy {
        question_timeout: Duration::ZERO,
        ..attended()
    });
    endless.start();
    assert_eq!(next_deadline(&endless.policy, &endless.state), None);
    let status = Status::of(&endless.state, true);
    let waiting = status.waiting.unwrap();
    assert_eq!((waiting.reason.as_str(), waiting.until), ("operator", None));
}

#[test]
fn pause_during_an_iteration_keeps_the_question() {
    let mut play = Play::new(attended());
    play.start().answer(Choice::Continue).launched().hush();
    play.pause(Urgency::Graceful).exited(0);
    play.command("resume", tachikoma_core::LoopCommand::Resume);
    play.pause(Urgency::Graceful);
    play.command("resume", tachikoma_core::LoopCommand::Resume);
    insta::assert_snapshot!(play.log(), @"
    0.0 pause: PauseRequested ! ok: pauses after iteration 1
    0.0 exited 0: IterationCompleted(1 succeeded), Paused(delay 5s)
    0.0 resume: Resumed, Asked(2: iteration 1 is over? continue, skip, reboot, edit, pause, stop within 600s) ! ok: the loop continues
    0.0 pause: Paused(delay 5s) ! ok: paused
    0.0 resume: Resumed, WaitStarted(delay 5s) ! ok: the loop continues
    ");
}

#[test]
fn operator_is_asked_about_the_last_iteration_unless_they_stopped_the_loop() {
    let mut policy = attended();
    policy.max_iterations = 1;
    let mut play = Play::new(policy);
    play.start().answer(Choice::Continue).launched().hush();
    play.exited(0).crash().answer(Choice::Edit);
    play.answer(Choice::Pause).resume();
    let mut all = play.log();
    let mut stopped = Play::new(attended());
    stopped.start().answer(Choice::Continue).launched().hush();
    stopped.stop(Urgency::Graceful).exited(0);
    all += &stopped.log();
    insta::assert_snapshot!(all, @"
    0.0 exited 0: IterationCompleted(1 succeeded), Asked(2: iteration 1 is over; `continue` ends the loop: the limit of 1 iteration is reached? continue, pause, stop within 600s)
    0.0 start: Started(after crash)
    0.0 answer edit: - ! refused in running: `edit` is not an answer to question 2; use one of: continue, pause, stop
    0.0 answer pause: Answered(2 pause by Operator), Paused(delay 5s) ! ok: paused
    0.0 resume: Resumed, Completed(the limit of 1 iteration is reached) ! finish ! ok: the loop continues
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    0.0 exited 0: IterationCompleted(1 interrupted), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn stale_or_invalid_answers_are_refused() {
    let mut play = Play::new(attended());
    play.start().hush();
    play.answer_to(Some(7), Choice::Continue)
        .answer(Choice::Yes)
        .answer(Choice::Rollback);
    let prompt = None;
    let choice = Choice::Edit;
    play.request(
        "answer edit",
        OperatorRequest::Answer {
            id: None,
            choice,
            prompt,
        },
    );
    insta::assert_snapshot!(play.log(), @"
    0.0 answer continue: - ! refused in running: question 7 is no longer open; question 1 is
    0.0 answer yes: - ! refused in running: `yes` is not an answer to question 1; use one of: continue, reboot, edit, pause, stop
    0.0 answer rollback: - ! refused in running: `rollback` is not an answer to question 1; use one of: continue, reboot, edit, pause, stop
    0.0 answer edit: - ! refused in running: only `edit` takes a prompt, and it needs one
    ");
    assert!(play.state.question().is_some());
    play.answer_to(Some(1), Choice::Continue);
    play.hush().answer(Choice::Continue);
    insta::assert_snapshot!(play.log(), @"0.0 answer continue: - ! refused in running: no question is open");
}

#[test]
fn open_question_keeps_its_number_and_deadline_after_a_crash_of_the_runner() {
    let mut play = Play::new(attended());
    play.start().seconds(100);
    let before = play.state.question().cloned();
    play.hush().crash();
    assert_eq!(play.state.question().cloned(), before);
    insta::assert_snapshot!(play.log(), @"100.0 start: Started(after crash)");
    play.seconds(1000).hush().crash();
    insta::assert_snapshot!(play.log(), @"1100.0 start: Started(after crash), Answered(1 pause by Default), Paused(-)");
}

fn hold(id: u32, writing: bool) -> OperatorRequest {
    OperatorRequest::Hold { id, writing }
}

#[test]
fn question_timeout_restarts_when_the_operator_stops_writing_the_answer() {
    let mut reboot = Play::new(Policy {
        question_timeout: Duration::from_secs(7),
        ..confirming()
    });
    reboot.start().launched().measured(900).resulted(true);
    reboot.exited(0).hush();
    reboot.seconds(60).request("hold", hold(1, true));
    reboot.seconds(60).request("let go", hold(1, false)).sleep();
    let mut all = reboot.log();
    let mut endless = Play::new(Policy {
        question_timeout: Duration::ZERO,
        ..attended()
    });
    endless.start().hush();
    endless.request("hold", hold(1, true));
    endless.request("let go", hold(1, false)).crash();
    all += &endless.log();
    insta::assert_snapshot!(all, @"
    60.0 hold: Held(1 until it is written) ! ok: the timeout of the question is stopped
    120.0 let go: Held(1 for its whole time) ! ok: the timeout of the question starts again
    720.0 wake: Answered(1 pause by Default), Paused(-)
    0.0 hold: - ! ok: the timeout of the question is stopped
    0.0 let go: - ! ok: the timeout of the question starts again
    0.0 start: Started(after crash)
    ");
}

#[test]
fn question_does_not_time_out_while_its_answer_is_written() {
    let mut play = Play::new(attended());
    play.start().hush();
    play.request("hold", hold(7, true))
        .request("hold", hold(1, true));
    play.request("hold", hold(1, true));
    let shown = |play: &Play| Status::of(&play.state, true).waiting.unwrap().until;
    assert_eq!(next_deadline(&play.policy, &play.state), None);
    assert_eq!(shown(&play), None);
    play.seconds(3600).request("let go", hold(1, false));
    assert_eq!(shown(&play), next_deadline(&play.policy, &play.state));
    play.seconds(590).request("hold", hold(1, true)).crash();
    play.sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 hold: - ! refused in running: question 7 is no longer open
    0.0 hold: Held(1 until it is written) ! ok: the timeout of the question is stopped
    0.0 hold: - ! ok: the timeout of the question is stopped
    3600.0 let go: Held(1 for its whole time) ! ok: the timeout of the question starts again
    4190.0 hold: Held(1 until it is written) ! ok: the timeout of the question is stopped
    4190.0 start: Started(after crash), Held(1 for its whole time)
    4790.0 wake: Answered(1 pause by Default), Paused(-)
    ");
}

#[test]
fn commands_are_accepted_while_a_question_is_open() {
    let open = || {
        let mut play = Play::new(attended());
        play.start().answer(Choice::Continue).launched().exited(0);
        play.hush();
        play
    };
    let mut all = String::new();
    all += &open().pause(Urgency::Graceful).log();
    all += &open().stop(Urgency::Graceful).log();
    all += &open()
        .command("skip", tachikoma_core::LoopCommand::SkipIteration)
        .log();
    all += &open().reboot().log();
    all += &open()
        .request("attend off", OperatorRequest::Attend { on: false })
        .log();
    insta::assert_snapshot!(all, @"
    0.0 pause: Paused(delay 5s) ! ok: paused
    0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped
    0.0 skip: Answered(2 skip by Operator), IterationStarted(2 attempt 1) ! launch ! ok: skips the question
    0.0 reboot: RebootStarted(asked for by the operator), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), Asked(3: iteration 1 is over? continue, skip, reboot, edit, pause, stop within 600s) ! ok: reboots
    0.0 attend off: Attended(false), WaitStarted(delay 5s) ! ok: attended mode is off; the loop continues
    ");
}

#[test]
fn loop_waits_for_a_rollback() {
    let rolling = || {
        let mut play = Play::new(Policy {
            autocommit: Some(AutocommitRules {
                repository: true,
                commit: false,
                on_failure: false,
                timeout: Duration::from_secs(60),
            }),
            ..attended()
        });
        play.start().answer(Choice::Continue).launched();
        play.snapshot("5a", 0).exited(0).kept(2, 0);
        play.answer(Choice::Rollback).hush();
        play
    };
    let back = |play: &mut Play| {
        let iteration = 1;
        let result = Ok("it is back".to_owned());
        play.input("back", Input::RolledBack { iteration, result })
            .log()
    };
    let mut all = String::new();
    all += &back(rolling().stop(Urgency::Graceful).stop(Urgency::Now));
    all += &back(rolling().pause(Urgency::Now));
    all += &back(rolling().reboot());
    all += &back(rolling().crash());
    all += &rolling().seconds(10_000).crash().log();
    all += &rolling().sleep().log();
    let kill = Urgency::Kill;
    all += &rolling()
        .input(
            "kill",
            Input::Shutdown {
                signal: 2,
                urgency: kill,
            },
        )
        .log();
    insta::assert_snapshot!(all, @"
    0.0 stop: StopRequested(stopped by the operator) ! ok: stops after the rollback
    0.0 stop: StopRequested(stopped by the operator) ! ok: stops after the rollback
    0.0 back: RolledBack(1 ok), Noted(it is back), CheckGivenUp(the work tree was rolled back after the claim), Stopped(stopped by the operator) ! finish
    0.0 pause: PauseRequested ! ok: pauses after the rollback
    0.0 back: RolledBack(1 ok), Noted(it is back), CheckGivenUp(the work tree was rolled back after the claim), Paused(delay 5s)
    0.0 reboot: RebootRequested(asked for by the operator) ! ok: reboots after the rollback
    0.0 back: RolledBack(1 ok), Noted(it is back), CheckGivenUp(the work tree was rolled back after the claim), RebootStarted(asked for by the operator), AutocommitStarted(checkpoint within 60s) ! survey
    0.0 start: Started(after crash) ! roll back to 1 again
    0.0 back: RolledBack(1 ok), Noted(it is back), CheckGivenUp(the work tree was rolled back after the claim), Asked(3: iteration 1 is over, and was rolled back? continue, skip, reboot, edit, pause, stop within 600s)
    10000.0 start: Started(after crash) ! roll back to 1 again
    1500.0 wake: RolledBack(1 the loop ended during the rollback; the work tree may be rolled back in part; its earlier content is saved (`git for-each-ref refs/tachikoma`)), Error(the rollback did not finish within 25 minutes; check the work tree, then run the loop again) ! finish
    0.0 kill: RolledBack(1 the loop ended during the rollback; the work tree may be rolled back in part; its earlier content is saved (`git for-each-ref refs/tachikoma`)), Stopped(stopped by SIGINT (Ctrl-C)) ! finish
    ");
}

#[test]
fn operator_confirms_or_postpones_a_reboot_or_pauses_the_loop() {
    let redline = |p: &mut Play| _ = p.launched().measured(900).resulted(true).exited(0);
    let mut yes = Play::new(confirming());
    yes.start();
    redline(&mut yes);
    yes.answer(Choice::Yes);
    insta::assert_snapshot!(yes.log(), @"
    0.0 start: Started(new), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 measured 900: ContextMeasured(90%), RebootRequested(context at 90%)
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(1 succeeded, needs reboot), Asked(1: a reboot is due: context at 90%? yes, no, pause, stop within 600s)
    0.0 answer yes: Answered(1 yes by Operator), RebootStarted(context at 90%), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! launch ! ok: reboots
    ");

    let mut no = Play::new(confirming());
    no.start();
    redline(&mut no);
    no.hush().answer(Choice::No);
    let reboot = Status::of(&no.state, true).reboot.unwrap();
    assert_eq!(
        reboot.put_off,
        Some(6),
        "the reboot is postponed until iteration 6"
    );
    for _ in 0..4 {
        redline(&mut no);
        assert!(no.state.question().is_none(), "the reboot is postponed");
    }
    no.hush();
    redline(&mut no);
    insta::assert_snapshot!(no.log(), @"
    0.0 launched: AgentLaunched(77)
    0.0 measured 900: -
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(6 succeeded, needs reboot), Asked(2: a reboot is due: context at 90%? yes, no, pause, stop within 600s)
    ");

    let mut nobody = Play::new(confirming());
    nobody.start();
    redline(&mut nobody);
    nobody.hush().sleep();
    insta::assert_snapshot!(nobody.log(), @"600.0 wake: Answered(1 pause by Default), Paused(-)");
}

#[test]
fn question_about_a_reboot_shows_current_figures() {
    let mut play = Play::new(confirming());
    play.start();
    for tokens in [900, 905, 910, 915, 920] {
        play.launched().measured(tokens).resulted(true).exited(0);
        if tokens == 900 {
            play.answer(Choice::No);
        }
    }
    play.hush()
        .launched()
        .measured(930)
        .resulted(true)
        .exited(0);
    play.answer(Choice::Yes);
    insta::assert_snapshot!(play.log(), @"
    0.0 launched: AgentLaunched(77)
    0.0 measured 930: ContextMeasured(93%)
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(6 succeeded, needs reboot), RebootRequested(context at 93%), Asked(2: a reboot is due: context at 93%? yes, no, pause, stop within 600s)
    0.0 answer yes: Answered(2 yes by Operator), RebootStarted(context at 93%), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(7 attempt 1) ! launch ! ok: reboots
    ");
}

#[test]
fn reboot_question_does_not_offer_no_if_the_context_is_full() {
    let mut play = Play::new(confirming());
    play.start().launched().hush();
    play.measured(990).exited(0).answer(Choice::No);
    play.command("skip", tachikoma_core::LoopCommand::SkipIteration);
    play.reboot();
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 990: ContextMeasured(99%), RebootRequested(context at 99%), EndingRequested(hand over within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 exited 0: IterationCompleted(1 handed over, needs reboot), Asked(1: a reboot is due: context at 99%? yes, pause, stop within 600s)
    0.0 answer no: - ! refused in running: `no` is not an answer to question 1; use one of: yes, pause, stop
    0.0 skip: - ! refused in running: the context is full, so the reboot cannot be skipped; use `tachikoma answer yes` or `tachikoma stop`
    0.0 reboot: RebootStarted(asked for by the operator), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! launch ! ok: reboots
    ");
}

#[test]
fn messages_are_sent_during_a_tool_call_or_with_the_next_prompt() {
    let mut play = Play::new(Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            ..AgentTraits::default()
        },
        ..Policy::default()
    });
    play.start().launched().hush();
    play.tell("look at b")
        .tool("t")
        .tell("and at c")
        .tool_ended("t");
    play.tell("then at d").resulted(true);
    assert_eq!(
        text_before_prompt(&play.state, None, ""),
        "",
        "messages are not in the prompt before the attempt begins"
    );
    play.sleep();
    insta::assert_snapshot!(play.log(), @"
    0.0 tell: Told(1: look at b) ! ok: the agent gets the message with its next tool call, or with the next prompt
    0.0 tool: ToolStarted(t), PassedOn(1) ! tell look at b
    0.0 tell: Told(2: and at c), PassedOn(2) ! tell and at c ! ok: the message is sent to the agent now, while its tool runs
    0.0 tool ended: ToolEnded(t)
    0.0 tell: Told(3: then at d) ! ok: the agent gets the message with its next tool call, or with the next prompt
    0.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), WaitStarted(delay 5s)
    5.0 wake: IterationStarted(2 attempt 1) ! prompt
    ");
    let words = text_before_prompt(&play.state, None, "");
    assert_eq!(words, "The operator says:\n\nthen at d\n\n");
    play.crash();
    let again = text_before_prompt(&play.state, None, "");
    assert!(
        again.starts_with(&words),
        "the repeated attempt gets the message again: {again}"
    );
    assert!(again.contains("cut short; this is attempt 2."), "{again}");
    play.launched().exited(0).sleep();
    assert_eq!(
        text_before_prompt(&play.state, None, ""),
        "The operator says:\n\nthen at d\n\n",
        "a failed iteration repeats the message"
    );
    play.launched().resulted(true).sleep();
    assert_eq!(
        text_before_prompt(&play.state, None, ""),
        "",
        "a delivered message is not repeated"
    );
}

#[test]
fn messages_are_repeated_until_an_iteration_with_them_succeeds() {
    let says = "The operator says:\n\nlook at b\n\n";
    let told_with = |play: &Play| text_before_prompt(&play.state, None, "").starts_with(says);
    let mut play = Play::new(Policy {
        iteration_delay: Duration::ZERO,
        ..Policy::default()
    });
    play.start().tell("look at b").launched().exited(0);
    assert!(told_with(&play), "in the prompt of iteration 2");
    play.launched().stop(Urgency::Graceful).killed(2).start();
    assert!(told_with(&play), "a stop interrupted iteration 2");
    play.launched().skip().killed(2);
    assert!(told_with(&play), "the operator skipped iteration 3");
    play.launched().pause(Urgency::Now).killed(2).resume();
    assert!(told_with(&play), "a pause interrupted iteration 4");
    play.launched().crash();
    assert!(told_with(&play), "the runner died in iteration 5");
    play.launched().exited(0);
    assert_eq!(
        text_before_prompt(&play.state, None, ""),
        "",
        "iteration 5 succeeded"
    );
}
