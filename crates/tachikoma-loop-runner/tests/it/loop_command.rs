//! Operator commands in every situation of a loop: pause, resume, stop, skip, shutdown, and a hundred callers at once.

use tachikoma_core::{Answer, IterationOutcome, Outcome, Record, StopSignal, Urgency, WaitReason};
use tachikoma_loop_runner::{LoopCommand, LoopEvent, LoopHandle, LoopState, SettingsReader};

use crate::loop_support::{
    BY_OPERATOR, Place, UNTIL_GO, Watch, accepted, between, lasting, open, states,
};
use crate::support::{NOBODY, run, running, unique, until};

const STOP: LoopCommand = LoopCommand::Stop(Urgency::Graceful);
const PAUSE: LoopCommand = LoopCommand::Pause(Urgency::Graceful);
const PAUSE_NOW: LoopCommand = LoopCommand::Pause(Urgency::Now);

/// Signal number passed to `shut_down`.
const SIGTERM: i32 = 15;

/// A delay that is longer than any test takes. A test that really waits for it hangs.
const ENDLESS: &str = "1h";

async fn tell(handle: &LoopHandle, command: LoopCommand) -> String {
    accepted(handle.command(command).await.unwrap())
}

fn is_wait(wanted: WaitReason) -> impl Fn(&LoopEvent) -> bool {
    move |event| matches!(event, LoopEvent::WaitStarted { wait } if wait.reason == wanted)
}

fn is_paused(event: &LoopEvent) -> bool {
    matches!(event, LoopEvent::Paused { .. })
}

fn outcomes(history: &[Record]) -> Vec<IterationOutcome> {
    let outcome = |record: &Record| match &record.event {
        LoopEvent::IterationCompleted { report, .. } => Some(report.outcome),
        LoopEvent::IterationFailed { .. } => Some(IterationOutcome::Failed),
        _ => None,
    };
    history.iter().filter_map(outcome).collect()
}

#[test]
fn pause_waits_for_the_iteration_and_pause_now_does_not() {
    let place = Place::new();
    run(async {
        let mut runner = open(place.config(UNTIL_GO)).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.launched(1).await;
            assert_eq!(tell(&handle, PAUSE).await, "pauses after iteration 1");
            assert_eq!(handle.status().state, LoopState::Running);
            place.go(1);
            watch.until("paused", is_paused).await;
            assert_eq!(tell(&handle, PAUSE).await, "already paused");
            tell(&handle, LoopCommand::Resume).await;
            watch.launched(2).await;
            tell(&handle, PAUSE_NOW).await;
            watch.until("paused at once", is_paused).await;
            let waiting = handle.status().waiting.expect("a paused loop waits");
            assert_eq!(
                (waiting.reason.as_str(), waiting.until),
                ("operator", None),
                "the status says that the loop waits for the operator, without a deadline"
            );
            assert_eq!(tell(&handle, STOP).await, "stopped");
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), BY_OPERATOR);
        runner.close().await;
    });
    let history = place.history();
    assert_eq!(
        outcomes(&history),
        [IterationOutcome::Succeeded, IterationOutcome::Interrupted]
    );
    let last = states(&history).pop();
    assert_eq!(
        last,
        Some(LoopState::Stopped),
        "a stop ends as Stopped, never as Completed"
    );
}

#[test]
fn operator_commands_work_during_delay_and_backoff() {
    for (reason, script) in [
        (WaitReason::Delay, "exit 0"),
        (WaitReason::Backoff, "exit 1"),
    ] {
        let place = Place::new();
        // The backoff after the sixth failure in a row is half a minute. The test skips the first five waits and stops during the sixth.
        let mut config = place.config(script);
        config.settings.iteration_delay = lasting(ENDLESS);
        run(async {
            let mut runner = open(config).await;
            let handle = runner.handle();
            let mut watch = Watch::on(&runner);
            let operator = async {
                for _ in 0..5 {
                    watch.until("a wait", is_wait(reason)).await;
                    assert_eq!(
                        tell(&handle, LoopCommand::SkipIteration).await,
                        "skips the wait"
                    );
                }
                watch.until("a long wait", is_wait(reason)).await;
                let before = handle.status().waiting.expect("the loop waits");
                tell(&handle, PAUSE).await;
                assert_eq!(handle.status().state, LoopState::Paused);
                tell(&handle, LoopCommand::Resume).await;
                assert_eq!(
                    handle.status().waiting,
                    Some(before),
                    "the wait continues with its old deadline"
                );
                assert_eq!(tell(&handle, STOP).await, "stopped");
            };
            let (outcome, ()) = tokio::join!(runner.run(), operator);
            assert_eq!(outcome.unwrap(), BY_OPERATOR);
            runner.close().await;
        });
        assert_eq!(outcomes(&place.history()).len(), 6, "{reason}");
    }
}

