//! Runs the hooks of one point, one after another, in a separate task.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use tachikoma_core::policy::custom::KEYS_MAX;
use tachikoma_core::{Exit, HookPoint, HookResult};
use tokio::sync::mpsc;

use super::{Action, HookEvent, PlannedHook, RebootHook};
use crate::clock;
use crate::shell::{
    CancellableTask, CommandOutput, Ended, Failure, GRACE, Job, Limit, Shell, TaskCommand,
};
use crate::task::words_of;
use tachikoma_core::error_chain as chain;

/// Maximum size of the end of a hook's output that is recorded.
const OUTPUT_BYTES_MAX: usize = 4096;

/// Maximum size of a hook's output that is searched for values to store.
const CUSTOM_OUTPUT_BYTES_MAX: usize = 64 << 10;

/// The exit code with which a hook stops the loop.
const STOP: Exit = Exit::Code(125);

/// Name of the background task in error messages.
const HOOKS: &str = "hooks";

/// Running hooks. Dropping it aborts them.
#[derive(Debug)]
pub(crate) struct HookRun {
    pub point: HookPoint,
    pub task: CancellableTask<Vec<HookResult>>,
}

impl HookRun {
    /// Runs hooks in the shell. Waits first until the hooks of `before` have ended.
    pub fn begin(
        hooks: Vec<PlannedHook>,
        event: HookEvent,
        shell: Shell,
        before: Option<Self>,
    ) -> Self {
        let point = event.point;
        let before = before.map(|before| before.task);
        let run = |orders| run_all(hooks, event, shell, orders);
        Self {
            point,
            task: CancellableTask::start(HOOKS, before, run),
        }
    }
}

async fn run_all(
    hooks: Vec<PlannedHook>,
    event: HookEvent,
    mut shell: Shell,
    mut orders: mpsc::Receiver<TaskCommand>,
) -> Vec<HookResult> {
    let mut results = Vec::new();
    for hook in hooks {
        let began = clock::monotonic();
        let limit = Limit::new(hook.timeout);
        let ended = match hook.action {
            Action::Command(command) => match job(&command, &event, limit) {
                Ok(job) => shell.run(job, &mut orders).await,
                Err(error) => failed(format!("it cannot be started: {error}")),
            },
            Action::Registered(hook) => call(hook, event.clone(), limit, &mut orders).await,
        };
        let by_itself = matches!(ended.failure, Some(Failure::Failed(_)));
        let stop = ended.exit == Some(STOP) && by_itself;
        let error = ended.failure.map(|failure| failure.describe(hook.timeout));
        let failed = error.is_some();
        let cut = ended.output.tail.is_cut();
        let text = ended.output.tail.text();
        // Values to store are read from the whole output, because they may be longer than the recorded part.
        let custom = text.as_deref().map(custom_values).unwrap_or_default();
        // The first line of truncated output says how much is missing. The second line is the rest of a truncated line.
        let torn = text.as_deref().and_then(|text| text.lines().nth(1));
        let unread = cut && custom.is_empty() && torn.is_some_and(|it| it.trim().ends_with('}'));
        let output = text.map(|text| end_of(&text));
        results.push(HookResult {
            name: hook.name,
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            output,
            error,
            stop,
            custom,
            unread,
        });
        // A failed hook before a reboot cancels the reboot, so the other hooks are skipped. After a reboot, all hooks run.
        let enough = failed && event.point == HookPoint::BeforeReboot;
        if enough || ended.canceled {
            break;
        }
    }
    shell.close().await;
    results
}

/// Returns the values that a hook wants to store: the last line that is a JSON object with `custom`.
fn custom_values(output: &str) -> BTreeMap<String, serde_json::Value> {
    #[derive(Deserialize)]
    struct Wanted {
        custom: BTreeMap<String, serde_json::Value>,
    }
    let lines = output.lines().rev().map(str::trim);
    let objects = lines.filter(|line| line.starts_with('{'));
    let mut wanted = objects.filter_map(|line| serde_json::from_str::<Wanted>(line).ok());
    wanted.next().map_or_else(BTreeMap::new, |wanted| {
        // Takes one value more than the limit, so that the core reports the excess.
        wanted.custom.into_iter().take(KEYS_MAX + 1).collect()
    })
}

