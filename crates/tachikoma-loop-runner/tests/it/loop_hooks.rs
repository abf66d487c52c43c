//! Hooks of a reboot that an embedding program registers: their order, timeouts, panics, hooks that register other hooks, and that they
//! never block the loop.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tachikoma_core::{HookPoint, HookResult, HooksEnd, RebootReason, RebootResult, Urgency};
use tachikoma_loop_runner::hooks::{HOOK_TIMEOUT, HookError, HookFuture, RegisterError};
use tachikoma_loop_runner::settings::Hook;
use tachikoma_loop_runner::{
    HookEvent, LoopCommand, LoopEvent, LoopHandle, LoopRunner, LoopState, RebootHook,
};

use crate::loop_support::{BY_OPERATOR, Place, Watch, accepted, lasting, open};
use crate::support::{NOBODY, run, running, unique};

const STOP: LoopCommand = LoopCommand::Stop(Urgency::Now);

const POINTS: [HookPoint; 2] = [HookPoint::BeforeReboot, HookPoint::AfterReboot];

/// Log of the hook calls, in order.
type Diary = Arc<Mutex<Vec<String>>>;

type Work = dyn Fn(HookEvent) -> HookFuture<'static> + Send + Sync;

/// A hook that logs its call and then runs `work`.
struct Noted {
    name: &'static str,
    diary: Diary,
    work: Box<Work>,
}

impl RebootHook for Noted {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&self, event: HookEvent) -> HookFuture<'_> {
        let entry = format!("{} {}: {}", event.point, self.name, event.reason_text);
        self.diary.lock().unwrap().push(entry);
        (self.work)(event)
    }
}

fn hook(
    name: &'static str,
    diary: &Diary,
    work: impl Fn(HookEvent) -> HookFuture<'static> + Send + Sync + 'static,
) -> Arc<dyn RebootHook> {
    Arc::new(Noted {
        name,
        diary: Arc::clone(diary),
        work: Box::new(work),
    })
}

fn well(_: HookEvent) -> HookFuture<'static> {
    Box::pin(async { Ok(None) })
}

fn badly(_: HookEvent) -> HookFuture<'static> {
    Box::pin(async { Err(HookError::from("no room")) })
}

/// Config of a loop with an agent that sleeps until it gets a signal.
fn busy(place: &Place) -> tachikoma_loop_runner::LoopConfig {
    place.config("exec sleep 600")
}

/// Runs a loop, reboots its session `times` times, and stops it.
async fn rebooted(runner: &mut LoopRunner, times: u32) {
    let mut watch = Watch::on(runner);
    let handle = runner.handle();
    let operator = async {
        for _ in 0..times {
            let up = |event: &LoopEvent| matches!(event, LoopEvent::AgentLaunched { .. });
            watch.until("the agent is up", up).await;
            accepted(handle.command(LoopCommand::ForceReboot).await.unwrap());
            watch.until("the reboot is over", is_over).await;
        }
        accepted(handle.command(STOP).await.unwrap());
    };
    let (ended, ()) = tokio::join!(runner.run(), operator);
    assert_eq!(ended.unwrap(), BY_OPERATOR);
}

/// Waits until exactly `wanted` processes run a command. The timeout of the whole test limits this wait.
async fn until_processes(command: &str, wanted: usize) {
    while running(command).len() != wanted {
        tokio::task::yield_now().await;
    }
}

fn is_over(event: &LoopEvent) -> bool {
    matches!(
        event,
        LoopEvent::RebootCompleted { .. } | LoopEvent::RebootFailed { .. }
    )
}

fn results(place: &Place, wanted: HookPoint) -> Vec<HookResult> {
    let mut found = Vec::new();
    for record in place.history() {
        if let LoopEvent::HooksRan(HooksEnd { point, results, .. }) = record.event
            && point == wanted
        {
            found.extend(results);
        }
    }
    found
}

