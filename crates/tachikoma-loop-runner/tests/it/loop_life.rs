//! The lifecycle of a loop as an embedding program sees it: states, events, statistics, history, and a second run.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tachikoma_core::{IterationOutcome, Outcome, Record};
use tachikoma_loop_runner::store::lock::LockError;
use tachikoma_loop_runner::{
    LoopCommand, LoopEvent, LoopRunner, LoopState, LoopStats, OpenError, RunError,
};

use crate::loop_support::{BY_OPERATOR, Place, UNTIL_GO, Watch, accepted, open, states};
use crate::support::run;

/// Runs a loop that is paused, resumed, rebooted, and ended by its iteration limit.
async fn eventful(place: &Place) -> (Outcome, Vec<Arc<Record>>) {
    let mut config = place.config(UNTIL_GO);
    config.settings.max_iterations = 3;
    let mut runner = open(config).await;
    let mut watch = Watch::on(&runner);
    let handle = runner.handle();
    assert_eq!(handle.status().state, LoopState::Idle);
    let operator = async {
        watch.launched(1).await;
        let pause = LoopCommand::Pause(tachikoma_core::Urgency::Graceful);
        accepted(handle.command(pause).await.unwrap());
        place.go(1);
        let paused = |event: &LoopEvent| matches!(event, LoopEvent::Paused { .. });
        watch.until("paused", paused).await;
        assert_eq!(handle.status().state, LoopState::Paused);
        accepted(handle.command(LoopCommand::Resume).await.unwrap());
        watch.launched(2).await;
        accepted(handle.command(LoopCommand::ForceReboot).await.unwrap());
        watch.launched(3).await;
        assert_eq!(handle.status().state, LoopState::Running);
        place.go(3);
    };
    let (outcome, ()) = tokio::join!(runner.run(), operator);
    watch.catch_up();
    let status = handle.status();
    assert_eq!(status.state, LoopState::Completed);
    assert_eq!(status.waiting, None);
    runner.close().await;
    (outcome.unwrap(), watch.records)
}

#[test]
fn loop_states_change_in_order() {
    let place = Place::new();
    let (outcome, _) = run(eventful(&place));
    assert_eq!(outcome, Outcome::LimitReached { iterations: 3 });
    assert_eq!(
        states(&place.history()),
        [
            LoopState::Idle,
            LoopState::Running,
            LoopState::Paused,
            LoopState::Running,
            LoopState::Rebooting,
            LoopState::Running,
            LoopState::Completed,
        ]
    );
}

#[test]
fn every_subscriber_gets_every_state_change() {
    let place = Place::new();
    let (_, seen) = run(eventful(&place));
    let history = place.history();
    let seen: Vec<Record> = seen.iter().map(|record| (**record).clone()).collect();
    assert_eq!(
        seen,
        history[1..],
        "a subscriber from the start gets all records of the journal"
    );
    let name = |record: &Record| match &record.event {
        LoopEvent::Started { .. } => Some("started"),
        LoopEvent::Paused { .. } => Some("paused"),
        LoopEvent::Resumed => Some("resumed"),
        LoopEvent::RebootStarted { .. } => Some("reboot started"),
        LoopEvent::RebootCompleted { .. } => Some("reboot completed"),
        LoopEvent::Completed { .. } => Some("completed"),
        _ => None,
    };
    let names: Vec<&str> = history.iter().filter_map(name).collect();
    assert_eq!(
        names,
        [
            "started",
            "paused",
            "resumed",
            "reboot started",
            "reboot completed",
            "completed"
        ]
    );
    let iterations = |wanted: fn(&LoopEvent) -> bool| {
        history
            .iter()
            .filter(|record| wanted(&record.event))
            .count()
    };
    assert_eq!(
        iterations(|event| matches!(event, LoopEvent::IterationStarted { .. })),
        3
    );
    assert_eq!(
        iterations(|event| matches!(event, LoopEvent::IterationCompleted { .. })),
        3
    );
}

