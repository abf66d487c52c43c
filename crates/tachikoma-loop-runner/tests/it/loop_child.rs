//! Agents that hang, ignore signals, or lose their guard or working directory: the loop continues, and no agent process survives the loop.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use tachikoma_core::{Failure, Outcome, StopSignal, Timeout, Urgency};
use tachikoma_loop_runner::process::Containment;
use tachikoma_loop_runner::settings::AgentName;
use tachikoma_loop_runner::{LoopCommand, LoopEvent, LoopRunner};

use crate::loop_support::{BY_OPERATOR, Place, Watch, accepted, between, lasting, open};
use crate::support::{CONTAINMENTS, NOBODY, is_alive, kill, run, runaways, running, unique, until};

const STOP: LoopCommand = LoopCommand::Stop(Urgency::Graceful);

/// Script of an agent that runs until it gets SIGINT or SIGTERM.
fn hang(sleep: &str) -> String {
    format!("echo up; exec {sleep}")
}

/// Script of an agent that ignores SIGINT and SIGTERM.
fn stubborn(sleep: &str) -> String {
    format!("trap '' INT TERM; echo up; while :; do {sleep}; done")
}

fn failures(place: &Place) -> Vec<Failure> {
    let failure = |event: LoopEvent| match event {
        LoopEvent::IterationFailed { failure, .. } => Some(failure),
        _ => None,
    };
    let history = place.history().into_iter();
    history.filter_map(|record| failure(record.event)).collect()
}

fn warnings(place: &Place) -> Vec<String> {
    let warning = |event: LoopEvent| match event {
        LoopEvent::Warned { warning } => Some(warning),
        _ => None,
    };
    let history = place.history().into_iter();
    history.filter_map(|record| warning(record.event)).collect()
}

#[test]
fn run_close_and_drop_leave_no_child() {
    for containment in CONTAINMENTS {
        let place = Place::new();
        let sleep = unique();
        let mut config = place.config(&format!("{} exec {sleep}", runaways(&sleep)));
        config.cgroup = containment == Containment::Cgroup;
        run(async {
            let mut runner = open(config.clone()).await;
            let handle = runner.handle();
            let mut watch = Watch::on(&runner);
            let operator = async {
                watch.said("ready").await;
                until("all four processes run", || running(&sleep).len() == 4);
                accepted(handle.command(STOP).await.unwrap());
            };
            let (outcome, ()) = tokio::join!(runner.run(), operator);
            assert_eq!(outcome.unwrap(), BY_OPERATOR);
            assert_eq!(running(&sleep), NOBODY, "after the run, {containment}");
            runner.close().await;

            let mut runner = open(config).await;
            let mut watch = Watch::on(&runner);
            let guard = tokio::select! {
                outcome = runner.run() => panic!("the run ended early: {outcome:?}"),
                guard = async {
                    let agent = watch.launched(2).await;
                    watch.said("ready").await;
                    parent(agent)
                } => guard,
            };
            drop(runner);
            until("no process runs after the drop", || {
                running(&sleep) == NOBODY
            });
            until("the guard was reaped", || {
                !Path::new(&format!("/proc/{guard}")).exists()
            });
        });
    }
}

#[test]
fn next_runner_sees_a_dropped_runner_as_a_crash() {
    let place = Place::new();
    let sleep = unique();
    let config = place.config(&hang(&sleep));
    run(async {
        let mut runner = open(config.clone()).await;
        let mut watch = Watch::on(&runner);
        tokio::select! {
            outcome = runner.run() => panic!("the run ended early: {outcome:?}"),
            () = watch.said("up") => {}
        }
        drop(runner);
        // Opening waits for the lock, which the guard of the dropped runner holds until its agent has ended.
        let runner: LoopRunner = open(config).await;
        assert_eq!(
            running(&sleep),
            NOBODY,
            "two agents never share a work tree"
        );
        assert!(
            matches!(
                runner.found(),
                tachikoma_loop_runner::FoundLoop::Interrupted { iteration: 1, .. }
            ),
            "{:?}",
            runner.found()
        );
        runner.close().await;
    });
}

