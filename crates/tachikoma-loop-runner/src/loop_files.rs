//! The paths of all loop files in a working directory, for commands that work on stored loops.

use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_core::LoopId;

use crate::cloud::Cloud;
use crate::git::bundle::BundleSource;
use crate::git::worktree_tree::Bounds;
use crate::store::backup::Backups;
use crate::store::encryption::Encryption;
use crate::store::recover::Copies;
use crate::store::snapshot::Packing;
use crate::store::{StoreError, loops};

/// The paths and the encryption of the loops in a working directory.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The working directory.
    pub working_dir: PathBuf,
    /// Path of the snapshot of the current loop.
    pub snapshot: PathBuf,
    /// Whether the snapshot is compressed.
    pub packing: Packing,
    /// Encrypts and decrypts the files of the loops.
    pub encryption: Encryption,
    /// Directory and number of the backups of all loops.
    pub backups: Backups,
    /// The object store for backups; `None` if backups are not uploaded.
    pub cloud: Option<Cloud>,
    /// The rules for files of the work tree that are not backed up.
    pub bounds: Bounds,
    /// The `PATH` variable that is searched for programs; `None` if it is not set.
    pub search_path: Option<OsString>,
    /// Directory with the transcripts of all loops.
    pub state_dir: PathBuf,
    /// Directory of the control sockets.
    pub runtime_dir: PathBuf,
    /// Directory for the files of loops that are not stored (`state.enabled = false`).
    pub temporary_dir: PathBuf,
}

impl StoreConfig {
    /// Returns the other files from which the state of the current loop can be recovered.
    #[must_use]
    pub fn copies(&self) -> Copies {
        Copies {
            snapshot: self.snapshot.clone(),
            backups: self.backups.dir.clone(),
            encryption: self.encryption.clone(),
        }
    }

    /// Returns the current loop; `None` if the working directory has no loop.
    ///
    /// # Errors
    /// The loops cannot be read.
    pub(crate) fn current(&self) -> Result<Option<LoopId>, StoreError> {
        loops::current(&self.working_dir, &self.snapshot, &self.encryption)
    }

    pub(crate) fn work_of(&self, loop_id: LoopId) -> BundleSource {
        BundleSource {
            working_dir: self.working_dir.clone(),
            loop_id,
            search_path: self.search_path.clone(),
            // No variables need to be hidden: a command of the operator has removed the secrets from its environment, or never had them.
            hidden: Vec::new(),
            bounds: self.bounds.clone(),
        }
    }
}
