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

/// Orders that may wait: one snapshot and one commit at a time, and canceled ones before them.
const ORDERS_MAX: usize = 16;

/// Time at the end of a run for canceled operations to end and for the last references to be made.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// An order for the git worker.
enum GitOrder {
    /// Take a snapshot of the work tree before an iteration; only survey it if the snapshot exists.
    Snapshot {
        iteration: u32,
        only_survey: bool,
        cancel: CancelToken,
    },
    /// Survey the work tree after an iteration, and commit.
    Commit {
        number: u64,
        commit: Option<Commit>,
        owner: ChangeOwner,
        survey: CancelToken,
        cancel: CancelToken,
    },
    /// Restore the work tree of before an iteration.
    RollBack {
        rollback: RollbackOrder,
        cancel: CancelToken,
    },
    /// The loop changes the work tree from here on. The next survey attributes those changes to the loop.
    OweSurvey,
    /// Make the references that are still missing, or remove all references of the loop.
    Settle {
        /// Whether the loop is kept after the run.
        keep: bool,
        cancel: CancelToken,
    },
}

/// An order to restore the work tree.
#[derive(Clone, Copy, Debug)]
pub(in crate::runner) struct RollbackOrder {
    /// The iteration. The snapshot that was taken before it is restored.
    pub iteration: u32,
    /// Whether an earlier runner died during this rollback, and may have done all or a part of it.
    pub again: bool,
}

/// The options of the git worker.
#[derive(Debug)]
pub(in crate::runner) struct GitWorkerOptions {
    /// The options of the repository; `None` if the working directory is not in one.
    pub tracker: Option<TrackerOptions>,
    /// The working directory of the loop.
    pub working_dir: PathBuf,
    /// The files that the loop itself writes there.
    pub runtime_files: RuntimeFiles,
}

/// A commit to make.
#[derive(Debug)]
pub(in crate::runner) struct Commit {
    pub message: String,
    /// How long git may take; `None` = without limit.
    pub limit: Option<Duration>,
}

/// An answer of the git worker.
#[derive(Debug)]
pub(in crate::runner) enum GitReply {
    /// The repository cannot be used, with the reason.
    NoRepository(String),
    /// Changes of files cannot be detected either.
    NoChangeDetection(String),
    /// The survey of the work tree at the start of the run is done.
    Opened,
    /// The snapshot before an iteration.
    Snapshot {
        iteration: u32,
        result: Result<SnapshotTaken, SnapshotError>,
    },
    /// The survey and the commit after an iteration.
    Committed {
        number: u64,
        result: Result<AutocommitResult, String>,
    },
    /// A rollback.
    RolledBack {
        iteration: u32,
        result: Result<String, RollbackFailure>,
    },
    /// A warning for the user.
    Warning(String),
    /// The thread panicked.
    Panicked(String),
}

/// The snapshot of the work tree before an iteration.
#[derive(Debug)]
pub(in crate::runner) struct SnapshotTaken {
    /// The commit that holds it; `None` if an earlier attempt at the iteration has made one.
    pub commit: Option<String>,
    /// How many files differ from the last commit of the branch.
    pub uncommitted: u32,
}

/// Why there is no snapshot.
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
    /// The work tree is unchanged.
    Unchanged(String),
    /// Some files are rolled back and others are not.
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
    /// Cancels the survey at the start, and with it snapshots and commits.
    pub opening: CancelToken,
    /// Cancels the snapshot before an iteration.
    pub snapshot: CancelToken,
    survey: CancelToken,
    /// Cancels the commit. The survey before it continues, because it tells the changes of the loop from those of others.
    pub commit: CancelToken,
    /// Cancels a rollback. The worker undoes the changes that the rollback has made so far.
    pub rollback: CancelToken,
}

impl GitWorker {
    /// Starts the thread. It begins with a survey of all changes since the last one, which belong to `owner`.
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

    /// Returns whether the order was taken.
    fn order(&self, order: GitOrder) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// Orders the snapshot before an iteration. Returns whether a reply will come.
    pub fn take_snapshot(&mut self, iteration: u32, only_survey: bool) -> bool {
        self.snapshot = CancelToken::new();
        self.order(GitOrder::Snapshot {
            iteration,
            only_survey,
            cancel: self.snapshot.clone(),
        })
    }

    /// The loop itself is about to change the work tree outside of an iteration. A full queue contains a survey already.
    pub fn owe_survey(&self) {
        self.order(GitOrder::OweSurvey);
    }

    /// Orders a survey and, if `commit` is given, a commit. Returns whether a reply will come.
    pub fn commit(&mut self, number: u64, commit: Option<Commit>, owner: ChangeOwner) -> bool {
        self.survey = CancelToken::new();
        self.commit = CancelToken::new();
        self.order(GitOrder::Commit {
            number,
            commit,
            owner,
            survey: self.survey.clone(),
            cancel: self.commit.clone(),
        })
    }

    /// Orders a rollback. Returns whether a reply will come.
    pub fn roll_back(&mut self, rollback: RollbackOrder) -> bool {
        self.rollback = CancelToken::new();
        self.order(GitOrder::RollBack {
            rollback,
            cancel: self.rollback.clone(),
        })
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

    /// Ends the thread. An operation that does not end in time is abandoned.
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
            // The run is over, so that a panic of the thread changes nothing.
            let _ = thread.join();
        }
    }
}

/// Dropping the runner during a run leaves no git process running.
impl Drop for GitWorker {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

#[cfg(test)]
mod tests;