#[test]
fn session_timeout_ends_an_agent_that_hangs() {
    let place = Place::new();
    let sleep = unique();
    let mut config = place.config(&hang(&sleep));
    config.settings.session.session_timeout = lasting("300ms");
    config.settings.stop_conditions.max_consecutive_failures = 1;
    let outcome = run(async {
        let mut runner = open(config).await;
        let outcome = runner.run().await.unwrap();
        assert!(runner.state().stats.execution_ms >= 300);
        runner.close().await;
        outcome
    });
    assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
    let timeout = Timeout::Session;
    let ended: Vec<_> = failures(&place).iter().map(timed_out).collect();
    assert_eq!(ended, [Some(timeout)]);
    assert_eq!(running(&sleep), NOBODY);
}

/// This test waits for all delays between SIGINT, SIGTERM and SIGKILL.
#[test]
fn agent_that_ignores_signals_is_killed() {
    let place = Place::new();
    let sleep = unique();
    run(async {
        let mut runner = open(place.config(&stubborn(&sleep))).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            // The agent prints "up" after it has set its signal traps. Before that, a signal would end it.
            watch.said("up").await;
            accepted(handle.command(STOP).await.unwrap());
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), BY_OPERATOR);
        runner.close().await;
    });
    assert_eq!(running(&sleep), NOBODY);
    let history = place.history();
    let rungs: Vec<_> = history
        .iter()
        .filter_map(|record| match &record.event {
            LoopEvent::AgentSignaled { signal, .. } => Some((*signal, record)),
            _ => None,
        })
        .collect();
    let [interrupt, terminate, killed] = rungs.as_slice() else {
        panic!("expected three signals: {rungs:?}");
    };
    assert_eq!(
        [interrupt.0, terminate.0, killed.0],
        [
            StopSignal::Interrupt,
            StopSignal::Terminate,
            StopSignal::Kill
        ]
    );
    assert!(between(interrupt.1, terminate.1) >= Duration::from_secs(10));
    assert!(between(terminate.1, killed.1) >= Duration::from_secs(5));
}

#[test]
fn urgent_stop_sends_the_next_signal_at_once() {
    let place = Place::new();
    let sleep = unique();
    run(async {
        let mut runner = open(place.config(&stubborn(&sleep))).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.said("up").await;
            for urgency in [Urgency::Graceful, Urgency::Now, Urgency::Kill] {
                handle.shut_down(2, urgency);
            }
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), Outcome::Signal { signal: 2 });
        runner.close().await;
    });
    assert_eq!(running(&sleep), NOBODY);
    let history = place.history();
    let (first, last) = (&history[0], &history[history.len() - 1]);
    assert!(
        between(first, last) < Duration::from_secs(9),
        "the next signal was sent without waiting for the grace period"
    );
}

#[test]
fn killed_guard_fails_the_iteration_and_the_loop_continues() {
    for containment in CONTAINMENTS {
        let place = Place::new();
        let sleep = unique();
        let mut config = place.config(&format!("{} {}", runaways(&sleep), hang(&sleep)));
        config.cgroup = containment == Containment::Cgroup;
        // Without a cgroup, a leftover process with an empty environment cannot be found. So no such process is started then.
        let kept_together = match containment {
            Containment::Cgroup => config.settings.agents.command.program[2].clone(),
            Containment::Guard | Containment::Group => {
                format!("setsid {sleep} & {}", hang(&sleep))
            }
        };
        config.settings.agents.command.program[2] = kept_together;
        run(async {
            let mut runner = open(config).await;
            let handle = runner.handle();
            let mut watch = Watch::on(&runner);
            let operator = async {
                let agent = watch.launched(1).await;
                watch.said("up").await;
                let guard = parent(agent);
                kill("-KILL", guard);
                let failed = |event: &LoopEvent| matches!(event, LoopEvent::IterationFailed { .. });
                watch.until("the iteration fails", failed).await;
                assert_eq!(
                    running(&sleep),
                    NOBODY,
                    "no leftover process, {containment}"
                );
                assert!(!is_alive(agent));
                let second = watch.launched(2).await;
                assert_ne!(parent(second), guard, "the second agent has a new guard");
                accepted(handle.command(STOP).await.unwrap());
            };
            let (outcome, ()) = tokio::join!(runner.run(), operator);
            assert_eq!(outcome.unwrap(), BY_OPERATOR);
            runner.close().await;
        });
        assert_eq!(failures(&place), [Failure::GuardLost]);
        assert_eq!(running(&sleep), NOBODY);
    }
}