/// Returns the recorded end of the output.
fn end_of(output: &str) -> String {
    let mut tail = CommandOutput::tail_only(OUTPUT_BYTES_MAX).tail;
    tail.push(output.as_bytes());
    tail.text().unwrap_or_default()
}

fn job(command: &str, event: &HookEvent, limit: Limit) -> serde_json::Result<Job> {
    let (program, args) = Job::line(command);
    Ok(Job {
        program,
        args,
        env: variables(event),
        working_dir: event.working_dir.clone(),
        input: serde_json::to_vec(event)?,
        limit,
        output: CommandOutput::tail_only(CUSTOM_OUTPUT_BYTES_MAX),
    })
}

fn failed(error: impl fmt::Display) -> Ended {
    ended(Some(Failure::Failed(error.to_string())))
}

fn ended(failure: Option<Failure>) -> Ended {
    Ended {
        output: CommandOutput::tail_only(OUTPUT_BYTES_MAX),
        last_words: None,
        exit: None,
        canceled: matches!(failure, Some(Failure::Canceled)),
        failure,
    }
}

pub(crate) fn variables(event: &HookEvent) -> Vec<(OsString, OsString)> {
    let pair = |name: &str, value: String| (OsString::from(name), OsString::from(value));
    let outcome = event.outcome.clone();
    let outcome = outcome.map(|outcome| pair("TACHIKOMA_OUTCOME", outcome));
    let test = event.test.then(|| pair("TACHIKOMA_TEST", "1".to_owned()));
    let common = vec![
        pair("TACHIKOMA_HOOK", event.point.to_string()),
        // A reason may contain a NUL byte from a pattern. Environment variables cannot.
        pair("TACHIKOMA_REASON", event.reason_text.replace('\0', " ")),
        pair("TACHIKOMA_ITERATION", event.iteration.to_string()),
        pair("TACHIKOMA_SESSION", event.session.number.to_string()),
        ("TACHIKOMA_DIR".into(), event.working_dir.clone().into()),
    ];
    let question = event.question.as_ref();
    let question = question.map(|question| pair("TACHIKOMA_QUESTION", question.id.to_string()));
    let more = outcome.into_iter().chain(question).chain(test);
    common.into_iter().chain(more).collect()
}

/// Calls a registered hook in a separate task, so that a panic only fails the hook.
async fn call(
    hook: Arc<dyn RebootHook>,
    event: HookEvent,
    mut limit: Limit,
    orders: &mut mpsc::Receiver<TaskCommand>,
) -> Ended {
    let work = async move { hook.run(event).await.map_err(|error| chain(error.as_ref())) };
    let mut task = Aborted(tokio::spawn(work));
    let failure = loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(TaskCommand::Suspend(done)) => {
                    limit.stop();
                    // The send fails if the caller was dropped, which does not matter.
                    let _ = done.send(());
                }
                Some(TaskCommand::Resume) => limit.resume(),
                Some(TaskCommand::Cancel) | None => break Failure::Canceled,
            },
            returned = &mut task.0 => return match returned {
                Ok(Ok(text)) => {
                    let mut ended = ended(None);
                    ended.output.push(text.unwrap_or_default().as_bytes());
                    ended
                }
                Ok(Err(error)) => failed(error),
                Err(error) => failed(match error.try_into_panic() {
                    Ok(payload) => format!("it panicked: {}", words_of(payload.as_ref())),
                    Err(error) => error.to_string(),
                }),
            },
            () = limit.over() => break Failure::TimedOut,
        }
    };
    task.0.abort();
    // The aborted task ends at its next await. A hook that blocks its thread is waited for only until the timeout.
    let _ = tokio::time::timeout(GRACE, &mut task.0).await;
    ended(Some(failure))
}

/// A task that is aborted when this is dropped.
struct Aborted<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
