//! Git commands that lock the user's index.

use std::path::PathBuf;
use std::time::Duration;

use tachikoma_runtime::clock;

use super::path::RepoPath;
use super::program::{Answer, CancelToken, GitError, Order};
use super::work_tracker::WorkTracker;

/// Whoever else works on the index is done in a moment; an editor's plugin looks every few seconds.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How often it is tried meanwhile.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// What git says where there is nothing to commit, by what else there is.
const NOTHING: [&str; 3] = [
    "nothing to commit",
    "nothing added to commit",
    "no changes added to commit",
];

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
    /// Git sees no difference where there was one.
    #[error("git finds nothing to commit; the next commit looks again")]
    Nothing,
    /// Git refused, or one of the user's hooks did.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// Runs what locks the user's index. While another git has it, it is tried again for a while.
pub fn locking(
    tracker: &WorkTracker,
    order: &Order<'_>,
    cancel: &CancelToken,
) -> Result<(), CommitError> {
    let lock = tracker.loop_index.repository.index_lock();
    let deadline = clock::monotonic() + LOCK_WAIT;
    loop {
        let answer = order.run(cancel)?;
        if answer.code == Some(0) {
            return Ok(());
        }
        if is_nothing(&answer) {
            return Err(CommitError::Nothing);
        }
        if !is_locked(&answer) {
            return Err(order.failed(&answer).into());
        }
        if clock::monotonic() >= deadline {
            return Err(CommitError::Locked { lock });
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Names files so that git takes each for itself. Hooks would inherit a variable that does the same.
pub fn specs(files: &[RepoPath]) -> Vec<u8> {
    let mut specs = Vec::new();
    for path in files {
        specs.extend_from_slice(b":(top,literal)");
        specs.extend_from_slice(path.bytes());
        specs.push(0);
    }
    specs
}

/// Whether git found nothing that differs. It says so in its answer; complaints are about other things.
fn is_nothing(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.bytes);
    NOTHING.iter().any(|nothing| text.contains(nothing))
}

/// Whether git failed because another one works on the index.
fn is_locked(answer: &Answer) -> bool {
    answer.words.contains("index.lock")
}