/// Returns the parent of a process.
fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn deleted_working_directory_is_reported_and_not_created_again() {
    let place = Place::new();
    // The agent writes output after it deleted the directory, so the transcript cannot be written either.
    let mut config = place.config("rm -rf \"$PWD\"; echo gone");
    config.settings.stop_conditions.max_consecutive_failures = 1;
    let reason = run(async {
        let mut runner = open(config).await;
        let outcome = runner.run().await.unwrap();
        runner.close().await;
        match outcome {
            Outcome::Error { reason } => reason,
            other => panic!("{other:?}"),
        }
    });
    let path = place.working_dir();
    assert!(
        reason.contains(&format!("working directory {}", path.display())),
        "{reason}"
    );
    assert!(
        !path.exists(),
        "the working directory must not be created again"
    );
}

#[test]
fn unwritable_transcript_is_a_warning() {
    let place = Place::new();
    // A file blocks the directory of the transcripts. This fails for root too, unlike missing permissions.
    fs::write(place.working_dir().join("occupied"), "").unwrap();
    let mut config = place.config("echo word");
    config.settings.session.state_dir = "occupied".into();
    config.settings.max_iterations = 2;
    let outcome = run(async {
        let mut runner = open(config).await;
        let outcome = runner.run().await.unwrap();
        assert_eq!(
            runner.state().stats.successful,
            2,
            "both iterations succeed without a transcript"
        );
        runner.close().await;
        outcome
    });
    assert_eq!(outcome, Outcome::LimitReached { iterations: 2 });
    let warnings = warnings(&place);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].starts_with("the transcript of iteration 1 is incomplete:"),
        "{warnings:?}"
    );
}

#[test]
fn only_the_owner_can_read_transcripts() {
    let place = Place::new();
    let mut config = place.config("echo word $TACHIKOMA_ITERATION");
    config.settings.max_iterations = 1;
    let directory = run(async {
        let mut runner = open(config.clone()).await;
        runner.run().await.unwrap();
        let loop_id = runner.state().loop_id;
        runner.close().await;
        config.transcripts_dir(loop_id)
    });
    let path = directory.join("000001.1.log");
    assert_eq!(fs::read_to_string(&path).unwrap(), "word 1\n");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.as_path()), 0o600);
    assert_eq!(mode(directory.parent().unwrap()), 0o700);
}

#[test]
fn closing_a_stream_does_not_count_as_output() {
    let place = Place::new();
    let mut config = place.config("");
    config.settings.agent.name = AgentName::Demo;
    config.demo = ["sh", "-c", "exec 2>&-; exec sleep 1000"]
        .map(Into::into)
        .to_vec();
    config.settings.session.first_output_timeout = lasting("300ms");
    config.settings.stop_conditions.max_consecutive_failures = 1;
    run(async {
        open(config).await.run().await.unwrap();
    });
    let timeout = Timeout::FirstOutput;
    let ended: Vec<_> = failures(&place).iter().map(timed_out).collect();
    assert_eq!(ended, [Some(timeout)]);
}

fn timed_out(failure: &Failure) -> Option<Timeout> {
    match failure {
        Failure::TimedOut { timeout, .. } => Some(*timeout),
        Failure::Exited { .. }
        | Failure::NoResult { .. }
        | Failure::Reported { .. }
        | Failure::NotLaunched { .. }
        | Failure::GuardLost
        | Failure::Unkillable { .. } => None,
    }
}
