//! The ends that others hold of a running loop: commands in, records out. All of it is bounded, and none of it can
//! stall the loop.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tachikoma_core::{Answer, Choice, HookPoint, Incident, Launch, LoopCommand, Status, Urgency};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::hooks::{PlannedHook, RebootHook, RegisterError};
use crate::notice::Notice;
use crate::process::{Family, Hooks, Sender, signal_name};
use crate::settings::Settings;

/// Commands that may wait for the runner; a caller beyond that waits itself.
pub const COMMANDS_MAX: usize = 32;

/// Signals that may wait for the runner. Four presses of Ctrl-C say everything there is to say.
const SHUTDOWNS_MAX: usize = 4;

/// Refusals that are recorded, in one run: an agent that asks again and again must not fill the journal.
const REFUSALS_MAX: u32 = 100;

/// Notices that a reader may be behind before it misses some: a second of the busiest loop.
const NOTICES_MAX: usize = 1024;

/// What the runner is asked.
#[derive(Debug)]
pub(crate) enum LoopRequest {
    Command {
        command: LoopCommand,
        /// The hooks that it comes from.
        hooks: Option<Hooks>,
        reply: oneshot::Sender<Answer>,
    },
    Set {
        key: String,
        value: serde_json::Value,
        reply: oneshot::Sender<Answer>,
    },
    Note {
        text: String,
        operator: bool,
        reply: oneshot::Sender<Answer>,
    },
    Done {
        reason: Option<String>,
        reply: oneshot::Sender<Answer>,
    },
    Operator {
        request: OperatorRequest,
        reply: oneshot::Sender<Answer>,
    },
    /// The settings were read again, because a caller asked for it.
    Reloaded {
        read: Box<Result<ReloadedSettings, String>>,
        reply: oneshot::Sender<Answer>,
    },
    /// Something happened beside the loop.
    Incident(Incident),
    /// A hook that is to run from the next reboot on.
    Register {
        point: HookPoint,
        hook: PlannedHook,
        reply: oneshot::Sender<Result<(), RegisterError>>,
    },
    /// The whole process is about to be stopped (Ctrl-Z).
    Suspend { done: oneshot::Sender<()> },
    /// It goes on.
    Continue,
}

/// What the operator asks besides commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperatorRequest {
    Answer {
        id: Option<u32>,
        choice: Choice,
        prompt_file: Option<PathBuf>,
    },
    Hold {
        id: u32,
        writing: bool,
    },
    Attend {
        on: bool,
    },
    Tell {
        text: String,
    },
    Reload,
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
    /// Whether the latest run is over: nobody reads requests then. Before the first run they wait for it.
    over: watch::Receiver<bool>,
    family: Arc<Family>,
    /// How many were refused what only the operator may ask.
    refusals: Arc<AtomicU32>,
}

/// The runner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runner is gone")]
pub struct Gone;

impl LoopHandle {
    /// Gives a command and returns the core's answer to it. A command that comes after the end of a run is refused,
    /// and one whose caller has stopped waiting is withdrawn: neither is kept for the next run.
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn command(&self, command: LoopCommand) -> Result<Answer, Gone> {
        self.command_of(command, None).await
    }

    /// Gives a command that hooks may have given.
    pub(crate) async fn command_of(
        &self,
        command: LoopCommand,
        hooks: Option<Hooks>,
    ) -> Result<Answer, Gone> {
        self.ask(|reply| LoopRequest::Command {
            command,
            hooks,
            reply,
        })
        .await
    }

