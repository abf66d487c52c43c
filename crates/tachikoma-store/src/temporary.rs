//! The temporary store of a loop with `state.enabled = false`. It has the layout of a working directory and is removed with the
//! last handle.

use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_fs::{make_dir, owner};

use super::StoreError;

/// A temporary store. Dropping the value removes all its files.
#[derive(Debug)]
pub struct TemporaryStore {
    root: PathBuf,
}

impl TemporaryStore {
    /// Creates the store of a new loop.
    pub fn create(temporary_dir: &Path, loop_id: LoopId) -> Result<Self, StoreError> {
        owner::make_private_dir(temporary_dir)?;
        let root = root(temporary_dir, loop_id);
        make_dir(&root)?;
        Ok(Self { root })
    }

    /// Returns the path that the loop uses as its working directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for TemporaryStore {
    fn drop(&mut self) {
        // Symbolic links are removed, not followed. Files that cannot be removed are left to the system's cleanup of temporary
        // directories.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Returns the directory of a loop's temporary store.
#[must_use]
pub fn root(temporary_dir: &Path, loop_id: LoopId) -> PathBuf {
    temporary_dir.join(loop_id.to_string())
}

/// Removes the temporary store of a killed runner. The caller must hold the lock of the working directory. The path is built from
/// the loop id in the lock file, because other programs can write that file.
pub fn clear(temporary_dir: &Path, loop_id: LoopId) {
    let _ = std::fs::remove_dir_all(root(temporary_dir, loop_id));
}
