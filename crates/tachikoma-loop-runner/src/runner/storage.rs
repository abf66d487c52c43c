//! The journal and the lock of the working directory, and the repair of the lock.

use super::error::{Abort, RunError};
use super::session::Session;
use crate::config::LoopConfig;
use crate::store::journal::Journal;
use crate::store::lock::{LockError, WorkLock};

/// The journal and the lock of a loop.
#[derive(Debug)]
pub(super) struct Storage {
    pub journal: Journal,
    pub lock: WorkLock,
    /// Whether a write to the journal failed. The state is then newer than the journal, and nothing may be written from the state.
    pub failed: bool,
}

impl Storage {
    /// Syncs the journal.
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub fn sync(&mut self) -> Result<(), RunError> {
        self.journal.sync().map_err(|error| {
            self.failed = true;
            RunError::Journal(error)
        })
    }

    /// Takes the lock again if its file was deleted. Returns a description of the repair; `None` if none was needed.
    ///
    /// # Errors
    /// Another runner has the lock, or the lock file cannot be used.
    pub async fn repair_lock(
        &mut self,
        config: &LoopConfig,
        session: &mut Session,
    ) -> Result<Option<String>, Abort> {
        // If the working directory is missing, there is nothing to lock. The next launch fails with that reason.
        if !config.working_dir.is_dir() {
            return Ok(None);
        }
        let how = match self.lock.keep(&config.working_dir).await {
            Ok(how) => how,
            // The lock is held even though its file has no content. The next repair writes the content.
            Err(LockError::Store(error)) if error.is_full_disk() => None,
            Err(LockError::Store(error)) => return Err(RunError::Journal(error).into()),
            Err(held @ LockError::Held { .. }) => return Err(RunError::Lock(held).into()),
        };
        if how.is_some()
            && let Some(guard) = session.guard()
            && let Ok(lock) = self.lock.share()
        {
            // Errors are ignored: if the guard has ended, it is reported as a separate event.
            let _ = guard.hold(lock);
        }
        Ok(how)
    }
}
