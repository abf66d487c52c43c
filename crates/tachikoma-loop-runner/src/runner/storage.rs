//! The journal and the lock of the working directory.

use super::error::RunError;
use crate::store::journal::Journal;
use crate::store::lock::WorkLock;

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
}
