//! Handles on a running loop: they send commands and receive notices. All queues are bounded, and none of them can block the loop.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tachikoma_core::{
    Answer, Choice, HookPoint, Incident, Launch, LoopCommand, LoopState, LoopStats, RebootEntry,
    State, Status, Urgency,
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::hooks::{PlannedHook, RebootHook, RegisterError};
use crate::notice::Notice;
use crate::process::{CallerRole, Family, Sender, signal_name};
use crate::request::ControlRequest;
use crate::settings::Settings;

/// Size of the queue of commands. If it is full, further callers wait until there is space.
pub const COMMANDS_MAX: usize = 32;

/// Size of the queue of termination signals. Further signals (Ctrl-C) would have the same effect and are dropped.
const SHUTDOWNS_MAX: usize = 4;

/// Maximum number of refusals that are recorded. An agent that repeats its request must not fill the journal.
const REFUSALS_MAX: u32 = 100;

/// Number of notices that a slow subscriber may have pending before it misses some. A very busy loop sends as many in a second.
const NOTICES_MAX: usize = 1024;

/// A request to the runner.
#[derive(Debug)]
pub(crate) enum LoopRequest {
    /// A caller asks for something and waits for the answer.
    Ask {
        request: ControlRequest,
        caller: CallerRole,
        reply: oneshot::Sender<Answer>,
    },
    /// Settings were read again at a caller's request.
    Reloaded {
        read: Box<Result<ReloadedSettings, String>>,
        reply: oneshot::Sender<Answer>,
    },
    /// An incident to record. No caller waits for it.
    Incident(Incident),
    /// Register a hook.
    Register {
        point: HookPoint,
        hook: PlannedHook,
        reply: oneshot::Sender<Result<(), RegisterError>>,
    },
    /// The process is about to be suspended (Ctrl-Z).
    Suspend { done: oneshot::Sender<()> },
    /// The process continues after it was suspended.
    Continue,
}

/// Settings that were reloaded from the configuration files.
#[derive(Clone, Debug)]
pub struct ReloadedSettings {
    /// The new settings.
    pub settings: Settings,
    /// The launch record that a run with these settings would write.
    pub launch: Launch,
}

/// Function that reads the settings of the loop again. The library itself reads neither configuration files nor environment variables.
#[derive(Clone)]
pub struct SettingsReader(Arc<dyn Fn() -> Result<ReloadedSettings, String> + Send + Sync>);

impl SettingsReader {
    /// Returns a reader that calls a function.
    pub fn new(
        read: impl Fn() -> Result<ReloadedSettings, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(read))
    }

    pub(crate) fn read(&self) -> Result<ReloadedSettings, String> {
        (self.0)()
    }
}

impl fmt::Debug for SettingsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingsReader")
    }
}

/// A handle on a loop. Cloning is cheap, and dropping has no effect on the loop.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    requests: mpsc::Sender<LoopRequest>,
    shutdowns: mpsc::Sender<(i32, Urgency)>,
    notices: broadcast::Sender<Notice>,
    status: watch::Receiver<Status>,
    reboots: watch::Receiver<Vec<RebootEntry>>,
    /// Whether the last run has ended. Then no requests are read. Requests before the first run wait for that run.
    over: watch::Receiver<bool>,
    family: Arc<Family>,
    /// Number of requests that were refused because only the operator may make them.
    refusals: Arc<AtomicU32>,
}

/// Error: the runner was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runner is gone")]
pub struct Gone;

impl LoopHandle {
    /// Sends a command and returns the core's answer. A command after the end of a run is refused. A command is withdrawn when its caller
    /// stops waiting. In both cases the command is not kept for the next run.
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn command(&self, command: LoopCommand) -> Result<Answer, Gone> {
        self.request(ControlRequest::Command { command }).await
    }