#[test]
fn registered_hooks_run_after_configured_ones_and_get_the_reboot_reason() {
    run(async {
        let place = Place::new();
        let mut config = busy(&place);
        config.settings.hook = vec![Hook {
            on: HookPoint::BeforeReboot,
            command: "echo configured".to_owned(),
            timeout: lasting("30s"),
        }];
        let mut runner = open(config).await;
        let diary = Diary::default();
        for (name, point) in [
            ("b", HookPoint::BeforeReboot),
            ("z", HookPoint::AfterReboot),
            ("a", HookPoint::BeforeReboot),
        ] {
            let saying = move |event: HookEvent| -> HookFuture<'static> {
                assert_eq!(event.reason, Some(RebootReason::Manual));
                Box::pin(async move { Ok(Some(format!("{name} in {}", event.session.number))) })
            };
            let hook = hook(name, &diary, saying);
            runner.register_hook(point, hook, HOOK_TIMEOUT).unwrap();
        }
        rebooted(&mut runner, 1).await;
        let words = "asked for by the operator";
        let noted = diary.lock().unwrap().clone();
        assert_eq!(
            noted,
            [
                format!("before_reboot b: {words}"),
                format!("before_reboot a: {words}"),
                format!("after_reboot z: {words}"),
            ]
        );
        let said = |point| -> Vec<_> {
            let results = results(&place, point).into_iter();
            results
                .map(|result| (result.name, result.output.unwrap(), result.error))
                .collect()
        };
        let told = |name: &str, output: &str| (name.to_owned(), output.to_owned(), None);
        assert_eq!(
            said(HookPoint::BeforeReboot),
            [
                told("echo configured", "configured"),
                told("b", "b in 1"),
                told("a", "a in 1"),
            ]
        );
        assert_eq!(said(HookPoint::AfterReboot), [told("z", "z in 2")]);
        let entry = &runner.state().reboots.history[0];
        assert_eq!(
            entry.hooks.len(),
            4,
            "the reboot history has the results of all four hooks"
        );
        runner.close().await;
    });
}

#[test]
fn first_failing_hook_cancels_the_reboot() {
    run(async {
        let place = Place::new();
        let mut runner = open(busy(&place)).await;
        let diary = Diary::default();
        for (name, work) in [
            ("first", well as fn(HookEvent) -> _),
            ("second", badly),
            ("third", well),
        ] {
            let hook = hook(name, &diary, work);
            let point = HookPoint::BeforeReboot;
            runner.register_hook(point, hook, HOOK_TIMEOUT).unwrap();
        }
        let after = hook("after", &diary, well);
        runner
            .register_hook(HookPoint::AfterReboot, after, HOOK_TIMEOUT)
            .unwrap();
        rebooted(&mut runner, 1).await;
        let ran: Vec<_> = results(&place, HookPoint::BeforeReboot)
            .into_iter()
            .map(|result| (result.name, result.error))
            .collect();
        assert_eq!(
            ran,
            [
                ("first".to_owned(), None),
                ("second".to_owned(), Some("no room".to_owned())),
            ]
        );
        assert_eq!(
            diary.lock().unwrap().len(),
            2,
            "the third hook and the after-reboot hook did not run"
        );
        let state = runner.state();
        assert_eq!(state.session.number.0, 1, "the old session continues");
        let entry = &state.reboots.history[0];
        assert_eq!(
            entry.result,
            RebootResult::Aborted {
                error: "the hook `second` failed: no room".to_owned()
            }
        );
        assert_eq!(
            entry.iteration, 1,
            "the history entry has the iteration of the reboot"
        );
        assert_eq!(state.reboots.failures, 1);
        assert_eq!(state.reboots.last_failure, Some(entry.time));
        runner.close().await;
    });
}

#[test]
fn hook_that_panics_or_times_out_fails_alone() {
    run(async {
        let place = Place::new();
        let mut runner = open(busy(&place)).await;
        let diary = Diary::default();
        let panicking = |_| -> HookFuture<'static> { panic!("at once") };
        let later = |_| -> HookFuture<'static> { Box::pin(async { panic!("later") }) };
        let slow = |_| -> HookFuture<'static> { Box::pin(std::future::pending()) };
        let moment = Duration::from_millis(50);
        let hooks = [
            (hook("one", &diary, panicking), HOOK_TIMEOUT),
            (hook("two", &diary, later), HOOK_TIMEOUT),
            (hook("three", &diary, slow), moment),
            (hook("four", &diary, well), Duration::ZERO),
        ];
        for (hook, timeout) in hooks {
            let point = HookPoint::AfterReboot;
            runner.register_hook(point, hook, timeout).unwrap();
        }
        rebooted(&mut runner, 1).await;
        let errors: Vec<_> = results(&place, HookPoint::AfterReboot)
            .into_iter()
            .map(|result| result.error.unwrap_or_default())
            .collect();
        assert_eq!(
            errors,
            [
                "it panicked: at once",
                "it panicked: later",
                "it did not end within 50ms",
                "",
            ]
        );
        let warned = |event: &LoopEvent| matches!(event, LoopEvent::Warned { .. });
        let history = place.history();
        let warnings = history.iter().filter(|record| warned(&record.event));
        assert_eq!(warnings.count(), 3, "one warning for each failed hook");
        let entry = &runner.state().reboots.history[0];
        assert_eq!(
            entry.result,
            RebootResult::Done,
            "the reboot succeeds although hooks failed"
        );
        assert_eq!(runner.state().session.number.0, 2);
        runner.close().await;
    });
}

