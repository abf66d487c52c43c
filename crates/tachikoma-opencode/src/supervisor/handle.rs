//! The handle of a running supervisor.

use std::fmt;
use std::sync::Arc;

use tachikoma_core::supervise::ServerRecord;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::server_file::ServerFile;
use tachikoma_config::OpenCodeSettings;
use tachikoma_process::{Family, Sender, signal_name};

/// Maximum number of commands in the queue. The supervisor handles them at once.
pub(super) const COMMANDS_MAX: usize = 16;

/// Maximum number of records that are stored for slow subscribers.
pub(super) const RECORDS_MAX: usize = 256;

/// The result of a command, or why it was refused.
pub(super) type Answer = Result<String, String>;

/// A command to the supervisor.
#[derive(Debug)]
pub(super) enum Command {
    Restart(oneshot::Sender<Answer>),
    Stop(oneshot::Sender<Answer>),
    Reload(Box<OpenCodeSettings>, oneshot::Sender<Answer>),
    /// The loop reports that no session is busy.
    Idle,
    /// A request or a signal was refused. Has its name and the process id of its sender.
    Refused(String, Option<i32>),
}

/// How a supervisor terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server was stopped as requested.
    InOrder,
    /// The supervisor failed and ended the server.
    Failed(String),
}

/// Controls and watches a running supervisor.
#[derive(Clone, Debug)]
pub struct SupervisorHandle {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) published: watch::Receiver<ServerFile>,
    pub(super) records: broadcast::Sender<Arc<ServerRecord>>,
    pub(super) ended: watch::Receiver<Option<Ended>>,
    pub(super) family: Arc<Family>,
    pub(super) reader: Option<SettingsReader>,
}

/// Function that reads the settings of the server again. The caller knows the configuration files and variables.
#[derive(Clone)]
pub struct SettingsReader(Arc<dyn Fn() -> Result<OpenCodeSettings, String> + Send + Sync>);

impl SettingsReader {
    /// Returns a reader that calls `read`.
    pub fn new(
        read: impl Fn() -> Result<OpenCodeSettings, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for SettingsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingsReader")
    }
}

impl SupervisorHandle {
    /// Returns a channel with the state of the server, which is updated at each change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<ServerFile> {
        self.published.clone()
    }

    /// Returns a channel with the records that are written from now on.
    #[must_use]
    pub fn records(&self) -> broadcast::Receiver<Arc<ServerRecord>> {
        self.records.subscribe()
    }

    /// Restarts the server, or starts it if it is down, even if the supervisor gave up. Returns a description of what happens next.
    ///
    /// # Errors
    /// The supervisor refused the command, for the returned reason.
    pub async fn restart(&self) -> Result<String, String> {
        self.command(Command::Restart).await
    }

    /// Stops the server and the supervisor. Returns at once; [`SupervisorHandle::ended`] waits.
    ///
    /// # Errors
    /// The supervisor refused the command, for the returned reason.
    pub async fn stop(&self) -> Result<String, String> {
        self.command(Command::Stop).await
    }

    /// Changes the settings. The command line and the address take effect at the next start of the server.
    ///
    /// # Errors
    /// The new settings are not valid. The earlier ones stay in effect.
    pub async fn reload(&self, settings: OpenCodeSettings) -> Result<String, String> {
        let settings = Box::new(settings);
        self.command(|reply| Command::Reload(settings, reply)).await
    }

    /// Reads the settings again and applies them.
    ///
    /// # Errors
    /// The settings cannot be read or are not valid. The earlier ones stay in effect.
    pub async fn reread(&self) -> Result<String, String> {
        let reader = self.reader.clone();
        let reader = reader.ok_or(
            "this server belongs to a loop, and its settings cannot change while the loop runs",
        )?;
        let read = tokio::task::spawn_blocking(move || (reader.0)()).await;
        let read = read.unwrap_or_else(|_| Err("reading the settings panicked".to_owned()));
        match read {
            Ok(settings) => self.reload(settings).await,
            Err(why) => Err(format!("{why}; the earlier settings stay in effect")),
        }
    }

    /// Reports that no session is busy. The supervisor then restarts a server that uses too much memory.
    pub fn report_idle(&self) {
        // If the queue is full, this report is dropped, and the loop reports again later.
        let _ = self.commands.try_send(Command::Idle);
    }

    /// Records a refused request. It is dropped if the queue is full.
    pub(super) fn refused(&self, what: String, pid: Option<i32>) {
        let _ = self.commands.try_send(Command::Refused(what, pid));
    }

    /// Returns whether the operator sent a signal to this process, and records refused signals. If the sender has exited, returns
    /// `in_doubt`. On Linux, a signal with a sender that could be forged is refused.
    #[must_use]
    pub fn is_operators(&self, signal: i32, sender: Sender, in_doubt: bool) -> bool {
        let judged = self.family.judge(sender, in_doubt);
        if let Err(refused) = judged {
            self.refused(signal_name(signal), refused.pid);
        }
        judged.is_ok()
    }

    /// Waits until the supervisor has ended.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let ended = ended.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|ended| ended.clone());
        ended.unwrap_or_else(|| {
            Ended::Failed("the supervisor panicked: this is a bug in tachikoma".to_owned())
        })
    }

    async fn command(&self, make: impl FnOnce(oneshot::Sender<Answer>) -> Command) -> Answer {
        let (reply, answer) = oneshot::channel();
        let gone = || "the supervisor has ended".to_owned();
        let sent = self.commands.send(make(reply)).await;
        sent.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
