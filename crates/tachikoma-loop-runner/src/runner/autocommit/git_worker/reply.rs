//! What the git worker answers.

use tachikoma_core::AutocommitResult;

use crate::git::GitError;
use tachikoma_core::error_chain as chain;

/// An answer of the git worker.
#[derive(Debug)]
pub(in crate::runner) enum GitReply {
    /// The repository cannot be used. The text says why, for a person.
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
    /// Something that a person should know.
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