#[test]
fn hook_can_register_hooks_and_send_commands() {
    run(async {
        let place = Place::new();
        let mut config = busy(&place);
        config.settings.reboot.min_reboot_interval = lasting("0s");
        let mut runner = open(config).await;
        let diary = Diary::default();
        let handle: LoopHandle = runner.handle();
        let book = Arc::clone(&diary);
        let registering = move |_| -> HookFuture<'static> {
            let handle = handle.clone();
            let another = hook("another", &book, well);
            Box::pin(async move {
                assert_eq!(handle.status().state, LoopState::Rebooting);
                let point = HookPoint::BeforeReboot;
                handle.register_hook(point, another, HOOK_TIMEOUT).await?;
                Ok(Some("registered".to_owned()))
            })
        };
        let hook = hook("registering", &diary, registering);
        runner
            .register_hook(HookPoint::BeforeReboot, hook, HOOK_TIMEOUT)
            .unwrap();
        rebooted(&mut runner, 2).await;
        let names: Vec<_> = results(&place, HookPoint::BeforeReboot)
            .into_iter()
            .map(|result| (result.name, result.error))
            .collect();
        let ran = |name: &str| (name.to_owned(), None);
        assert_eq!(
            names,
            [ran("registering"), ran("registering"), ran("another")],
            "a hook that a hook registers runs from the next reboot on"
        );
        let late = self::hook("late", &diary, well);
        let handle = runner.handle();
        let refused = handle.register_hook(HookPoint::BeforeReboot, late, HOOK_TIMEOUT);
        assert_eq!(
            refused.await,
            Err(RegisterError::Gone),
            "hooks cannot be registered while the loop is not running"
        );
        runner.close().await;
    });
}

#[test]
fn disabled_hooks_do_not_run() {
    run(async {
        let place = Place::new();
        let mut config = busy(&place);
        config.settings.reboot.enable_pre_hooks = false;
        config.settings.reboot.enable_post_hooks = false;
        config.settings.hook = [HookPoint::BeforeReboot, HookPoint::AfterReboot]
            .map(|on| Hook {
                on,
                command: "touch ran".to_owned(),
                timeout: lasting("30s"),
            })
            .to_vec();
        let mut runner = open(config).await;
        let diary = Diary::default();
        for point in POINTS {
            let hook = hook("never", &diary, badly);
            runner.register_hook(point, hook, HOOK_TIMEOUT).unwrap();
        }
        rebooted(&mut runner, 1).await;
        assert_eq!(runner.state().session.number.0, 2);
        assert!(!place.working_dir().join("ran").exists());
        assert!(diary.lock().unwrap().is_empty());
        let none = |event: &LoopEvent| !matches!(event, LoopEvent::HooksStarted { .. });
        assert!(place.history().iter().all(|record| none(&record.event)));
        runner.close().await;
    });
}

