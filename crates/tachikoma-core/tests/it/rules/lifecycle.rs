//! A loop over many runs: iteration numbers continue, limits apply to all runs, and each end has a reason.

use std::collections::BTreeSet;
use std::time::Duration;

use tachikoma_core::policy::AutocommitRules;
use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::{
    Epoch, Evidence, Exit, Input, IterationOutcome, IterationReport, Launch, LoopEvent, LoopState,
    Measured, Policy, Record, State, Status, Timestamp, Urgency, apply, step,
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
fn loop_that_reaches_its_limit_completes_with_the_reason() {
    let mut play = Play::up(limited(1));
    play.hush().exited(0);
    insta::assert_snapshot!(play.log(), @"0.0 exited 0: IterationCompleted(1 succeeded), Completed(the limit of 1 iteration is reached) ! finish");
    assert_eq!(play.state.public(), LoopState::Completed);
}

#[test]
fn a_limit_that_is_already_met_ends_the_next_run_at_once() {
    let mut play = Play::up(limited(1));
    play.exited(1).hush().start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after limit_reached), Completed(the limit of 1 iteration is reached) ! finish");
}

#[test]
fn loop_with_a_raised_limit_continues_with_the_next_iteration() {
    let mut play = Play::up(limited(1));
    play.exited(0).hush();
    play.policy.max_iterations = 2;
    play.start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after limit_reached), IterationStarted(2 attempt 1) ! launch");
}

#[test]
fn stopped_loop_can_start_again_and_continues_its_iteration_numbers() {
    let mut play = Play::up(Policy::default());
    play.exited(0).stop(Urgency::Graceful).hush();
    play.start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after operator), IterationStarted(2 attempt 1) ! launch");
}

#[test]
fn loop_that_ended_with_an_error_can_start_again_and_resets_its_failure_count() {
    let mut play = Play::up(Policy {
        max_consecutive_failures: 1,
        ..Policy::default()
    });
    play.exited(1).hush().start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after error), IterationStarted(2 attempt 1) ! launch");
    assert_eq!(play.state.failure_streak, 0);
}

#[test]
fn a_loop_that_is_done_does_not_start_again() {
    let mut play = Play::up(Policy::default());
    play.hush().claimed().start();
    insta::assert_snapshot!(play.log(), @"
    0.0 claimed: IterationCompleted(1 succeeded, claimed), Completed(the work is complete) ! finish
    0.0 start: - ! finish
    ");
    let refusal = play.state.startable().unwrap_err();
    assert_eq!(refusal.to_string(), "cannot start a loop that is completed");
}

#[test]
fn loop_states_after_the_end_are_terminal() {
    use LoopState as S;
    for live in [S::Idle, S::Running, S::Paused, S::Rebooting] {
        assert!(!live.is_terminal(), "{live}");
    }
    for ended in [S::Completed, S::Error, S::Stopped] {
        assert!(ended.is_terminal(), "{ended}");
    }
}

#[test]
fn iteration_aborted_by_a_crash_keeps_its_number_and_gets_the_next_attempt() {
    let mut play = Play::up(limited(1));
    play.hush().crash().crash().launched().exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 start: Started(after crash), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch
    0.0 start: Started(after crash), AttemptCut(1 attempt 2), IterationStarted(1 attempt 3) ! launch
    0.0 launched: AgentLaunched(77)
    0.0 exited 0: IterationCompleted(1 succeeded), Completed(the limit of 1 iteration is reached) ! finish
    ");
}

#[test]
fn iteration_interrupted_by_the_operator_is_not_repeated() {
    let mut play = Play::up(Policy::default());
    play.stop(Urgency::Now).killed(2).hush().start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after operator), IterationStarted(2 attempt 1) ! launch");
}

#[test]
fn recorded_claim_is_accepted_by_the_next_runner() {
    let mut play = Play::up(limited(1));
    play.claimed().hush();
    let without_the_end = play.journal.len() - 1;
    play.crash_after(without_the_end);
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), Completed(the work is complete) ! finish");
}

#[test]
fn refused_claim_is_forgotten_with_the_next_iteration() {
    let mut play = Play::up(super::completion::gated(&["tests"]));
    play.claimed().gates(&[("tests", Some("exit 1"))]);
    play.sleep().launched().exited(1).hush();
    play.policy.completion.gates.clear();
    play.crash();
    insta::assert_snapshot!(play.log(), @"5.0 start: Started(after crash), WaitStarted(backoff 1s)");
}

#[test]
fn stop_request_is_lost_with_its_runner() {
    let mut play = Play::up(Policy::default());
    play.stop(Urgency::Graceful).hush().crash();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after crash), AttemptCut(1 attempt 1), IterationStarted(1 attempt 2) ! launch");
}

