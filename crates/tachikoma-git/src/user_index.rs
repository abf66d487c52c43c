//! Git commands that lock the user's index.

use std::path::PathBuf;
use std::time::Duration;

use tachikoma_runtime::clock;

use super::path::RepoPath;
use super::program::{CancelToken, GitCommand, GitError, Output};
use super::work_tracker::WorkTracker;

/// How long to wait for the index lock. Other git processes hold it only for a moment, and editors run git every few seconds.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Pause between two attempts to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Git's messages if there is nothing to commit.
const NOTHING: [&str; 3] = [
    "nothing to commit",
    "nothing added to commit",
    "no changes added to commit",
];

/// Why nothing was committed. The changes stay in the work tree, and the next commit includes them.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A merge, rebase or similar operation of the user is in progress.
    #[error(
        "{what} is in progress in the repository; finish or abort it, and the next commit includes the changes"
    )]
    InProgress {
        /// The operation, such as a merge.
        what: &'static str,
    },
    /// Another git process holds the lock on the index.
    #[error(
        "another git process has locked the index; if no git process is running, remove {}",
        lock.display()
    )]
    Locked {
        /// Path of the lock file.
        lock: PathBuf,
    },
    /// Git finds no difference although the survey did.
    #[error("git finds nothing to commit; the next commit tries again")]
    Nothing,
    /// Git or a hook failed.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// Runs a command that locks the user's index. If the index is locked, tries again for two seconds.
pub fn run_with_index_lock(
    tracker: &WorkTracker,
    command: &GitCommand<'_>,
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let lock = tracker.loop_index.repository.index_lock();
    let deadline = clock::monotonic() + LOCK_WAIT;
    loop {
        let output = command.run(cancel)?;
        if output.code == Some(0) {
            return Ok(());
        }
        if is_nothing(&output) {
            return Err(CommitError::Nothing);
        }
        if !is_locked(&output) {
            return Err(command.failure(&output).into());
        }
        if clock::monotonic() >= deadline {
            return Err(CommitError::Locked { lock });
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Returns literal pathspecs. The environment variable for literal pathspecs would affect hooks, too.
pub fn pathspecs(files: &[RepoPath]) -> Vec<u8> {
    let mut pathspecs = Vec::new();
    for path in files {
        pathspecs.extend_from_slice(b":(top,literal)");
        pathspecs.extend_from_slice(path.bytes());
        pathspecs.push(0);
    }
    pathspecs
}

/// Returns whether git found nothing to commit. It reports that on stdout.
fn is_nothing(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stdout);
    NOTHING.iter().any(|nothing| text.contains(nothing))
}

/// Returns whether git failed because the index is locked.
fn is_locked(output: &Output) -> bool {
    output.stderr.contains("index.lock")
}