    /// Stores a value in the custom values of the loop; null removes it. Otherwise like
    /// [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn set(&self, key: String, value: serde_json::Value) -> Result<Answer, Gone> {
        self.request(ControlRequest::Set { key, value }).await
    }

    /// Adds a note for all later sessions. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn note(&self, text: String) -> Result<Answer, Gone> {
        self.request(ControlRequest::Note { text }).await
    }

    /// Claims for the current iteration that the whole work is complete. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn done(&self, reason: Option<String>) -> Result<Answer, Gone> {
        self.request(ControlRequest::Done { reason }).await
    }

    /// Answers the open question, or the question with an id. [`Choice::Edit`] needs a file with the prompt for one iteration.
    /// Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn answer(
        &self,
        id: Option<u32>,
        choice: Choice,
        prompt_file: Option<PathBuf>,
    ) -> Result<Answer, Gone> {
        let request = ControlRequest::Answer {
            id,
            choice,
            prompt_file,
        };
        self.request(request).await
    }

    /// Reports whether the operator is writing an answer to a question. The question stays open meanwhile. Otherwise like
    /// [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn hold(&self, id: u32, writing: bool) -> Result<Answer, Gone> {
        self.request(ControlRequest::Hold { id, writing }).await
    }

    /// Turns attended mode on or off. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn attend(&self, on: bool) -> Result<Answer, Gone> {
        self.request(ControlRequest::Attend { on }).await
    }

    /// Sends a message to the agent: during its next tool call if the agent can read it then, otherwise with the next prompt. Otherwise like
    /// [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn tell(&self, text: String) -> Result<Answer, Gone> {
        self.request(ControlRequest::Tell { text }).await
    }

    /// Reloads the configuration. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn reload(&self) -> Result<Answer, Gone> {
        self.request(ControlRequest::Reload).await
    }

    pub(crate) fn family(&self) -> Arc<Family> {
        Arc::clone(&self.family)
    }

    /// Returns whether the operator sent a signal to this process, and records a refusal if not. If the sender has ended, returns `in_doubt`.
    /// On Linux, a signal is refused if its sender could be forged.
    #[must_use]
    pub fn is_operators(&self, signal: i32, sender: Sender, in_doubt: bool) -> bool {
        let judged = self.family.judge(sender, in_doubt);
        if let Err(refused) = judged {
            self.report_refusal(&signal_name(signal), refused.pid, true, refused.gone);
        }
        judged.is_ok()
    }

    /// Records that a request was refused, so that the operator learns of the attempt.
    pub(crate) fn report_refusal(&self, request: &str, pid: Option<i32>, agent: bool, gone: bool) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) < REFUSALS_MAX {
            self.report(Incident::AccessRefused {
                request: request.to_owned(),
                pid,
                agent,
                gone,
            });
        }
    }

    /// Sends reloaded settings to the runner. Blocks, so it must not be called on a thread of the runtime. Does nothing if the runner was dropped.
    pub(crate) fn send_reloaded(&self, read: LoopRequest) {
        let _ = self.requests.blocking_send(read);
    }

    /// Records an incident. Never waits: if the queue is full, the incident is dropped.
    pub(crate) fn report(&self, incident: Incident) {
        let _ = self.requests.try_send(LoopRequest::Incident(incident));
    }

    async fn request(&self, request: ControlRequest) -> Result<Answer, Gone> {
        self.ask(request, CallerRole::Operator).await
    }

    /// Sends a request for a caller, and returns the answer.
    pub(crate) async fn ask(
        &self,
        request: ControlRequest,
        caller: CallerRole,
    ) -> Result<Answer, Gone> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            let request = LoopRequest::Ask {
                request,
                caller,
                reply,
            };
            self.requests.send(request).await.map_err(|_| Gone)?;
            answer.await.map_err(|_| Gone)
        };
        match self.unless_over(asked).await {
            Some(answer) => answer,
            None => Ok(Answer::Refused {
                current: self.status().state,
                reason: "the loop is not running; `tachikoma run` continues the loop".to_owned(),
            }),
        }
    }

    /// Returns the answer to a request; `None` if the run ends before the answer.
    async fn unless_over<T>(&self, asked: impl Future<Output = T>) -> Option<T> {
        let mut over = self.over.clone();
        tokio::select! {
            biased;
            answer = asked => Some(answer),
            // If the sender was dropped, so was the runner, and the request itself fails.
            Ok(_) = over.wait_for(|over| *over) => None,
        }
    }

    /// Tells the runner to shut down because of a signal. The runner handles it before all commands. Never waits: the queue has space for a few
    /// signals, and further ones are dropped.
    pub fn shut_down(&self, signal: i32, urgency: Urgency) {
        // If the queue is full, the runner gets the same request from an earlier signal.
        let _ = self.shutdowns.try_send((signal, urgency));
    }

    /// Registers a hook during a run. Hooks may register hooks too. The new hook runs from the next reboot on. Before the run, use
    /// [`LoopRunner::register_hook`](crate::LoopRunner::register_hook), because this function would wait for the run.
    ///
    /// # Errors
    /// The run has ended, or too many hooks are registered.
    pub async fn register_hook(
        &self,
        point: HookPoint,
        hook: Arc<dyn RebootHook>,
        timeout: Duration,
    ) -> Result<(), RegisterError> {
        let (reply, answer) = oneshot::channel();
        let hook = PlannedHook::registered(hook, timeout);
        let asked = async {
            let request = LoopRequest::Register { point, hook, reply };
            let sent = self.requests.send(request).await;
            sent.map_err(|_| RegisterError::Gone)?;
            answer.await.unwrap_or(Err(RegisterError::Gone))
        };
        self.unless_over(asked)
            .await
            .unwrap_or(Err(RegisterError::Gone))
    }

    /// Suspends the agent, because the whole process is about to be suspended. Returns after the agent is suspended.
    pub async fn suspend(&self) {
        let (done, is_done) = oneshot::channel();
        let asked = async {
            if self
                .requests
                .send(LoopRequest::Suspend { done })
                .await
                .is_ok()
            {
                let _ = is_done.await;
            }
        };
        self.unless_over(asked).await;
    }

    /// Continues the agent after [`LoopHandle::suspend`]. Timeouts do not include the time in between.
    pub async fn go_on(&self) {
        self.unless_over(self.requests.send(LoopRequest::Continue))
            .await;
    }

    /// Pauses the loop after the current iteration; with [`Urgency::Now`] the iteration is interrupted.
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn pause(&self, urgency: Urgency) -> Result<Answer, Gone> {
        self.command(LoopCommand::Pause(urgency)).await
    }

    /// Continues the loop after a pause.
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn resume(&self) -> Result<Answer, Gone> {
        self.command(LoopCommand::Resume).await
    }

    /// Ends the loop. A later run continues it.
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn stop(&self, urgency: Urgency) -> Result<Answer, Gone> {
        self.command(LoopCommand::Stop(urgency)).await
    }

    /// Returns the current status of the loop. Can be called while the loop runs.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Returns the current state of the loop.
    #[must_use]
    pub fn state(&self) -> LoopState {
        self.status.borrow().state
    }

    /// Returns the statistics of the loop so far.
    #[must_use]
    pub fn stats(&self) -> LoopStats {
        self.status.borrow().stats
    }

    /// Returns the reboots that have ended, oldest first, at most the last 100.
    #[must_use]
    pub fn reboots(&self) -> Vec<RebootEntry> {
        self.reboots.borrow().clone()
    }

    /// Subscribes to all later notices. A slow subscriber gets the number of notices that it missed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}