#[test]
fn wait_continues_after_a_crash_of_the_runner() {
    let mut play = Play::up(Policy::default());
    play.exited(0).hush().seconds(2).crash().sleep();
    insta::assert_snapshot!(play.log(), @"
    2.0 start: Started(after crash), WaitStarted(delay 3s)
    5.0 wake: IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn next_iteration_starts_at_once_without_iteration_delay() {
    let mut play = Play::up(Policy {
        iteration_delay: Duration::ZERO,
        ..stream()
    });
    play.hush().resulted(true).exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 resulted true: TurnResulted(true)
    0.0 exited 0: IterationCompleted(1 succeeded), IterationStarted(2 attempt 1) ! launch
    ");
}

#[test]
fn record_times_never_decrease_even_if_the_clock_does() {
    let mut play = Play::up(Policy::default());
    let before = play.state.time;
    let warning = "the clock was set back".to_owned();
    let early = Timestamp::from_millis(1);
    let step = step(
        &play.policy,
        &mut play.state,
        early,
        Input::Warning { warning },
    );
    assert_eq!(step.records[0].time, before);
}

#[test]
fn state_can_be_rebuilt_from_the_last_journal_segment() {
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
            after_loss: false,
            epoch: Epoch::new(uuid::Uuid::from_u128(2)),
        },
        input: None,
        reasons: Vec::new(),
    };
    let text = serde_json::to_string(&opened).unwrap();
    let read: Record = serde_json::from_str(&text).unwrap();
    let mut fresh = State::new(play.state.loop_id);
    apply(&mut fresh, &read);
    apply(&mut play.state, &opened);
    assert_eq!(fresh, play.state);
}

#[test]
fn signal_before_resuming_a_crashed_loop_ends_it_without_signals_to_the_agent() {
    let mut play = Play::up(Policy::default());
    play.hush().input("decline", Input::Decline { signal: 2 });
    insta::assert_snapshot!(play.log(), @"0.0 decline: AttemptCut(1 attempt 1), Stopped(stopped by SIGINT (Ctrl-C)) ! finish");
    play.hush().start();
    insta::assert_snapshot!(play.log(), @"0.0 start: Started(after signal), IterationStarted(1 attempt 2) ! launch");
}

