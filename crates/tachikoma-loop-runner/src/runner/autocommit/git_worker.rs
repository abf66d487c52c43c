//! The git worker: a thread that runs all git operations of the loop, one at a time. The actor sends orders, and gets replies as events.

mod worker;

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tachikoma_core::AutocommitResult;
use tachikoma_core::error_chain as chain;
use tokio::sync::mpsc;

use crate::git::{CancelToken, ChangeOwner, GitError, RuntimeFiles, TrackerOptions};
use crate::task::panicked;
use worker::GitThread;

/// Size of the queue of orders. There is at most one snapshot and one commit at a time, and canceled ones before them.
const ORDERS_MAX: usize = 16;

/// Time that canceled operations have at the end of a run to stop and to create the last references.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// An order for the git worker.
pub(in crate::runner) enum GitOrder {
    /// Take a snapshot of the work tree before an iteration. If the snapshot exists already, only survey the work tree.
    Snapshot {
        iteration: u32,
        only_survey: bool,
        cancel: CancelToken,
    },
    /// Survey the work tree after an iteration, and commit if ordered.
    Commit {
        number: u64,
        commit: Option<Commit>,
        owner: ChangeOwner,
        survey: CancelToken,
        cancel: CancelToken,
    },
    /// Restore the work tree to its state before an iteration.
    RollBack {
        rollback: RollbackOrder,
        cancel: CancelToken,
    },
    /// The loop itself changes the work tree from now on. The next survey attributes these changes to the loop.
    OweSurvey,
    /// Create missing references of snapshots, or remove all references of the loop.
    Settle {
        /// Whether the loop is stored after the run.
        keep: bool,
        cancel: CancelToken,
    },
}

/// A request to roll back the work tree.
#[derive(Clone, Copy, Debug)]
pub(in crate::runner) struct RollbackOrder {
    /// The iteration to undo. The snapshot that was taken before it is restored.
    pub iteration: u32,
    /// Whether an earlier runner died during this rollback and may have completed a part of it.
    pub again: bool,
}

/// The options of the git worker.
#[derive(Debug)]
pub(in crate::runner) struct GitWorkerOptions {
    /// The options of the repository; `None` if the working directory is not in one.
    pub tracker: Option<TrackerOptions>,
    /// The working directory of the loop.
    pub working_dir: PathBuf,
    /// The files that the loop itself writes to the working directory.
    pub runtime_files: RuntimeFiles,
}

/// A commit to make.
#[derive(Debug)]
pub(in crate::runner) struct Commit {
    pub message: String,
    /// Timeout of git; `None` = no timeout.
    pub limit: Option<Duration>,
}

/// A reply of the git worker.
#[derive(Debug)]
pub(in crate::runner) enum GitReply {
    /// The repository cannot be used, with the reason.
    NoRepository(String),
    /// Changes of files cannot be detected without a repository either, with the reason.
    NoChangeDetection(String),
    /// The survey at the start of the run has finished.
    Opened,
    /// The result of the snapshot before an iteration.
    Snapshot {
        iteration: u32,
        result: Result<SnapshotTaken, SnapshotError>,
    },
    /// The result of the survey and the commit after an iteration.
    Committed {
        number: u64,
        result: Result<AutocommitResult, String>,
    },
    /// The result of a rollback.
    RolledBack {
        iteration: u32,
        result: Result<String, RollbackFailure>,
    },
    /// A warning for the user.
    Warning(String),
    /// The thread panicked, with the message of the panic.
    Panicked(String),
}

/// The snapshot of the work tree before an iteration.
#[derive(Debug)]
pub(in crate::runner) struct SnapshotTaken {
    /// The commit that contains the snapshot; `None` if an earlier attempt at the iteration already made it.
    pub commit: Option<String>,
    /// Number of files that differ from the last commit of the branch.
    pub uncommitted: u32,
}

/// Why no snapshot was taken.
#[derive(Debug)]
pub(in crate::runner) enum SnapshotError {
    Canceled,
    Failed(String),
}