#[test]
fn stop_interrupts_a_command_agent_at_once() {
    let place = Place::new();
    let sleep = unique();
    run(async {
        let mut runner = open(place.config(&format!("echo up; exec {sleep}"))).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            // The output may arrive before the guard reports the start, and an agent that has not started gets no signal.
            watch.launched(1).await;
            watch.said("up").await;
            tell(&handle, STOP).await;
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), BY_OPERATOR);
        assert_eq!(running(&sleep), NOBODY);
        runner.close().await;
    });
    let history = place.history();
    let at = |wanted: fn(&LoopEvent) -> bool| {
        history
            .iter()
            .find(|record| wanted(&record.event))
            .expect("the journal has this event")
    };
    let asked = at(|event| matches!(event, LoopEvent::StopRequested { .. }));
    let signalled = at(
        |event| matches!(event, LoopEvent::AgentSignaled { signal, .. } if *signal == StopSignal::Interrupt),
    );
    let ended = at(|event| matches!(event, LoopEvent::IterationCompleted { .. }));
    assert!(
        signalled.seq > asked.seq && signalled.seq < ended.seq,
        "the agent is interrupted after the stop and before the iteration ends"
    );
    assert!(
        between(asked, signalled).is_zero(),
        "the agent is interrupted in the same step as the stop"
    );
    let rung = |record: &Record| match &record.event {
        LoopEvent::AgentSignaled { signal, .. } => Some(*signal),
        _ => None,
    };
    let rungs: Vec<StopSignal> = history.iter().filter_map(rung).collect();
    assert_eq!(
        rungs,
        [StopSignal::Interrupt],
        "a program that obeys gets no second signal"
    );
}

#[test]
fn shutdown_ends_the_loop_in_every_state_before_commands() {
    let place = Place::new();
    let mut config = place.config("sleep 1000");
    config.settings.iteration_delay = lasting(ENDLESS);
    run(async {
        // Case 1: shutdown during an iteration, with a command pending.
        let mut runner = open(config.clone()).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.launched(1).await;
            handle.shut_down(SIGTERM, Urgency::Now);
            let answer = handle.command(PAUSE).await;
            let refused = matches!(answer, Ok(Answer::Refused { .. }));
            assert!(
                refused,
                "a loop that stops does not promise a pause: {answer:?}"
            );
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        let by_signal = Outcome::Signal { signal: SIGTERM };
        assert_eq!(outcome.unwrap(), by_signal);
        assert_eq!(runner.state().public(), LoopState::Stopped);
        runner.close().await;

        // Case 2: shutdown while the loop is paused.
        let mut runner = open(config).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.launched(2).await;
            tell(&handle, PAUSE_NOW).await;
            watch.until("paused", is_paused).await;
            handle.shut_down(SIGTERM, Urgency::Now);
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), by_signal);
        runner.close().await;
    });
    let history = place.history();
    let stopped = history.iter().filter_map(|record| match &record.event {
        LoopEvent::Stopped { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    assert_eq!(
        stopped.collect::<Vec<_>>(),
        ["stopped by SIGTERM"; 2],
        "both shutdowns are recorded with their reason"
    );
}

#[test]
fn shutdown_before_the_run_takes_effect() {
    let place = Place::new();
    run(async {
        let by_signal = Outcome::Signal { signal: SIGTERM };
        let mut runner = open(place.config("touch started")).await;
        runner.handle().shut_down(SIGTERM, Urgency::Graceful);
        assert_eq!(runner.run().await.unwrap(), by_signal);
        assert_eq!(runner.state().public(), LoopState::Stopped);
        // The shutdown also takes effect before a second run, after the loop has ended.
        runner.handle().shut_down(SIGTERM, Urgency::Graceful);
        assert_eq!(runner.run().await.unwrap(), by_signal);
        runner.close().await;
    });
    assert!(
        !place.working_dir().join("started").exists(),
        "no agent was started"
    );
}

/// Sends ten commands and returns how many were answered.
async fn pester(handle: LoopHandle, number: usize) -> usize {
    let commands = [
        PAUSE,
        LoopCommand::Resume,
        LoopCommand::SkipIteration,
        LoopCommand::ForceReboot,
    ];
    let mut answers = 0;
    for turn in 0..10 {
        let mut notices = handle.subscribe();
        match handle
            .command(commands[(number + turn) % commands.len()])
            .await
        {
            Ok(Answer::Accepted { .. } | Answer::Refused { .. }) => answers += 1,
            Err(gone) => panic!("the loop still runs, but a command failed: {gone}"),
        }
        // Half of the subscribers read one notice, the others read none.
        if number.is_multiple_of(2) {
            let _ = notices.try_recv();
        }
        assert!(!handle.status().state.is_terminal());
    }
    answers
}

/// Runs twenty-five callers on the current thread and returns how many commands were answered.
fn crowd(handle: &LoopHandle, thread: usize) -> usize {
    run(async {
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..25 {
            callers.spawn(pester(handle.clone(), 25 * thread + number));
        }
        let answers = callers.join_all().await;
        answers.into_iter().sum()
    })
}

#[test]
fn commands_of_100_concurrent_callers_are_all_answered() {
    let place = Place::new();
    let answers = run(async {
        let mut runner = open(place.config("sleep 1000")).await;
        let handle = runner.handle();
        let (all_done, crowds_done) = tokio::sync::oneshot::channel();
        let crowds = handle.clone();
        let crowds = std::thread::spawn(move || {
            let answers: usize = std::thread::scope(|scope| {
                let crowds = &crowds;
                let threads: Vec<_> = (0..4)
                    .map(|thread| scope.spawn(move || crowd(crowds, thread)))
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .sum()
            });
            all_done.send(answers).unwrap();
        });
        let operator = async {
            let answers = crowds_done.await.unwrap();
            tell(&handle, STOP).await;
            answers
        };
        let (outcome, answers) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), BY_OPERATOR);
        assert!(runner.state().stats.close());
        runner.close().await;
        crowds.join().unwrap();
        answers
    });
    assert_eq!(answers, 1000);
}