/// The channel ends that the runner owns.
#[derive(Debug)]
pub(crate) struct Channels {
    pub requests: mpsc::Receiver<LoopRequest>,
    pub shutdowns: mpsc::Receiver<(i32, Urgency)>,
    pub notices: broadcast::Sender<Notice>,
    pub status: watch::Sender<Status>,
    reboots: watch::Sender<Vec<RebootEntry>>,
    over: watch::Sender<bool>,
}

impl Channels {
    /// Starts a run: requests are read until the returned guard is dropped.
    pub fn begin_run(&self) -> RunGuard {
        self.over.send_replace(false);
        RunGuard(self.over.clone())
    }

    /// Makes the state visible to all handles.
    pub fn publish(&self, state: &State) {
        self.status.send_replace(Status::of(state, true));
        let history = &state.reboots.history;
        self.reboots.send_if_modified(|known| {
            let is_new = known != history;
            if is_new {
                known.clone_from(history);
            }
            is_new
        });
    }
}

/// Marks a run. Dropping it ends the wait of all callers, even if the future of the run is dropped.
#[derive(Debug)]
pub(crate) struct RunGuard(watch::Sender<bool>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

pub(crate) fn channel(state: &State, family: Family) -> (LoopHandle, Channels) {
    let (request_in, requests) = mpsc::channel(COMMANDS_MAX);
    let (shutdown_in, shutdowns) = mpsc::channel(SHUTDOWNS_MAX);
    let (notices, _) = broadcast::channel(NOTICES_MAX);
    let (status, status_out) = watch::channel(Status::of(state, true));
    let (reboots, reboots_out) = watch::channel(state.reboots.history.clone());
    let (over, is_over) = watch::channel(false);
    let handle = LoopHandle {
        requests: request_in,
        shutdowns: shutdown_in,
        notices: notices.clone(),
        status: status_out,
        reboots: reboots_out,
        over: is_over,
        family: Arc::new(family),
        refusals: Arc::default(),
    };
    (
        handle,
        Channels {
            requests,
            shutdowns,
            notices,
            status,
            reboots,
            over,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Adoption;
    use tachikoma_core::LoopId;

    #[tokio::test]
    async fn request_queue_is_bounded_and_further_callers_wait() {
        assert_eq!(COMMANDS_MAX, 32);
        let state = State::new(LoopId::from_u128(1));
        let (handle, mut channels) = channel(&state, Family::new(Adoption::Marked));
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..=COMMANDS_MAX {
            let handle = handle.clone();
            callers.spawn(async move { handle.command(LoopCommand::Resume).await });
        }
        tokio::task::yield_now().await;
        assert_eq!(
            channels.requests.len(),
            COMMANDS_MAX,
            "the queue is full and one caller waits"
        );
        assert!(channels.requests.recv().await.is_some());
        tokio::task::yield_now().await;
        assert_eq!(
            channels.requests.len(),
            COMMANDS_MAX,
            "the waiting caller's request is queued next"
        );
        drop(channels);
        while let Some(answer) = callers.join_next().await {
            assert_eq!(answer.unwrap(), Err(Gone), "no caller is left waiting");
        }
    }
}