    /// Has something written down for later, in the free map of the loop; null takes it away. Otherwise like
    /// [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn set(&self, key: String, value: serde_json::Value) -> Result<Answer, Gone> {
        self.ask(|reply| LoopRequest::Set { key, value, reply })
            .await
    }

    /// Leaves a note for the sessions to come. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn note(&self, text: String) -> Result<Answer, Gone> {
        self.note_of(text, true).await
    }

    pub(crate) async fn note_of(&self, text: String, operator: bool) -> Result<Answer, Gone> {
        let note = |reply| LoopRequest::Note {
            text,
            operator,
            reply,
        };
        self.ask(note).await
    }

    /// Claims, for the iteration under way, that the whole work is complete. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn done(&self, reason: Option<String>) -> Result<Answer, Gone> {
        self.ask(|reply| LoopRequest::Done { reason, reply }).await
    }

    /// Answers the question that is open, or the one of a number. With [`Choice::Edit`] goes the file that has the prompt for one
    /// iteration. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn answer(
        &self,
        id: Option<u32>,
        choice: Choice,
        prompt_file: Option<PathBuf>,
    ) -> Result<Answer, Gone> {
        let request = OperatorRequest::Answer {
            id,
            choice,
            prompt_file,
        };
        self.ask(|reply| LoopRequest::Operator { request, reply })
            .await
    }

    /// Says that the answer to a question is being written, or is not any more: it stays open meanwhile. Otherwise like
    /// [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn hold(&self, id: u32, writing: bool) -> Result<Answer, Gone> {
        let request = OperatorRequest::Hold { id, writing };
        self.ask(|reply| LoopRequest::Operator { request, reply })
            .await
    }

    /// Says whether somebody is there to be asked before and after each iteration. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn attend(&self, on: bool) -> Result<Answer, Gone> {
        let request = OperatorRequest::Attend { on };
        self.ask(|reply| LoopRequest::Operator { request, reply })
            .await
    }

    /// Tells the agent something: while its next tool runs where that can be, else with the next prompt. Otherwise like
    /// [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn tell(&self, text: String) -> Result<Answer, Gone> {
        let request = OperatorRequest::Tell { text };
        self.ask(|reply| LoopRequest::Operator { request, reply })
            .await
    }

    /// Has the configuration read again. Otherwise like [`LoopHandle::command`].
    ///
    /// # Errors
    /// The runner is gone.
    pub async fn reload(&self) -> Result<Answer, Gone> {
        let request = OperatorRequest::Reload;
        self.ask(|reply| LoopRequest::Operator { request, reply })
            .await
    }

    pub(crate) fn family(&self) -> Arc<Family> {
        Arc::clone(&self.family)
    }

    /// Returns whether a signal to this process is the operator's, and has it recorded if it is not. If its sender is
    /// gone, it is if `in_doubt`. A signal with a sender that can be forged is refused on Linux.
    #[must_use]
    pub fn is_operators(&self, signal: i32, sender: Sender, in_doubt: bool) -> bool {
        let judged = self.family.judge(sender, in_doubt);
        if let Err(refused) = judged {
            self.report_refusal(signal_name(signal), refused.pid, true, refused.gone);
        }
        judged.is_ok()
    }

    /// Has a refusal recorded, so that the operator knows what was tried.
    pub(crate) fn report_refusal(
        &self,
        request: String,
        pid: Option<i32>,
        agent: bool,
        gone: bool,
    ) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) < REFUSALS_MAX {
            self.report(Incident::AccessRefused {
                request,
                pid,
                agent,
                gone,
            });
        }
    }

    /// Tells the runner what was read. Waits, outside of the runtime; a runner that is gone needs no settings.
    pub(crate) fn send_reloaded(&self, read: LoopRequest) {
        let _ = self.requests.blocking_send(read);
    }

    /// Has something recorded that happened beside the loop. Never waits: when the queue is full it is left out.
    pub(crate) fn report(&self, incident: Incident) {
        let _ = self.requests.try_send(LoopRequest::Incident(incident));
    }

    async fn ask(
        &self,
        request: impl FnOnce(oneshot::Sender<Answer>) -> LoopRequest,
    ) -> Result<Answer, Gone> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            let request = request(reply);
            self.requests.send(request).await.map_err(|_| Gone)?;
            answer.await.map_err(|_| Gone)
        };
        match self.unless_over(asked).await {
            Some(answer) => answer,
            None => Ok(Answer::Refused {
                current: self.status().state,
                reason: "nothing runs; `tachikoma run` goes on with the loop".to_owned(),
            }),
        }
    }

    /// Returns what a request brings; nothing when the run is over and nobody answers it.
    async fn unless_over<T>(&self, asked: impl Future<Output = T>) -> Option<T> {
        let mut over = self.over.clone();
        tokio::select! {
            biased;
            answer = asked => Some(answer),
            // Without a sender the runner is gone, and the request says so.
            Ok(_) = over.wait_for(|over| *over) => None,
        }
    }

    /// Tells the runner that its process is to end. Goes before all commands and never waits: as many as say everything
    /// are kept until the runner reads them, and repeats beyond those are dropped.
    pub fn shut_down(&self, signal: i32, urgency: Urgency) {
        // When the queue is full, the runner has been told often enough.
        let _ = self.shutdowns.try_send((signal, urgency));
    }

    /// Registers a hook in the middle of a run, also from inside of another: it runs from the next reboot on. Before the run
    /// [`LoopRunner::register_hook`](crate::LoopRunner::register_hook) does it at once; this would wait for it.
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

    /// Stops the agent because the whole process is about to be stopped, and returns when that is done.
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

    /// Lets the agent go on after [`LoopHandle::suspend`]. The time in between does not count.
    pub async fn go_on(&self) {
        self.unless_over(self.requests.send(LoopRequest::Continue))
            .await;
    }

    /// Returns what there is to know now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Returns everything that happens from now on. A reader that falls behind is told how much it missed.
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
    over: watch::Sender<bool>,
}

impl Channels {
    /// Begins a run: requests are read for as long as the result lives.
    pub fn begin_run(&self) -> RunGuard {
        self.over.send_replace(false);
        RunGuard(self.over.clone())
    }
}

/// A run under way. Its end is told to whoever waits for an answer, also when its future is dropped.
#[derive(Debug)]
pub(crate) struct RunGuard(watch::Sender<bool>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

pub(crate) fn channel(status: Status, family: Family) -> (LoopHandle, Channels) {
    let (request_in, requests) = mpsc::channel(COMMANDS_MAX);
    let (shutdown_in, shutdowns) = mpsc::channel(SHUTDOWNS_MAX);
    let (notices, _) = broadcast::channel(NOTICES_MAX);
    let (status, status_out) = watch::channel(status);
    let (over, is_over) = watch::channel(false);
    let handle = LoopHandle {
        requests: request_in,
        shutdowns: shutdown_in,
        notices: notices.clone(),
        status: status_out,
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
            over,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Adoption;
    use tachikoma_core::{LoopId, State};

    #[tokio::test]
    async fn the_queue_is_bounded_and_a_caller_beyond_it_waits() {
        assert_eq!(COMMANDS_MAX, 32);
        let state = State::new(LoopId::from_u128(1));
        let (handle, mut channels) =
            channel(Status::of(&state, true), Family::new(Adoption::Marked));
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
            assert_eq!(answer.unwrap(), Err(Gone), "nobody is left waiting");
        }
    }
}