impl From<GitError> for SnapshotError {
    fn from(error: GitError) -> Self {
        match error {
            GitError::Canceled { .. } => Self::Canceled,
            error => Self::Failed(chain(&error)),
        }
    }
}

/// Why a rollback did not succeed.
#[derive(Debug)]
pub(in crate::runner) enum RollbackFailure {
    /// The rollback failed and the work tree is unchanged.
    Unchanged(String),
    /// The rollback failed after it had changed some of the files.
    Partial(String),
}

impl From<String> for RollbackFailure {
    fn from(why: String) -> Self {
        Self::Unchanged(why)
    }
}

/// The git worker of one run.
#[derive(Debug)]
pub(in crate::runner) struct GitWorker {
    orders: Option<SyncSender<GitOrder>>,
    replies: mpsc::UnboundedReceiver<GitReply>,
    thread: Option<JoinHandle<()>>,
    /// Cancels the survey at the start of the run, and snapshots and commits that wait for it.
    pub opening: CancelToken,
    /// Cancels the snapshot before an iteration.
    pub snapshot: CancelToken,
    /// Cancels the survey after an iteration.
    pub survey: CancelToken,
    /// Cancels the commit. The survey before it continues, because it separates the changes of the loop from those of others.
    pub commit: CancelToken,
    /// Cancels a rollback. The worker undoes the changes that the rollback has made so far.
    pub rollback: CancelToken,
}

impl GitWorker {
    /// Starts the worker thread. It first surveys all changes since the last survey and attributes them to `owner`.
    pub fn start(options: GitWorkerOptions, owner: ChangeOwner) -> std::io::Result<Self> {
        let (orders, waiting) = sync_channel(ORDERS_MAX);
        let (sender, replies) = mpsc::unbounded_channel();
        let opening = CancelToken::new();
        let cancel = opening.clone();
        let thread = std::thread::Builder::new()
            .name("git".to_owned())
            .spawn(move || GitThread::new(sender).serve(options, owner, &cancel, &waiting))?;
        Ok(Self {
            orders: Some(orders),
            replies,
            thread: Some(thread),
            opening,
            snapshot: CancelToken::new(),
            survey: CancelToken::new(),
            commit: CancelToken::new(),
            rollback: CancelToken::new(),
        })
    }

    /// Sends an order to the thread. Returns false if the queue is full or the thread has ended: then no reply comes.
    pub fn order(&self, order: GitOrder) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// Waits for the next reply. Cancel-safe.
    pub async fn next_event(&mut self) -> GitReply {
        if let Some(reply) = self.replies.recv().await {
            return reply;
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(payload)) => GitReply::Panicked(panicked("git worker", payload.as_ref())),
            Some(Ok(())) | None => std::future::pending().await,
        }
    }

    fn cancel_all(&self) {
        for cancel in [
            &self.opening,
            &self.snapshot,
            &self.survey,
            &self.commit,
            &self.rollback,
        ] {
            cancel.cancel();
        }
    }

    /// Stops the thread. An operation that does not stop in time is abandoned.
    pub async fn shutdown(mut self, keep: bool) {
        self.cancel_all();
        let cancel = CancelToken::new();
        self.order(GitOrder::Settle {
            keep,
            cancel: cancel.clone(),
        });
        self.orders = None;
        let replies = &mut self.replies;
        let over = async { while replies.recv().await.is_some() {} };
        tokio::pin!(over);
        let mut ended = tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut over).await;
        if ended.is_err() {
            cancel.cancel();
            ended = tokio::time::timeout(CANCEL_TIMEOUT, over).await;
        }
        if let (Ok(()), Some(thread)) = (ended, self.thread.take()) {
            // A panic of the thread has no effect, because the run is over.
            let _ = thread.join();
        }
    }
}

/// Cancels all git operations, so that dropping the runner during a run leaves no git process running.
impl Drop for GitWorker {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

#[cfg(test)]
mod tests;
