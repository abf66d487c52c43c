//! The store of a loop that is not kept (`state.enabled = false`): laid out as in a working directory, in a temporary
//! place, and gone with its last user.

use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_fs::{make_dir, owner};

use super::StoreError;

/// A temporary store. Dropping it removes everything in it.
#[derive(Debug)]
pub struct TemporaryStore {
    root: PathBuf,
}

impl TemporaryStore {
    /// Makes the store of a new loop.
    pub fn create(temporary_dir: &Path, loop_id: LoopId) -> Result<Self, StoreError> {
        owner::make_private_dir(temporary_dir)?;
        let root = root(temporary_dir, loop_id);
        make_dir(&root)?;
        Ok(Self { root })
    }

    /// Returns what stands for the working directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for TemporaryStore {
    fn drop(&mut self) {
        remove(&self.root);
    }
}

/// Returns what stands for the working directory of a loop that is not kept.
#[must_use]
pub fn root(temporary_dir: &Path, loop_id: LoopId) -> PathBuf {
    temporary_dir.join(loop_id.to_string())
}

/// Removes what the runner of a loop left that was killed, if its loop was not to be kept. The lock of the loop's working
/// directory must be held. Only a name is taken from the lock file, which others can write, and no path.
pub fn clear(temporary_dir: &Path, loop_id: LoopId) {
    remove(&root(temporary_dir, loop_id));
}

/// Symbolic links are removed, not followed. What cannot be removed is left to whoever empties temporary directories.
fn remove(root: &Path) {
    let _ = std::fs::remove_dir_all(root);
}