#[test]
fn slow_subscriber_does_not_block_the_loop() {
    let place = Place::new();
    // Each iteration sends several notices. 300 iterations send more than the queue of a subscriber can hold.
    let mut config = place.config("echo word; exit 0");
    config.settings.max_iterations = 300;
    let (sleeper, outcome) = run(async {
        let mut runner = open(config).await;
        let sleepers: Vec<_> = (0..10).map(|_| runner.handle().subscribe()).collect();
        let outcome = runner.run().await.unwrap();
        runner.close().await;
        (sleepers.into_iter().next(), outcome)
    });
    assert_eq!(outcome, Outcome::LimitReached { iterations: 300 });
    let mut sleeper = sleeper.expect("there are ten subscribers");
    let missed = match sleeper.try_recv() {
        Err(tokio::sync::broadcast::error::TryRecvError::Lagged(missed)) => missed,
        other => panic!("the subscriber must report missed notices: {other:?}"),
    };
    assert!(
        missed > 0,
        "a slow subscriber gets the number of missed notices"
    );
    let whole = place.history();
    assert_eq!(
        outcomes(&whole).len(),
        300,
        "the journal has all iterations"
    );
}

#[test]
fn dropped_run_leaves_no_process_and_can_be_resumed() {
    let place = Place::new();
    let sleep = unique();
    run(async {
        let script = format!(
            "if [ $TACHIKOMA_ATTEMPT = 2 ] && [ -d /proc/$(cat first) ]; then touch both; fi
             echo $$ >first; echo up; {sleep} & {sleep}"
        );
        let mut runner = open(place.config(&script)).await;
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        tokio::select! {
            outcome = runner.run() => panic!("the run ended early: {outcome:?}"),
            () = watch.said("up") => {}
        }
        let answer = handle.command(STOP).await.unwrap();
        assert!(
            matches!(answer, Answer::Refused { .. }),
            "commands are refused while the loop is not running: {answer:?}"
        );
        // A second run of the same runner repeats the interrupted iteration after the old agent has ended.
        let again = async {
            watch.lines.clear();
            watch.launched(1).await;
            watch.said("up").await;
            tell(&handle, STOP).await;
        };
        let (outcome, ()) = tokio::join!(runner.run(), again);
        assert_eq!(outcome.unwrap(), BY_OPERATOR);
        runner.close().await;
        until("no agent is left", || running(&sleep) == NOBODY);
    });
    assert!(
        !place.working_dir().join("both").exists(),
        "two agents never share a work tree"
    );
    let attempts: Vec<(u32, u32)> = place
        .history()
        .iter()
        .filter_map(|record| match record.event {
            LoopEvent::IterationStarted {
                iteration, attempt, ..
            } => Some((iteration, attempt)),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [(1, 1), (1, 2)]);
}

#[test]
fn loop_ends_while_a_reload_hangs() {
    let place = Place::new();
    run(async {
        let mut runner = open(place.config(UNTIL_GO)).await;
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let begun = std::sync::Mutex::new(Some(begun));
        // The settings reader blocks on this channel until the test is over.
        let (_held, until) = std::sync::mpsc::channel::<()>();
        let until = std::sync::Mutex::new(until);
        runner.reads_settings_with(SettingsReader::new(move || {
            if let Some(begun) = begun.lock().unwrap().take() {
                begun.send(()).unwrap();
            }
            let _ = until.lock().unwrap().recv();
            Err("no answer".to_owned())
        }));
        let handle = runner.handle();
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.launched(1).await;
            let asked = tokio::spawn({
                let handle = handle.clone();
                async move { handle.reload().await }
            });
            has_begun.await.unwrap();
            handle.shut_down(SIGTERM, Urgency::Now);
            asked.await.unwrap()
        };
        let (outcome, answer) = tokio::join!(runner.run(), operator);
        assert_eq!(outcome.unwrap(), Outcome::Signal { signal: SIGTERM });
        assert!(
            matches!(&answer, Ok(Answer::Refused { .. })),
            "the caller gets an answer: {answer:?}"
        );
    });
}
