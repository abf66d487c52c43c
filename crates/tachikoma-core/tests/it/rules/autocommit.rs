//! Auto-commit: a survey and a commit of the work tree after an iteration, before a reboot and at the end of the loop.

use std::time::Duration;

use tachikoma_core::policy::AutocommitRules;
use tachikoma_core::{
    AutocommitResult, Committed, HookPoint, LoopState, Policy, Urgency, next_deadline,
};

use super::stream;
use crate::play::Play;

const RULES: AutocommitRules = AutocommitRules {
    repository: true,
    commit: true,
    on_failure: false,
    timeout: Duration::from_secs(300),
};

fn keeping(rules: AutocommitRules) -> Policy {
    Policy {
        autocommit: Some(rules),
        ..Policy::default()
    }
}

/// A policy for an agent with one process for all iterations.
fn in_a_session() -> Policy {
    let mut policy = keeping(RULES);
    policy.agent.persistent = true;
    policy.agent.event_stream = true;
    policy.iteration_delay = Duration::ZERO;
    policy
}

/// A loop in which the agent of the first iteration is running.
fn up() -> Play {
    let mut play = Play::up(keeping(RULES));
    play.hush();
    play
}

#[test]
fn successful_iteration_is_committed_before_the_loop_continues() {
    let mut play = up();
    play.snapshot("5a5a5a5", 0).exited(0).seconds(2).kept(3, 3);
    play.sleep().snapshot("5a5a5a5", 0);
    insta::assert_snapshot!(play.log(), @"
    0.0 snapshot: SnapshotTaken(1: 5a5a5a5)
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    2.0 kept: AutocommitFinished(3 changed, 3 as 0000001, 0 left), ProgressMeasured(1: 11), WaitStarted(delay 3s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    5.0 snapshot: -
    ");
    assert_eq!(play.state.tracked_work.files_changed, Some(3));
    assert_eq!(play.state.tracked_work.commits, 1);
    assert_eq!(play.state.tracked_work.uncommitted, 0);
}

#[test]
fn iteration_without_changes_records_no_autocommit_result() {
    let mut play = up();
    play.exited(0).kept(0, 0);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 kept: ProgressMeasured(1: 0), WaitStarted(delay 5s)
    ");
    assert_eq!(play.state.tracked_work.files_changed, Some(0));
}

#[test]
fn failed_iteration_is_committed_only_if_configured() {
    let mut play = up();
    play.exited(1).kept(2, 0).sleep().launched().hush();
    play.exited(0).kept(1, 3);
    insta::assert_snapshot!(play.log(), @"
    1.0 exited 0: IterationCompleted(2 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 2, succeeded, session 1, context unknown
    1.0 kept: AutocommitFinished(1 changed, 3 as 0000002, 0 left), ProgressMeasured(2: 11), WaitStarted(delay 5s)
    ");
    let mut play = Play::up(keeping(AutocommitRules {
        on_failure: true,
        ..RULES
    }));
    play.hush().exited(1);
    insta::assert_snapshot!(play.log(), @"0.0 exited 1: IterationFailed(1: the agent ended with exit 1; streak 1), AutocommitStarted(iteration within 360s) ! commit iteration 1, failed, session 1, context unknown");
}

#[test]
fn work_tree_is_surveyed_with_commits_switched_off() {
    let mut play = Play::up(keeping(AutocommitRules {
        commit: false,
        ..RULES
    }));
    play.hush().exited(0).kept(2, 0);
    play.stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 60s) ! survey
    0.0 kept: AutocommitFinished(2 changed, 2 left), ProgressMeasured(1: 1), WaitStarted(delay 5s)
    0.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped
    ");
}

#[test]
fn changes_of_an_interrupted_iteration_are_committed_with_the_next_success() {
    let mut play = up();
    play.skip().killed(2).kept(2, 0).launched();
    play.exited(0).kept(0, 2);
    insta::assert_snapshot!(play.log(), @"
    0.0 skip: EndingRequested(skip within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: skips iteration 1
    0.0 killed 2: IterationCompleted(1 skipped), AutocommitStarted(iteration within 60s) ! survey
    0.0 kept: AutocommitFinished(2 changed, 2 left), IterationStarted(2 attempt 1) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(2 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 2, succeeded, session 1, context unknown
    0.0 kept: AutocommitFinished(0 changed, 2 as 0000002, 0 left), ProgressMeasured(2: 0), WaitStarted(delay 5s)
    ");
}

#[test]
fn failed_commit_does_not_fail_the_iteration_and_is_retried_at_the_end() {
    let mut play = up();
    play.exited(0)
        .not_committed(2, ": the hook said no")
        .stop(Urgency::Graceful);
    play.kept(0, 2);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 kept: AutocommitFinished(2 changed, 2 left: the hook said no), ProgressMeasured(1: 1), WaitStarted(delay 5s)
    0.0 stop: AutocommitStarted(end within 360s) ! commit iteration 1, end, session 1, context unknown ! ok: stops after the commit
    0.0 kept: AutocommitFinished(0 changed, 2 as 0000002, 0 left), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn loop_ends_after_the_commit_of_its_last_iteration() {
    let mut play = Play::up(Policy {
        max_iterations: 1,
        ..keeping(RULES)
    });
    play.hush().exited(0).kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000001, 0 left), ProgressMeasured(1: 11), Completed(the limit of 1 iteration is reached) ! finish
    ");
    let mut play = up();
    play.claimed().kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 claimed: IterationCompleted(1 succeeded, claimed), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000001, 0 left), ProgressMeasured(1: 11), Completed(the work is complete) ! finish
    ");
}

#[test]
fn error_end_commits_remaining_changes_only_if_failures_are_committed() {
    for (on_failure, told) in [(false, "Error"), (true, "AutocommitStarted(end")] {
        let mut play = Play::up(Policy {
            max_consecutive_failures: 2,
            ..keeping(AutocommitRules {
                on_failure,
                ..RULES
            })
        });
        play.exited(1).not_committed(2, ": no").sleep().launched();
        play.exited(1).hush().not_committed(0, ": no");
        let words = play.log();
        assert!(words.contains(told), "{words}");
    }
}

#[test]
fn checkpoint_is_committed_for_every_outcome_of_the_iteration() {
    let mut play = Play::up(Policy {
        autocommit: Some(RULES),
        ..stream()
    });
    play.hush().measured(900).killed(2).kept(2, 0).kept(0, 2);
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 900: ContextMeasured(90%), RebootRequested(context at 90%), EndingRequested(hand over within 0s), AgentSignaled(interrupt 10s) ! signal interrupt
    0.0 killed 2: IterationCompleted(1 handed over, needs reboot), AutocommitStarted(iteration within 60s) ! survey
    0.0 kept: AutocommitFinished(2 changed, 2 left), ProgressMeasured(1: 1), RebootStarted(context at 90%), AutocommitStarted(checkpoint within 360s) ! commit iteration 1, checkpoint, session 1, context 90%
    0.0 kept: AutocommitFinished(0 changed, 2 as 0000002, 0 left), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn checkpoint_is_committed_after_the_hooks_unless_they_cancel_the_reboot() {
    let mut policy = keeping(RULES);
    policy.reboot.hooks_before = Some(Duration::from_secs(30));
    let mut play = Play::up(policy);
    play.exited(0).kept(0, 0).hush().reboot();
    play.hooks(HookPoint::BeforeReboot, None).kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 reboot: RebootStarted(asked for by the operator), HooksStarted(before_reboot) ! run before_reboot ! ok: reboots
    0.0 hooks: HooksRan(before_reboot, 1), AutocommitStarted(checkpoint within 360s) ! commit iteration 1, checkpoint, session 1, context unknown
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000002, 0 left), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), WaitStarted(delay 5s)
    ");
    play.pause(Urgency::Graceful)
        .reboot()
        .hush()
        .hooks(HookPoint::BeforeReboot, Some("no"));
    assert!(!play.log().contains("AutocommitStarted"));
}

#[test]
fn graceful_stop_waits_for_the_commit() {
    let mut play = up();
    play.exited(0).stop(Urgency::Graceful).kept(2, 2);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 stop: StopRequested(stopped by the operator) ! ok: stops after the commit
    0.0 kept: AutocommitFinished(2 changed, 2 as 0000001, 0 left), ProgressMeasured(1: 11), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn urgent_stop_cancels_the_commit() {
    let mut play = up();
    play.exited(0).stop(Urgency::Now);
    play.not_committed(2, ": called off");
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 stop: StopRequested(stopped by the operator), AutocommitCanceled(within 5s) ! call off ! ok: stops after the commit
    0.0 kept: AutocommitFinished(2 changed, 2 left: called off), ProgressMeasured(1: 1), Stopped(stopped by the operator) ! finish
    ");
    let mut play = up();
    play.stop(Urgency::Now).killed(2).kept(2, 0);
    insta::assert_snapshot!(play.log(), @"
    0.0 stop: StopRequested(stopped by the operator), EndingRequested(interrupt within 0s), AgentSignaled(interrupt 10s) ! signal interrupt ! ok: stops; iteration 1 is interrupted
    0.0 killed 2: IterationCompleted(1 interrupted), AutocommitStarted(iteration within 5s) ! survey
    0.0 kept: AutocommitFinished(2 changed, 2 left), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn second_kill_does_not_wait_for_the_canceled_commit() {
    let mut play = up();
    play.exited(0).shutdown(2, Urgency::Graceful);
    play.shutdown(2, Urgency::Now).shutdown(2, Urgency::Kill);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 signal 2: StopRequested(stopped by SIGINT (Ctrl-C))
    0.0 signal 2: StopRequested(stopped by SIGINT (Ctrl-C)), AutocommitCanceled(within 5s) ! call off
    0.0 signal 2: AutocommitGivenUp(iteration: it was canceled, and did not end at once), Stopped(stopped by SIGINT (Ctrl-C)) ! finish
    ");
    assert!(
        play.state.needs_survey(),
        "the canceled commit has not reported what changed"
    );
}

#[test]
fn pause_skip_and_reboot_are_accepted_while_a_commit_runs() {
    let mut play = up();
    play.exited(0).pause(Urgency::Graceful).kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 pause: PauseRequested ! ok: pauses after the commit
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000001, 0 left), ProgressMeasured(1: 11), Paused(delay 5s)
    ");
    let mut play = up();
    play.exited(0).pause(Urgency::Now);
    play.not_committed(1, ": called off");
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 pause: PauseRequested, AutocommitCanceled(within 5s) ! call off ! ok: pauses after the commit
    0.0 kept: AutocommitFinished(1 changed, 1 left: called off), ProgressMeasured(1: 1), Paused(delay 5s)
    ");
    let mut play = up();
    play.exited(1).skip().kept(1, 0);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 1: IterationFailed(1: the agent ended with exit 1; streak 1), AutocommitStarted(iteration within 60s) ! survey
    0.0 skip: AutocommitCanceled(within 5s) ! call off ! ok: skips the commit; the changes stay in the work tree
    0.0 kept: AutocommitFinished(1 changed, 1 left), ProgressMeasured(1: 1), IterationStarted(2 attempt 1) ! launch
    ");
    let mut play = up();
    play.exited(0).reboot().kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 reboot: RebootRequested(asked for by the operator) ! ok: reboots after the commit
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000001, 0 left), ProgressMeasured(1: 11), RebootStarted(asked for by the operator), AutocommitStarted(checkpoint within 360s) ! commit iteration 1, checkpoint, session 1, context unknown
    ");
    let mut play = up();
    play.exited(0).kept(0, 0).reboot().hush();
    play.skip().kept(0, 0);
    insta::assert_snapshot!(play.log(), @"
    0.0 skip: AutocommitCanceled(within 5s) ! call off ! ok: skips the commit; the changes stay in the work tree
    0.0 kept: SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), WaitStarted(delay 5s)
    ");
}

#[test]
fn hanging_commit_times_out_and_a_late_result_is_dropped() {
    let mut play = up();
    play.exited(0);
    let late = play.state.tracked_work.number;
    play.sleep().launched().exited(0);
    let result = Ok(AutocommitResult::default());
    play.input(
        "late",
        tachikoma_core::Input::AutocommitFinished {
            number: late,
            result,
        },
    );
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    360.0 wake: AutocommitGivenUp(iteration: it did not end in time), IterationStarted(2 attempt 1) ! call off ! launch
    360.0 launched: AgentLaunched(77)
    360.0 exited 0: IterationCompleted(2 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 2, succeeded, session 1, context unknown
    360.0 late: -
    ");
    let mut play = Play::up(keeping(AutocommitRules {
        timeout: Duration::ZERO,
        ..RULES
    }));
    play.exited(0);
    assert_eq!(
        next_deadline(&play.policy, &play.state),
        None,
        "timeout 0 means no limit"
    );
}

#[test]
fn commit_interrupted_by_a_crash_of_the_runner_is_repeated() {
    let mut play = up();
    play.exited(0).hush().crash().kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000002, 0 left), ProgressMeasured(1: 11), WaitStarted(delay 5s)
    ");
    let mut play = up();
    play.exited(1).kept(2, 0).stop(Urgency::Graceful).hush();
    // A new runner does not know the request to stop that the dead runner got.
    play.crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), IterationStarted(2 attempt 1) ! launch");
    let mut play = up();
    play.exited(0).kept(0, 0).reboot().hush().crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), RebootStarted(asked for by the operator), AutocommitStarted(checkpoint within 360s) ! commit iteration 1, checkpoint, session 1, context unknown");
}

#[test]
fn changes_of_an_attempt_ended_by_a_crash_are_committed_when_the_loop_stops() {
    let mut play = up();
    play.pause(Urgency::Graceful).hush().crash();
    play.stop(Urgency::Graceful);
    let commit = Some(Committed {
        id: "0000001".to_owned(),
        files: 2,
    });
    play.answer_keep(Ok(AutocommitResult {
        commit,
        ..AutocommitResult::default()
    }));
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), AttemptCut(1 attempt 1), Paused(-)
    0.0 stop: AutocommitStarted(end within 360s) ! commit iteration 1, end, session 1, context unknown ! ok: stops after the commit
    0.0 kept: AutocommitFinished(0 changed, 2 as 0000001, 0 left), Stopped(stopped by the operator) ! finish
    ");
}

#[test]
fn new_runner_knows_whether_the_loop_may_have_changed_files_since_the_last_survey() {
    let mut play = up();
    assert!(play.state.needs_survey(), "an attempt is under way");
    play.exited(0);
    assert!(
        play.state.needs_survey(),
        "the survey of the iteration is running"
    );
    play.kept(1, 1);
    assert!(
        !play.state.needs_survey(),
        "changes made while the loop waits are not the loop's"
    );
    play.reboot();
    assert!(
        play.state.needs_survey(),
        "hooks and hand-offs may change something"
    );
    play.kept(0, 0).stop(Urgency::Graceful);
    assert!(!play.state.needs_survey());
    play.start().launched().exited(0);
    play.answer_keep(Err("git is gone".to_owned()));
    assert!(play.state.needs_survey(), "the survey failed");
    assert_eq!(play.state.tracked_work.files_changed, None);
}

#[test]
fn changes_committed_by_others_are_not_committed_at_the_end() {
    let mut play = up();
    play.exited(1).kept(2, 0).sleep().hush();
    play.snapshot("5a5a5a5", 0).launched().exited(0).kept(0, 0);
    play.stop(Urgency::Graceful);
    insta::assert_snapshot!(play.log(), @"
    1.0 snapshot: SnapshotTaken(2: 5a5a5a5)
    1.0 launched: AgentLaunched(77)
    1.0 exited 0: IterationCompleted(2 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 2, succeeded, session 1, context unknown
    1.0 kept: ProgressMeasured(2: 0), WaitStarted(delay 5s)
    1.0 stop: Stopped(stopped by the operator) ! finish ! ok: stopped
    ");
}

#[test]
fn agent_that_exits_during_the_commit_is_started_again() {
    let mut play = Play::up(in_a_session());
    play.hush().resulted(true).exited(0).kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 exited 0: AgentExited(exit 0)
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000001, 0 left), ProgressMeasured(1: 11), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn a_checkpoint_is_committed_when_the_old_agent_has_ended() {
    let mut play = Play::up(in_a_session());
    play.named("one").resulted(true).kept(1, 1).hush();
    play.measured(900).resulted(false).kept(1, 0);
    // The agent does not answer the request for a hand-off, and works on until it is killed.
    play.sleep().sleep().sleep().killed(9).kept(2, 3).opened();
    insta::assert_snapshot!(play.log(), @"
    0.0 measured 900: ContextMeasured(90%), RebootRequested(context at 90%), EndingRequested(hand over within 0s), AgentSignaled(interrupt 5s) ! signal interrupt
    0.0 resulted false: TurnResulted(false), IterationCompleted(2 handed over, needs reboot), AutocommitStarted(iteration within 60s) ! survey
    0.0 kept: AutocommitFinished(1 changed, 1 left), ProgressMeasured(2: 1), RebootStarted(context at 90%), HandOffRequested(within 120s) ! ask for the hand-off
    120.0 wake: Warned(the old session wrote no hand-off (it did not answer in time); the new session gets its last output and tool calls instead), ClosingStarted(within 10s) ! signal interrupt ! close
    130.0 wake: AgentSignaled(terminate 5s) ! signal terminate
    135.0 wake: AgentSignaled(kill 15s) ! signal kill
    135.0 killed 9: AgentExited(signal 9), AutocommitStarted(checkpoint within 360s) ! commit iteration 2, checkpoint, session 1, context 90%
    135.0 kept: AutocommitFinished(2 changed, 3 as 0000003, 0 left), SessionOpening(2) ! open 2
    135.0 launched: AgentLaunched(77)
    135.0 opened: SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), IterationStarted(3 attempt 1) ! prompt
    ");
}

#[test]
fn the_last_commit_is_made_when_the_agent_has_ended() {
    let mut policy = in_a_session();
    policy.max_iterations = 1;
    let mut play = Play::up(policy.clone());
    play.hush().resulted(true).kept(1, 1).exited(0).kept(1, 1);
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted true: TurnResulted(true), IterationCompleted(1 succeeded), AutocommitStarted(iteration within 360s) ! commit iteration 1, succeeded, session 1, context unknown
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000001, 0 left), ProgressMeasured(1: 11), AutocommitStarted(end within 390s) ! close
    0.0 exited 0: AgentExited(exit 0) ! commit iteration 1, end, session 1, context unknown
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000002, 0 left), Completed(the limit of 1 iteration is reached) ! finish
    ");
    let mut play = Play::up(policy.clone());
    play.resulted(true).hush().kept(1, 1);
    play.sleep().sleep().killed(9).kept(0, 0);
    insta::assert_snapshot!(play.log(), @"
    0.0 kept: AutocommitFinished(1 changed, 1 as 0000001, 0 left), ProgressMeasured(1: 11), AutocommitStarted(end within 390s) ! close
    10.0 wake: AgentSignaled(terminate 5s) ! signal terminate
    15.0 wake: AgentSignaled(kill 15s) ! signal kill
    15.0 killed 9: AgentExited(signal 9) ! commit iteration 1, end, session 1, context unknown
    15.0 kept: Completed(the limit of 1 iteration is reached) ! finish
    ");
    let mut play = Play::up(policy.clone());
    play.resulted(true).kept(1, 1).hush().stop(Urgency::Now);
    insta::assert_snapshot!(play.log(), @"0.0 stop: StopRequested(stopped by the operator), AutocommitGivenUp(end: the agent had not ended yet), Completed(the limit of 1 iteration is reached) ! finish ! ok: stopped");
    assert!(
        play.state.needs_survey(),
        "the agent may have changed files after the last survey"
    );
    let mut play = Play::up(policy);
    play.resulted(true).kept(1, 1).hush();
    play.crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), AutocommitStarted(end within 360s) ! commit iteration 1, end, session 1, context unknown");
}

#[test]
fn stop_during_a_hand_off_turn_leaves_its_changes_to_be_surveyed() {
    let mut play = Play::up(in_a_session());
    play.named("one").resulted(true).kept(1, 1);
    play.resulted(true).kept(0, 0).reboot();
    play.resulted(false).kept(0, 0).stop(Urgency::Graceful);
    assert!(matches!(play.state.public(), LoopState::Stopped));
    assert!(play.state.needs_survey());
}