#[test]
fn broken_runner_ends_the_loop_at_once() {
    let mut play = Play::up(Policy::default());
    let broken = || Input::Broken {
        reason: "a task panicked".to_owned(),
    };
    play.hush().input("broken", broken()).start();
    insta::assert_snapshot!(play.log(), @"
    0.0 broken: AttemptCut(1 attempt 1), Error(a task panicked) ! finish
    0.0 start: Started(after error), IterationStarted(1 attempt 2) ! launch
    ");
    play.launched().exited(0).hush().input("broken", broken());
    insta::assert_snapshot!(play.log(), @"0.0 broken: Error(a task panicked) ! finish");
}

fn launch(hash: &str, settings: Option<&[(&str, &str)]>) -> Launch {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Launch {
        config_hash: hash.to_owned(),
        settings: settings.map(|settings| settings.iter().map(owned).collect()),
        ..Launch::default()
    }
}

#[test]
fn settings_changed_between_two_runs_are_recorded_key_by_key() {
    let launches = [
        launch("1", None),
        launch("2", Some(&[("a", "1"), ("b", "2")])),
        launch("2", Some(&[("a", "1"), ("b", "2")])),
        launch("3", Some(&[("b", "3"), ("c", "4")])),
        launch("4", Some(&[("b", "3"), ("c", "4")])),
    ];
    let mut play = Play::new(Policy::default());
    for launch in launches {
        play.start_with(launch);
        play.stop(Urgency::Kill).launched().killed(9);
    }
    let told = play.log();
    let starts: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("start:"))
        .collect();
    insta::assert_snapshot!(starts.join("\n"), @"
    0.0 start: Started(new), SessionStarted(1), IterationStarted(1 attempt 1) ! launch
    0.0 start: Started(after operator), ConfigChanged(), IterationStarted(2 attempt 1) ! launch
    0.0 start: Started(after operator), IterationStarted(3 attempt 1) ! launch
    0.0 start: Started(after operator), ConfigChanged(a 1 to default; b 2 to 3; c default to 4), IterationStarted(4 attempt 1) ! launch
    0.0 start: Started(after operator), ConfigChanged(), IterationStarted(5 attempt 1) ! launch
    ");
}

#[test]
fn end_comes_before_reboot_before_pause_before_wait_before_iteration() {
    // An end, a reboot and a pause are due at once. Each run handles the next of them, in this order.
    let mut play = Play::up(limited(2));
    play.pause(Urgency::Graceful)
        .reboot()
        .hush()
        .exited(0)
        .resume();
    play.seconds(5)
        .launched()
        .pause(Urgency::Graceful)
        .exited(0);
    insta::assert_snapshot!(play.log(), @"
    0.0 exited 0: IterationCompleted(1 handed over, needs reboot), RebootStarted(asked for by the operator), SessionEnded(1), SessionStarted(2), RebootCompleted(1 to 2), Paused(-)
    0.0 resume: Resumed, IterationStarted(2 attempt 1) ! launch ! ok: the loop continues
    5.0 launched: AgentLaunched(77)
    5.0 pause: PauseRequested ! ok: pauses after iteration 2
    5.0 exited 0: IterationCompleted(2 succeeded), Completed(the limit of 2 iterations is reached) ! finish
    ");
}

#[test]
fn iteration_is_reported_at_its_end_and_its_progress_is_measured_after_the_checks() {
    let autocommit = AutocommitRules {
        repository: true,
        commit: true,
        on_failure: false,
        timeout: Duration::ZERO,
    };
    let ungated = Policy {
        autocommit: Some(autocommit),
        ..stream()
    };
    let gated = Policy {
        completion: super::completion::gated(&["tests"]).completion,
        ..ungated.clone()
    };
    let cases = [
        (&ungated, None, None),
        (&gated, Some(None), Some(true)),
        (&gated, Some(Some("exit 1")), Some(false)),
    ];
    for (policy, gate, tests_passed) in cases {
        let mut play = Play::up(policy.clone());
        play.seconds(7).measured(900).resulted(true).claimed();
        play.kept(2, 2);
        if let Some(error) = gate {
            play.gates(&[("tests", error)]);
        }
        let (mut reported, mut measured) = (None, None);
        for record in &play.journal {
            if let LoopEvent::IterationCompleted { report, .. } = &record.event {
                reported = Some(report.clone());
            }
            if let LoopEvent::ProgressMeasured(found) = &record.event {
                measured = Some(*found);
            }
        }
        assert_eq!(
            reported,
            Some(IterationReport {
                iteration: 1,
                outcome: IterationOutcome::Succeeded,
                duration_ms: 7_000,
                exit: Some(Exit::Code(0)),
                claimed: true,
                needs_reboot: true,
            })
        );
        assert_eq!(
            measured,
            Some(Measured {
                iteration: 1,
                evidence: Evidence {
                    files: 2,
                    commits: true,
                    ..Evidence::default()
                },
                score: 11,
                tests_passed,
            })
        );
    }
}

#[test]
fn each_change_of_state_updates_the_time_of_the_last_activity() {
    let mut play = Play::up(Policy::default());
    for change in [
        |play: &mut Play| {
            play.pause(Urgency::Now).killed(2);
        },
        |play: &mut Play| {
            play.resume();
        },
        |play: &mut Play| {
            play.stop(Urgency::Now).killed(2);
        },
    ] {
        let before = Status::of(&play.state, true);
        play.seconds(3);
        change(&mut play);
        let after = Status::of(&play.state, true);
        assert_ne!(before.state, after.state);
        let moved = after
            .last_activity
            .unwrap()
            .since(before.last_activity.unwrap());
        assert_eq!(moved, Duration::from_secs(3));
    }
}

#[test]
fn loops_record_the_twelve_named_events_with_their_loop_id() {
    let mut plays = Vec::new();
    let mut failing = Play::up(Policy::default());
    failing.exited(0).sleep().launched().exited(1);
    failing.pause(Urgency::Graceful).resume();
    failing.stop(Urgency::Graceful);
    plays.push(failing);
    let mut limited = Play::up(limited(1));
    limited.exited(0);
    plays.push(limited);
    let mut broken = Play::up(Policy::default());
    let reason = "x".to_owned();
    broken.input("broken", Input::Broken { reason });
    plays.push(broken);
    let mut idle = Play::up(Policy {
        budgets: Budgets {
            duration: Duration::from_secs(1),
            ..Budgets::default()
        },
        ..Policy::default()
    });
    idle.seconds(2).exited(0);
    plays.push(idle);
    let mut rebooted = Play::up(Policy::default());
    rebooted.reboot().killed(2);
    plays.push(rebooted);
    let mut named = BTreeSet::new();
    for play in &plays {
        for record in &play.journal {
            let json = serde_json::to_value(record).unwrap();
            assert_eq!(json["loop_id"], play.state.loop_id.to_string());
            named.insert(json["event"]["type"].as_str().unwrap().to_owned());
        }
    }
    for name in [
        "started",
        "iteration_started",
        "iteration_completed",
        "completed",
        "error",
        "paused",
        "resumed",
        "stopped",
        "iteration_failed",
        "stop_condition_triggered",
        "reboot_started",
        "reboot_completed",
    ] {
        assert!(named.contains(name), "{name} is not in {named:?}");
    }
}
