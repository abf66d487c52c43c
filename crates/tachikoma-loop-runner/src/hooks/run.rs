//! The hooks of one point at work, one after the other, in a task of their own.

use std::fmt;
use std::sync::Arc;

use tachikoma_core::{HookPoint, HookResult};
use tokio::sync::{mpsc, oneshot};

use super::limit::Limit;
use super::output::Tail;
use super::shell::{GRACE, Shell};
use super::{Action, HookEvent, Planned, RebootHook};
use crate::clock;
use crate::error::chain;
use crate::task::{Task, words_of};

/// A run of hooks is told to stop, to go on and to end, and reads at once.
const ORDERS_MAX: usize = 8;

/// What the task is called when it fails.
const HOOKS: &str = "hooks";

/// What is to be run, and with what.
pub(crate) struct Plan {
    pub hooks: Vec<Planned>,
    pub event: HookEvent,
    pub shell: Shell,
}

/// What hooks are told while they run.
#[derive(Debug)]
pub(super) enum Order {
    /// The whole process is about to be stopped.
    Suspend(oneshot::Sender<()>),
    /// It goes on.
    Continue,
    /// Nobody waits for them any more.
    End,
}

/// How a run of hooks ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// How each went, in order.
    Results(Vec<HookResult>),
    /// Not the hook but its runner panicked.
    Broken(String),
}

/// Hooks under way. Dropped, they are ended where they are.
#[derive(Debug)]
pub(crate) struct HookRun {
    pub point: HookPoint,
    orders: mpsc::Sender<Order>,
    results: oneshot::Receiver<Vec<HookResult>>,
    task: Task,
}

impl HookRun {
    /// Begins with the hooks of a plan, as soon as those `before` have ended.
    pub fn begin(plan: Plan, before: Option<Self>) -> Self {
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (out, results) = oneshot::channel();
        let point = plan.event.point;
        let work = async move {
            if let Some(before) = before {
                before.end().await;
            }
            // Whoever waited may have gone.
            let _ = out.send(run_all(plan, ordered).await);
        };
        Self {
            point,
            orders,
            results,
            task: Task::spawn(HOOKS, work),
        }
    }

    /// Returns how the hooks went, once nothing of them is left. Cancel-safe.
    pub async fn ended(&mut self) -> Ran {
        match (&mut self.results).await {
            Ok(results) => Ran::Results(results),
            Err(_) => Ran::Broken(self.task.broken().await),
        }
    }

    /// Stops what runs, as Ctrl-Z does, and then tells `done`.
    pub fn suspend(&self, done: oneshot::Sender<()>) {
        self.order(Order::Suspend(done));
    }

    /// Lets what was stopped go on.
    pub fn resume(&self) {
        self.order(Order::Continue);
    }

    /// Nobody waits for the hooks any more: they are asked to go, and killed if they do not. Never waits.
    pub fn call_off(&self) {
        self.order(Order::End);
    }

    /// Calls the hooks off and waits until nothing of them is left.
    pub async fn end(mut self) {
        self.call_off();
        // Its results are for nobody, and so is a panic.
        let _ = self.task.ended().await;
    }

    fn order(&self, order: Order) {
        // A run that is over needs no orders.
        let _ = self.orders.try_send(order);
    }
}

impl Drop for HookRun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run_all(plan: Plan, mut orders: mpsc::Receiver<Order>) -> Vec<HookResult> {
    let Plan {
        hooks,
        event,
        mut shell,
    } = plan;
    let mut results = Vec::new();
    for hook in hooks {
        let began = clock::monotonic();
        let limit = Limit::new(hook.timeout);
        let ended = match hook.action {
            Action::Command(command) => shell.run(&command, &event, limit, &mut orders).await,
            Action::Registered(hook) => call(hook, event.clone(), limit, &mut orders).await,
        };
        let error = ended.failure.map(|failure| match failure {
            Failure::TimedOut => {
                let limit = humantime::format_duration(hook.timeout);
                format!("it did not end within {limit}")
            }
            Failure::CalledOff => "the loop ended".to_owned(),
            Failure::Failed(error) => error,
        });
        let failed = error.is_some();
        results.push(HookResult {
            name: hook.name,
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            output: ended.output.text(),
            error,
            stop: ended.stop,
        });
        // The first one that fails calls the reboot off: the others have nothing to prepare. After a reboot each has
        // its own work to do.
        let enough = match event.point {
            HookPoint::BeforeReboot => failed,
            HookPoint::AfterReboot => ended.called_off,
        };
        if enough {
            break;
        }
    }
    shell.close().await;
    results
}

/// How a hook ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub output: Tail,
    pub failure: Option<Failure>,
    /// Whether it wants the loop to stop.
    pub stop: bool,
    /// Whether nobody waits for the hooks any more.
    pub called_off: bool,
}

/// Why a hook has not done what it should.
#[derive(Debug)]
pub(super) enum Failure {
    TimedOut,
    CalledOff,
    Failed(String),
}

impl Ended {
    pub fn failed(error: impl fmt::Display) -> Self {
        Self {
            failure: Some(Failure::Failed(error.to_string())),
            ..Self::default()
        }
    }
}

/// Calls a registered hook. It has a task of its own, in which it may panic.
async fn call(
    hook: Arc<dyn RebootHook>,
    event: HookEvent,
    mut limit: Limit,
    orders: &mut mpsc::Receiver<Order>,
) -> Ended {
    let work = async move { hook.run(event).await.map_err(|error| chain(error.as_ref())) };
    let mut task = Aborted(tokio::spawn(work));
    let failure = loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::Suspend(done)) => {
                    limit.stop();
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
                Some(Order::Continue) => limit.go_on(),
                Some(Order::End) | None => break Failure::CalledOff,
            },
            ended = &mut task.0 => return match ended {
                Ok(Ok(text)) => Ended {
                    output: Tail::from(text.unwrap_or_default().as_str()),
                    ..Ended::default()
                },
                Ok(Err(error)) => Ended::failed(error),
                Err(error) => Ended::failed(match error.try_into_panic() {
                    Ok(payload) => format!("it panicked: {}", words_of(payload.as_ref())),
                    Err(error) => error.to_string(),
                }),
            },
            () = limit.over() => break Failure::TimedOut,
        }
    };
    task.0.abort();
    // Gone at its next await; one that blocks its thread is not waited for.
    let _ = tokio::time::timeout(GRACE, &mut task.0).await;
    Ended {
        called_off: matches!(failure, Failure::CalledOff),
        failure: Some(failure),
        ..Ended::default()
    }
}

/// A task that does not outlive whoever waits for it.
struct Aborted<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
