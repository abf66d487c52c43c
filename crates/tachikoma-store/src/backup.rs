//! Backups: a loop as it stood at one record, in one file that a person can open. `docs/backups.md` describes them.
//!
//! A backup has the snapshot and the segment of the journal that was written at that moment: enough to go on from. The
//! segments before it are not in it, since they are closed and only history; ten copies of a long history would be what
//! fills the disk.

mod archive;
mod choice;
mod container;
mod files;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use tachikoma_core::{Epoch, LoopId, LoopState, Seq, Timestamp};
use tachikoma_fs::{make_dir, private, safe_read, sync_dir};

use super::StoreError;
use super::journal::JournalPart;
use super::snapshot::{Packing, Snapshot};
use super::vault::Vault;
use tachikoma_core::error_chain as chain;

pub use choice::{OfLost, best_first, of_lost_loop};
pub use choice::{ahead_of, cut_short};
pub use container::{Content, read_through};
pub use container::{manifest_of, read_into};
pub use files::is_name;
pub use files::remove_remains;
pub use files::{Listed, by_name, list};
pub use files::{is_remainder, list_names, remove_of};

/// The format that this version writes, and the newest it reads.
pub const FORMAT: u32 = 1;

/// The git bundle with the loop's work, in the directory of the loop and in a backup.
pub const BUNDLE_NAME: &str = "git-work.bundle";

/// The largest bundle that goes into a backup: each backup that is kept has one.
pub const BUNDLE_BYTES_MAX: u64 = 256 << 20;

/// What a backup says of itself, first of all that is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of the backup.
    pub backup: u32,
    /// The version that wrote it.
    pub tachikoma: String,
    /// The loop.
    pub loop_id: LoopId,
    /// The last record that is part of it.
    pub seq: Seq,
    /// The life of the loop in which that record is.
    #[serde(default, skip_serializing_if = "Epoch::is_unknown")]
    pub life: Epoch,
    /// Whether it is what a restoration has replaced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_restore: bool,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// The iteration last started.
    pub iteration: u32,
    /// The public state of the loop.
    pub status: LoopState,
    /// The number of the journal's segment in it; none where there was no journal to be had.
    pub segment: Option<u32>,
    /// What else is in it, in this order.
    pub files: Vec<Entry>,
}

/// A file in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// CRC-32C of its content, in hexadecimal.
    pub crc32c: String,
}

/// A loop as it stands at one record: what a backup is made from.
#[derive(Debug)]
pub struct Moment {
    /// What it stands at.
    pub snapshot: Box<Snapshot>,
    /// The snapshot's file as an earlier version wrote it, where it is to be kept like that.
    pub original: Option<Vec<u8>>,
    /// The segment that is written, up to that record.
    pub journal: Option<JournalPart>,
    /// The directory of the loop.
    pub loop_dir: PathBuf,
    /// A bundle of the repository, where the backup is to go elsewhere.
    pub work: Option<PathBuf>,
    /// Whether it is kept because a restoration replaces it.
    pub before_restore: bool,
}

/// A backup that was taken.
#[derive(Debug)]
pub struct Taken {
    /// The file.
    pub path: PathBuf,
    /// Whether it has the work in it.
    pub has_work: bool,
    /// What went wrong besides: it is good all the same.
    pub troubles: Vec<String>,
}

/// Where backups go, and how many stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backups {
    /// The directory.
    pub dir: PathBuf,
    /// How many of a loop are kept; 0 keeps all.
    pub max: u32,
    /// How they are written.
    pub packing: Packing,
    /// What seals them.
    pub vault: Vault,
}

/// Takes a backup: written under another name, read back, and only then given its own. Older ones beyond the number that
/// is kept go afterwards.
///
/// # Errors
/// It cannot be written, or is not what was written, or was called off: then there is none, and nothing was removed. Where the
/// journal is damaged, the error is that.
pub fn take(
    backups: &Backups,
    moment: &Moment,
    called_off: &AtomicBool,
) -> Result<Taken, StoreError> {
    let begun = tachikoma_runtime::clock::monotonic();
    if let Some(journal) = &moment.journal {
        // It must not have what the journal may lose.
        safe_read::open(&journal.path)
            .and_then(|file| file.sync_data())
            .map_err(StoreError::io("sync", &journal.path))?;
    }
    make_dir(&backups.dir)?;
    let life = &moment.snapshot.state.life;
    let temporary = files::temporary(&backups.dir, life);
    let taken = write(&temporary, moment, backups, called_off)
        .and_then(|()| files::place(backups, &temporary, moment));
    let path = taken.map_err(|error| {
        // Half a backup is no use to anyone.
        let _ = std::fs::remove_file(&temporary);
        let journal = moment.journal.as_ref().filter(|_| !error.is_full_disk());
        let damage = journal.and_then(|journal| journal.damage(&backups.vault));
        damage.unwrap_or(error)
    })?;
    // From here on it is there, and what goes wrong is told.
    let mut troubles = Vec::new();
    if let Err(error) = sync_dir(&backups.dir) {
        troubles.push(chain(&error));
    }
    troubles.extend(files::rotate(backups, moment.snapshot.loop_id, life, &path));
    tracing::info!(?path, elapsed = ?begun.elapsed(), "backup written");
    Ok(Taken {
        path,
        has_work: moment.work.is_some(),
        troubles,
    })
}

fn write(
    path: &Path,
    moment: &Moment,
    backups: &Backups,
    called_off: &AtomicBool,
) -> Result<(), StoreError> {
    let mut file = private()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(StoreError::io("create", path))?;
    archive::write(&mut file, moment, backups, called_off)
        .map_err(StoreError::io("write", path))?;
    file.sync_all().map_err(StoreError::sync(path))?;
    drop(file);
    let content = read_through(path, &backups.vault)?;
    if content.manifest.seq != moment.snapshot.seq {
        return Err(container::damaged(path, "it stands at another record"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