#[test]
fn stop_cancels_registered_hooks_and_command_hooks() {
    run(async {
        let place = Place::new();
        let sleep = unique();
        let endless = || {
            let mut config = busy(&place);
            // Both processes of this hook ignore SIGTERM, so only SIGKILL ends them.
            config.settings.hook = vec![Hook {
                on: HookPoint::AfterReboot,
                command: format!("trap '' TERM; setsid {sleep} & exec {sleep}"),
                timeout: lasting("0s"),
            }];
            config
        };
        let mut runner = open(endless()).await;
        let diary = Diary::default();
        let slow = |_| -> HookFuture<'static> { Box::pin(std::future::pending()) };
        let hook = hook("slow", &diary, slow);
        runner
            .register_hook(HookPoint::BeforeReboot, hook, Duration::ZERO)
            .unwrap();
        for (point, processes) in [(HookPoint::BeforeReboot, 0), (HookPoint::AfterReboot, 2)] {
            let mut watch = Watch::on(&runner);
            let handle = runner.handle();
            let operator = async {
                let up = |event: &LoopEvent| matches!(event, LoopEvent::AgentLaunched { .. });
                watch.until("the agent is up", up).await;
                accepted(handle.command(LoopCommand::ForceReboot).await.unwrap());
                let begun = |event: &LoopEvent| matches!(event, LoopEvent::HooksStarted(start) if start.point == point);
                watch.until("the hook runs", begun).await;
                until_processes(&sleep, processes).await;
                assert_eq!(handle.status().state, LoopState::Rebooting);
                let paused = handle.command(LoopCommand::Pause(Urgency::Graceful)).await;
                assert_eq!(accepted(paused.unwrap()), "pauses after the reboot");
                let resumed = handle.command(LoopCommand::Resume).await.unwrap();
                assert!(accepted(resumed).starts_with("the loop continues"));
                assert_eq!(accepted(handle.command(STOP).await.unwrap()), "stopped");
            };
            let (ended, ()) = tokio::join!(runner.run(), operator);
            assert_eq!(ended.unwrap(), BY_OPERATOR);
            assert_eq!(
                running(&sleep),
                NOBODY,
                "no hook process is left after the run"
            );
            // A new runner does not have the registered before-reboot hook, so the next round reaches the after-reboot hook.
            runner.close().await;
            runner = open(endless()).await;
        }
        runner.close().await;
    });
}

/// Returns whether all processes that run a command are stopped.
fn are_stopped(command: &str) -> bool {
    let stopped = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") T ")
    };
    running(command).into_iter().all(stopped)
}

#[test]
fn hook_timeout_does_not_include_suspended_time() {
    run(async {
        let place = Place::new();
        let sleep = unique();
        let mut config = busy(&place);
        config.settings.hook = vec![Hook {
            on: HookPoint::BeforeReboot,
            command: format!("exec {sleep}"),
            // Long enough for a busy machine to start the hook's process and to suspend it before the timeout.
            timeout: lasting("5s"),
        }];
        let mut runner = open(config).await;
        let mut watch = Watch::on(&runner);
        let handle = runner.handle();
        let operator = async {
            let up = |event: &LoopEvent| matches!(event, LoopEvent::AgentLaunched { .. });
            watch.until("the agent is up", up).await;
            accepted(handle.command(LoopCommand::ForceReboot).await.unwrap());
            until_processes(&sleep, 1).await;
            handle.suspend().await;
            while !are_stopped(&sleep) {
                tokio::task::yield_now().await;
            }
            // The process stays suspended for longer than the hook's timeout.
            let stopped = Instant::now();
            while stopped.elapsed() < Duration::from_millis(5500) {
                assert!(running(&sleep).len() == 1 && are_stopped(&sleep));
                tokio::task::yield_now().await;
            }
            handle.go_on().await;
            while are_stopped(&sleep) && !running(&sleep).is_empty() {
                tokio::task::yield_now().await;
            }
            watch.until("the reboot is over", is_over).await;
            accepted(handle.command(STOP).await.unwrap());
        };
        let (ended, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(ended.unwrap(), BY_OPERATOR);
        let result = &results(&place, HookPoint::BeforeReboot)[0];
        assert_eq!(result.error.as_deref(), Some("it did not end within 5s"));
        assert!(result.duration_ms >= 10_400, "{result:?}");
        runner.close().await;
    });
}

#[test]
fn dropped_runner_leaves_no_hook_process() {
    let place = Place::new();
    let sleep = unique();
    let mut config = busy(&place);
    config.settings.hook = vec![Hook {
        on: HookPoint::BeforeReboot,
        command: format!("setsid {sleep} & exec {sleep}"),
        timeout: lasting("10m"),
    }];
    run(async {
        let mut runner = open(config).await;
        let mut watch = Watch::on(&runner);
        let handle = runner.handle();
        let operator = async {
            let up = |event: &LoopEvent| matches!(event, LoopEvent::AgentLaunched { .. });
            watch.until("the agent is up", up).await;
            accepted(handle.command(LoopCommand::ForceReboot).await.unwrap());
            until_processes(&sleep, 2).await;
        };
        tokio::select! {
            ended = runner.run() => panic!("the run ended early: {ended:?}"),
            () = operator => {}
        }
        drop(runner);
        // The hook's task ends when the runtime polls it next. The guard then ends the processes.
        until_processes(&sleep, 0).await;
    });
}
