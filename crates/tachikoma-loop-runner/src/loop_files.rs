//! Where the files of the loops in a working directory are, for commands that work on stored loops.

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

/// The paths of a working directory's loops.
#[derive(Clone, Debug)]
pub struct Premises {
    /// The working directory.
    pub working_dir: PathBuf,
    /// The snapshot of the current loop.
    pub snapshot: PathBuf,
    /// The format of the snapshot.
    pub packing: Packing,
    /// Encrypts and decrypts the files.
    pub encryption: Encryption,
    /// The backups of all loops.
    pub backups: Backups,
    /// The object store to which they are uploaded; `None` if they are not.
    pub cloud: Option<Cloud>,
    /// The rules for files of the work tree that are not backed up.
    pub bounds: Bounds,
    /// The `PATH` in which programs are searched.
    pub search_path: Option<OsString>,
    /// The transcripts of all loops.
    pub state_dir: PathBuf,
    /// The control sockets.
    pub runtime_dir: PathBuf,
    /// The stores of loops that are not kept.
    pub temporary_dir: PathBuf,
}

impl Premises {
    /// Returns the other places from which the state of the current loop can be recovered.
    #[must_use]
    pub fn copies(&self) -> Copies {
        Copies {
            snapshot: self.snapshot.clone(),
            backups: self.backups.dir.clone(),
            encryption: self.encryption.clone(),
        }
    }

    /// Returns the current loop; `None` if there is none.
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
            // A command of the operator has removed the secrets from its environment, or never had them.
            hidden: Vec::new(),
            bounds: self.bounds.clone(),
        }
    }
}
