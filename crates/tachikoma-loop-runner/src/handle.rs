//! Handles on a running loop: commands go in, notices come out. All queues are bounded, and none of them can stall the loop.

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

/// Commands that may wait for the runner. A caller beyond that waits until there is space.
pub const COMMANDS_MAX: usize = 32;

/// Signals that may wait for the runner. More presses of Ctrl-C mean the same.
const SHUTDOWNS_MAX: usize = 4;

/// Refusals that are recorded: an agent that asks again and again must not fill the journal.
const REFUSALS_MAX: u32 = 100;

/// Notices that a slow subscriber may have pending before it misses some: a second of the busiest loop.
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
    /// The settings were read again, because a caller asked for it.
    Reloaded {
        read: Box<Result<ReloadedSettings, String>>,
        reply: oneshot::Sender<Answer>,
    },
    /// Something that has to be recorded, and that no caller waits for.
    Incident(Incident),
    /// Register a hook.
    Register {
        point: HookPoint,
        hook: PlannedHook,
        reply: oneshot::Sender<Result<(), RegisterError>>,
    },
    /// The whole process is about to be stopped (Ctrl-Z).
    Suspend { done: oneshot::Sender<()> },
    /// The process continues.
    Continue,
}

/// Settings that were read again.
#[derive(Clone, Debug)]
pub struct ReloadedSettings {
    /// The settings.
    pub settings: Settings,
    /// The launch of a run that begins with these settings.
    pub launch: Launch,
}

/// Reads the settings of the loop again. The library itself reads neither configuration files nor variables.
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

/// A handle on a loop: cheap to clone, and harmless to drop.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    requests: mpsc::Sender<LoopRequest>,
    shutdowns: mpsc::Sender<(i32, Urgency)>,
    notices: broadcast::Sender<Notice>,
    status: watch::Receiver<Status>,
    reboots: watch::Receiver<Vec<RebootEntry>>,
    /// Whether the latest run is over, so that requests are not read. Requests before the first run wait for it.
    over: watch::Receiver<bool>,
    family: Arc<Family>,
    /// How many requests were refused because only the operator may make them.
    refusals: Arc<AtomicU32>,
}

/// The runner was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runner is gone")]
pub struct Gone;

impl LoopHandle {
    /// Gives a command and returns the core's answer. A command after the end of a run is refused. A command is withdrawn when its caller
    /// stops waiting. Neither is kept for the next run.
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn command(&self, command: LoopCommand) -> Result<Answer, Gone> {
        self.request(ControlRequest::Command { command }).await
    }

    /// Stores a value in the free map of the loop; null removes it. Otherwise like
    /// [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn set(&self, key: String, value: serde_json::Value) -> Result<Answer, Gone> {
        self.request(ControlRequest::Set { key, value }).await
    }

    /// Leaves a note for the sessions to come. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn note(&self, text: String) -> Result<Answer, Gone> {
        self.request(ControlRequest::Note { text }).await
    }

    /// Claims, for the iteration under way, that the whole work is complete. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner was dropped.
    pub async fn done(&self, reason: Option<String>) -> Result<Answer, Gone> {
        self.request(ControlRequest::Done { reason }).await
    }

    /// Answers the open question, or the one with an id. [`Choice::Edit`] needs the file that has the prompt for one iteration. Otherwise like [`LoopHandle::command`].
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

    /// Says whether the operator is writing the answer to a question, which stays open meanwhile. Otherwise like
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

    /// Tells the agent something: while its next tool runs if the agent can read it then, otherwise with the next prompt. Otherwise like
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
    /// On Linux a signal with a sender that can be forged is refused.
    #[must_use]
    pub fn is_operators(&self, signal: i32, sender: Sender, in_doubt: bool) -> bool {
        let judged = self.family.judge(sender, in_doubt);
        if let Err(refused) = judged {
            self.report_refusal(&signal_name(signal), refused.pid, true, refused.gone);
        }
        judged.is_ok()
    }

    /// Records a refusal, so that the operator learns of the attempt.
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

    /// Sends reloaded settings to the runner. Blocks, so that it must not be called on the runtime. A runner that was dropped needs no settings.
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

    /// Makes a request for a caller, and returns the answer.
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

    /// Returns the answer to a request; `None` if the run is over.
    async fn unless_over<T>(&self, asked: impl Future<Output = T>) -> Option<T> {
        let mut over = self.over.clone();
        tokio::select! {
            biased;
            answer = asked => Some(answer),
            // Without a sender the runner was dropped, and the request fails with that.
            Ok(_) = over.wait_for(|over| *over) => None,
        }
    }

    /// Tells the runner that its process is about to end. Goes before all commands and never waits: a few signals wait until the runner reads
    /// them, and further ones are dropped.
    pub fn shut_down(&self, signal: i32, urgency: Urgency) {
        // A full queue says the same already.
        let _ = self.shutdowns.try_send((signal, urgency));
    }

    /// Registers a hook during a run, also from another hook. It runs from the next reboot on. Before the run, use
    /// [`LoopRunner::register_hook`](crate::LoopRunner::register_hook): this would wait for the run.
    ///
    /// # Errors
    /// The run is over, or there are too many.
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

    /// Stops the agent, because the whole process is about to be stopped. Returns when the agent is stopped.
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

    /// Continues the agent after [`LoopHandle::suspend`]. The time in between does not count.
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

    /// Returns the current status, also while the loop runs.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Returns the current state of the loop.
    #[must_use]
    pub fn state(&self) -> LoopState {
        self.status.borrow().state
    }

    /// Returns what the loop has done so far.
    #[must_use]
    pub fn stats(&self) -> LoopStats {
        self.status.borrow().stats
    }

    /// Returns the reboots that have ended, oldest first, at most the last 100.
    #[must_use]
    pub fn reboots(&self) -> Vec<RebootEntry> {
        self.reboots.borrow().clone()
    }

    /// Subscribes to all notices from now on. A slow subscriber learns how many it missed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}

/// The runner's ends of the channels.
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
    /// Begins a run: requests are read until the result is dropped.
    pub fn begin_run(&self) -> RunGuard {
        self.over.send_replace(false);
        RunGuard(self.over.clone())
    }

    /// Shows the state to all handles.
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

/// A run. Dropping it ends the wait of all callers, also when the future of the run is dropped.
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
            "one caller waits itself"
        );
        assert!(channels.requests.recv().await.is_some());
        tokio::task::yield_now().await;
        assert_eq!(channels.requests.len(), COMMANDS_MAX, "and has its turn");
        drop(channels);
        while let Some(answer) = callers.join_next().await {
            assert_eq!(answer.unwrap(), Err(Gone), "no caller is left waiting");
        }
    }
}