#[test]
fn journal_is_complete_after_the_loop_has_ended() {
    let place = Place::new();
    run(eventful(&place));
    let history = place.history();
    let reports: Vec<(u32, IterationOutcome)> = history
        .iter()
        .filter_map(|record| match &record.event {
            LoopEvent::IterationCompleted { report, .. } => {
                Some((report.iteration, report.outcome))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        reports,
        [
            (1, IterationOutcome::Succeeded),
            (2, IterationOutcome::HandedOver),
            (3, IterationOutcome::Succeeded),
        ]
    );
    let seqs: Vec<u64> = history.iter().map(|record| record.seq.0).collect();
    let expected: Vec<u64> = (1..=seqs.len() as u64).collect();
    assert_eq!(seqs, expected, "no gap in the sequence");
    let loops: HashSet<_> = history.iter().map(|record| record.loop_id).collect();
    assert_eq!(loops.len(), 1);
}

#[test]
fn statistics_add_up_for_mixed_outcomes() {
    let place = Place::new();
    let script = "case $TACHIKOMA_ITERATION in \
                  1) sleep 0.05; exit 0;; \
                  2) sleep 0.05; exit 3;; \
                  3|4) sleep 1000;; \
                  5) sleep 0.05; kill -9 $$;; \
                  *) sleep 1000;; esac";
    let mut runner = run(open(place.config(script)));
    let stats = run(async {
        let mut watch = Watch::on(&runner);
        let handle = runner.handle();
        let tell = async |command| accepted(handle.command(command).await.unwrap());
        let operator = async {
            let waits = |event: &LoopEvent| matches!(event, LoopEvent::WaitStarted { .. });
            watch.until("the backoff", waits).await;
            tell(LoopCommand::SkipIteration).await;
            watch.launched(3).await;
            tell(LoopCommand::SkipIteration).await;
            watch.launched(4).await;
            tell(LoopCommand::ForceReboot).await;
            watch.launched(5).await;
            watch.until("the backoff", waits).await;
            tell(LoopCommand::SkipIteration).await;
            watch.launched(6).await;
            tell(LoopCommand::Stop(tachikoma_core::Urgency::Graceful)).await;
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), BY_OPERATOR);
        runner.state().stats
    });
    let failures: Vec<u64> = place
        .history()
        .iter()
        .filter_map(|record| match &record.event {
            LoopEvent::IterationFailed { duration_ms, .. } => Some(*duration_ms),
            _ => None,
        })
        .collect();
    assert!(
        failures.iter().all(|ms| *ms >= 50),
        "failures take time too: {failures:?}"
    );
    assert!(stats.close(), "{stats:?}");
    assert!(stats.execution_ms >= 150, "{stats:?}");
    assert_eq!(
        LoopStats {
            execution_ms: 0,
            ..stats
        },
        LoopStats {
            iterations: 6,
            // The skipped and the interrupted iteration are not included.
            no_progress_count: 4,
            successful: 1,
            failed: 2,
            handed_over: 1,
            skipped: 1,
            interrupted: 1,
            reboots: 1,
            ..LoopStats::default()
        }
    );
}

#[test]
fn iteration_limit_counts_across_runs() {
    let place = Place::new();
    let limited = |limit| {
        let mut config = place.config("exit 0");
        config.settings.max_iterations = limit;
        config
    };
    let first = run(async {
        let mut runner = open(limited(2)).await;
        let outcome = runner.run().await.unwrap();
        let loop_id = runner.state().loop_id;
        runner.close().await;
        (outcome, loop_id)
    });
    assert_eq!(first.0, Outcome::LimitReached { iterations: 2 });
    let second = run(async {
        let mut runner = open(limited(5)).await;
        let outcome = runner.run().await.unwrap();
        let again = runner.run().await.unwrap();
        assert_eq!(
            again, outcome,
            "a loop at its iteration limit ends at once again"
        );
        let state = runner.state().clone();
        runner.close().await;
        (outcome, state)
    });
    assert_eq!(second.0, Outcome::LimitReached { iterations: 5 });
    assert_eq!(
        second.1.loop_id, first.1,
        "the second run continues the same loop"
    );
    assert_eq!(
        second.1.stats.iterations, 5,
        "the limit includes iterations of the first run"
    );
    let started: Vec<u32> = place
        .history()
        .iter()
        .filter_map(|record| match record.event {
            LoopEvent::IterationStarted { iteration, .. } => Some(iteration),
            _ => None,
        })
        .collect();
    assert_eq!(started, [1, 2, 3, 4, 5]);
}

#[test]
fn completed_loop_is_followed_by_a_new_loop() {
    let place = Place::new();
    let config = place.config("echo done >> work; echo '<promise>COMPLETE</promise>'");
    run(async {
        let mut runner = open(config.clone()).await;
        assert_eq!(runner.run().await.unwrap(), Outcome::Done);
        match runner.run().await {
            Err(RunError::InvalidState(invalid)) => {
                assert_eq!(invalid.current, LoopState::Completed);
                assert_eq!(invalid.action, "start");
            }
            other => panic!("the run of a completed loop must be refused: {other:?}"),
        }
        let done = runner.state().loop_id;
        runner.close().await;
        let runner = open(config).await;
        assert_ne!(runner.state().loop_id, done);
        assert_eq!(runner.state().public(), LoopState::Idle);
        runner.close().await;
    });
}

#[test]
fn second_runner_is_refused_with_pid_and_start_time() {
    let place = Place::new();
    run(async {
        let first = open(place.config("exit 0")).await;
        match LoopRunner::open(place.config("exit 0")).await {
            Err(OpenError::Lock(LockError::Held { holder, .. })) => {
                let holder =
                    holder.expect("the first runner wrote its process id into the lock file");
                assert_eq!(holder.pid, std::process::id());
                assert_eq!(holder.loop_id, first.state().loop_id);
                assert!(
                    holder.since >= first.state().time,
                    "the lock file has the time when it was locked"
                );
            }
            Err(other) => panic!("refused for another reason: {other}"),
            Ok(_) => panic!("two runners must never share a working directory"),
        }
        first.close().await;
        open(place.config("exit 0")).await.close().await;
    });
}

#[test]
fn runner_can_run_again_after_a_stop_and_after_an_error() {
    let place = Place::new();
    let mut config = place.config(
        "case $TACHIKOMA_ITERATION in 1) sleep 1000;; 2) exit 7;; *) echo done >> work; echo '<promise>COMPLETE</promise>';; esac",
    );
    config.settings.stop_conditions.max_consecutive_failures = 1;
    run(async {
        let mut runner = open(config).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.launched(1).await;
            let stop = LoopCommand::Stop(tachikoma_core::Urgency::Graceful);
            accepted(handle.command(stop).await.unwrap());
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), BY_OPERATOR);
        assert_eq!(runner.state().public(), LoopState::Stopped);
        let outcome = runner.run().await.unwrap();
        assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
        assert_eq!(runner.state().public(), LoopState::Error);
        assert_eq!(runner.run().await.unwrap(), Outcome::Done);
        assert_eq!(runner.state().stats.iterations, 3);
        runner.close().await;
    });
    let ends = states(&place.history());
    let terminal: Vec<_> = ends.iter().filter(|state| state.is_terminal()).collect();
    assert_eq!(
        terminal,
        [
            &LoopState::Stopped,
            &LoopState::Error,
            &LoopState::Completed
        ]
    );
}

