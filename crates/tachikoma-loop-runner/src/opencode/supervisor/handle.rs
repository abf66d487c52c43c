//! What others can do with a supervisor.

use std::sync::Arc;

use tachikoma_core::supervise::ServerRecord;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::opencode::server_file::ServerFile;
use crate::settings::OpenCodeSettings;

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

    /// Says that no session is busy: a server that has grown too large is replaced now.
    pub fn boundary(&self) {
        // A supervisor that is that far behind is told at the next one.
        let _ = self.commands.try_send(Command::Boundary);
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
