//! Where the files of the loops in a working directory are, for commands that work on stored loops.

use std::ffi::OsString;
use std::path::PathBuf;

use tachikoma_core::LoopId;

use crate::cloud::Cloud;
use crate::git::bundle::Work;
use crate::git::present::Bounds;
use crate::store::backup::Backups;
use crate::store::recover::Copies;
use crate::store::snapshot::Packing;
use crate::store::vault::Vault;

/// Paths and keys of the loops in a working directory.
#[derive(Clone, Debug)]
pub struct Premises {
    /// The working directory.
    pub working_dir: PathBuf,
    /// The snapshot of the current loop.
    pub snapshot: PathBuf,
    /// How that is written.
    pub packing: Packing,
    /// What opens all of it, and seals what is written.
    pub vault: Vault,
    /// The backups of all loops.
    pub backups: Backups,
    /// Where copies of them go, if they go anywhere.
    pub cloud: Option<Cloud>,
    /// What of the work tree is left alone.
    pub bounds: Bounds,
    /// Where programs are looked for.
    pub search_path: Option<OsString>,
    /// The transcripts of all loops.
    pub state_dir: PathBuf,
    /// The control sockets.
    pub runtime_dir: PathBuf,
    /// The stores of loops that are not kept.
    pub temporary_dir: PathBuf,
}

impl Premises {
    /// Returns where the state of the current loop is kept besides its journal.
    #[must_use]
    pub fn copies(&self) -> Copies {
        Copies {
            snapshot: self.snapshot.clone(),
            backups: self.backups.dir.clone(),
            vault: self.vault.clone(),
        }
    }

    pub(crate) fn work_of(&self, loop_id: LoopId) -> Work {
        Work {
            working_dir: self.working_dir.clone(),
            loop_id,
            search_path: self.search_path.clone(),
            // A command of the operator's has them out of its environment, or never had them there.
            hidden: Vec::new(),
            bounds: self.bounds.clone(),
        }
    }
}
