//! What comes back from the desk.

use tachikoma_core::AutocommitResult;

use super::NotBack;
use crate::error::chain;
use crate::git::GitError;

/// What the desk has to say.
#[derive(Debug)]
pub(in crate::runner) enum Told {
    /// There is no repository that can be used: why, in a line that a person should see.
    Closed(String),
    /// Nor can the files be looked at.
    Blind(String),
    /// The opening look is over.
    Opened,
    /// The work tree before an iteration is kept, or not.
    Snapshot {
        iteration: u32,
        taken: Result<Taken, Untaken>,
    },
    /// The work is kept, or not.
    Kept {
        number: u64,
        kept: Result<AutocommitResult, String>,
    },
    /// The work tree is as it was, or not.
    RolledBack {
        iteration: u32,
        result: Result<String, NotBack>,
    },
    /// Something that a person should know.
    Warning(String),
    /// The thread panicked.
    Broken(String),
}

/// The work tree before an iteration.
#[derive(Debug)]
pub(in crate::runner) struct Taken {
    /// None where it was kept before.
    pub commit: Option<String>,
    pub uncommitted: u32,
}

/// Why there is none.
#[derive(Debug)]
pub(in crate::runner) enum Untaken {
    CalledOff,
    Failed(String),
}

impl From<GitError> for Untaken {
    fn from(error: GitError) -> Self {
        match error {
            GitError::CalledOff { .. } => Self::CalledOff,
            GitError::NotStarted { .. }
            | GitError::TimedOut { .. }
            | GitError::Failed { .. }
            | GitError::Odd { .. }
            | GitError::Io { .. } => Self::Failed(chain(&error)),
        }
    }
}
