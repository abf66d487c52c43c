//! What others can do with a supervisor.

use std::fmt;
use std::sync::Arc;

use tachikoma_core::supervise::ServerRecord;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::server_file::ServerFile;
use tachikoma_config::OpenCodeSettings;
use tachikoma_process::{Family, Sender, signal_name};

/// Commands that may wait; a supervisor takes them at once.
pub(super) const COMMANDS_MAX: usize = 16;

/// Records that a slow reader may be behind.
pub(super) const RECORDS_MAX: usize = 256;

/// What becomes of a command, or why nothing does.
pub(super) type Answer = Result<String, String>;

/// What can be commanded.
#[derive(Debug)]
pub(super) enum Command {
    Restart(oneshot::Sender<Answer>),
    Stop(oneshot::Sender<Answer>),
    Reload(Box<OpenCodeSettings>, oneshot::Sender<Answer>),
    Boundary,
    /// Somebody asked who may not.
    Refused(String, Option<i32>),
}

/// How a supervisor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// In order: its server is stopped.
    InOrder,
    /// With an error, and its server with it.
    Failed(String),
}

/// A way to a supervisor that runs.
#[derive(Clone, Debug)]
pub struct SupervisorHandle {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) published: watch::Receiver<ServerFile>,
    pub(super) records: broadcast::Sender<Arc<ServerRecord>>,
    pub(super) ended: watch::Receiver<Option<Ended>>,
    pub(super) family: Arc<Family>,
    pub(super) reader: Option<SettingsReader>,
}

/// Reads the settings of the server again. The library knows neither files nor variables.
#[derive(Clone)]
pub struct SettingsReader(Arc<dyn Fn() -> Result<OpenCodeSettings, String> + Send + Sync>);

impl SettingsReader {
    /// Makes one.
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
    /// Returns how the server is, now and whenever that changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<ServerFile> {
        self.published.clone()
    }

    /// Returns what happens from here on, as it is recorded.
    #[must_use]
    pub fn records(&self) -> broadcast::Receiver<Arc<ServerRecord>> {
        self.records.subscribe()
    }

    /// Has the server replaced, or started where it is down. Clears a give-up. Returns what becomes of it.
    ///
    /// # Errors
    /// Why nothing does.
    pub async fn restart(&self) -> Result<String, String> {
        self.command(Command::Restart).await
    }

    /// Has the server stopped, and the supervisor too. Returns at once; [`SupervisorHandle::ended`] waits.
    ///
    /// # Errors
    /// Why nothing becomes of it.
    pub async fn stop(&self) -> Result<String, String> {
        self.command(Command::Stop).await
    }

    /// Gives it other settings: rules hold at once, the command line and the address from the next start on.
    ///
    /// # Errors
    /// They cannot be used, and the old ones hold.
    pub async fn reload(&self, settings: OpenCodeSettings) -> Result<String, String> {
        let settings = Box::new(settings);
        self.command(|reply| Command::Reload(settings, reply)).await
    }

    /// Has its settings read again, by whoever knows where they are, and holds to them.
    ///
    /// # Errors
    /// They cannot be read or used, and the old ones hold.
    pub async fn reread(&self) -> Result<String, String> {
        let reader = self.reader.clone();
        let reader =
            reader.ok_or("it is the server of a loop, whose settings hold for all of its run")?;
        let read = tokio::task::spawn_blocking(move || (reader.0)()).await;
        let read = read.unwrap_or_else(|_| Err("reading them panicked".to_owned()));
        match read {
            Ok(settings) => self.reload(settings).await,
            Err(why) => Err(format!("{why}; the settings before hold")),
        }
    }

    /// Says that no session is busy: a server that has grown too large is replaced now.
    pub fn boundary(&self) {
        // A supervisor that is that far behind is told at the next one.
        let _ = self.commands.try_send(Command::Boundary);
    }

    /// Has a refusal recorded. Never waits: when the queue is full it is left out.
    pub(super) fn refused(&self, what: String, pid: Option<i32>) {
        let _ = self.commands.try_send(Command::Refused(what, pid));
    }

    /// Returns whether a signal to this process is the operator's, and has it recorded if it is not. If its sender is
    /// gone, it is if `in_doubt`. A signal with a sender that can be forged is refused on Linux.
    #[must_use]
    pub fn is_operators(&self, signal: i32, sender: Sender, in_doubt: bool) -> bool {
        let judged = self.family.judge(sender, in_doubt);
        if let Err(refused) = judged {
            self.refused(signal_name(signal), refused.pid);
        }
        judged.is_ok()
    }

    /// Waits for the end of the supervisor.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let told = ended.wait_for(Option::is_some).await;
        let told = told.ok().and_then(|told| told.clone());
        told.unwrap_or_else(|| {
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