#[test]
fn requests_between_two_runs_are_refused_at_once() {
    let place = Place::new();
    let mut config = place.config("sleep 1000");
    config.settings.max_iterations = 9;
    run(async {
        let mut runner = open(config).await;
        let handle = runner.handle();
        let stop = LoopCommand::Stop(tachikoma_core::Urgency::Graceful);
        let mut watch = Watch::on(&runner);
        for iteration in 1..=2 {
            let operator = async {
                watch.launched(iteration).await;
                accepted(handle.command(stop).await.unwrap());
            };
            let (outcome, ()) = tokio::join!(runner.run(), operator);
            assert_eq!(outcome.unwrap(), BY_OPERATOR);
            // The command is refused at once. If it waited for the next run, it would end that run immediately.
            let late = tokio::time::timeout(Duration::from_secs(10), handle.command(stop)).await;
            match late
                .expect("the command is answered although the loop is not running")
                .unwrap()
            {
                tachikoma_core::Answer::Refused { current, .. } => {
                    assert_eq!(current, LoopState::Stopped);
                }
                accepted @ tachikoma_core::Answer::Accepted { .. } => {
                    panic!("accepted although the loop is not running: {accepted:?}")
                }
            }
        }
        runner.close().await;
        assert!(
            handle.command(stop).await.is_err(),
            "commands fail after the runner was closed"
        );
    });
}
