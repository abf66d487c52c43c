//! Backups: the state of a loop after one record, in one tar file. `docs/backups.md` describes the format.
//!
//! A backup has the snapshot and the open segment of the journal, which is enough to resume the loop. Closed segments are left
//! out, because ten copies of a long history would fill the disk.

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
use super::encryption::Encryption;
use super::journal::JournalPart;
use super::snapshot::{Packing, Snapshot};
use tachikoma_core::error_chain as chain;

pub use choice::{OfLost, ahead_of, best_first, cut_short, of_lost_loop};
pub use container::{Content, manifest_of, read_into, read_through};
pub use files::{
    Listed, by_name, is_name, is_remainder, list, list_names, remove_of, remove_remains,
};

/// Format version of backups that this program writes, and the newest one that it reads.
pub const FORMAT: u32 = 1;

/// Name of the git bundle with the commits and changes of the loop, in the directory of the loop and in a backup.
pub const BUNDLE_NAME: &str = "git-work.bundle";

/// Maximum size of the git bundle in a backup, in bytes.
pub const BUNDLE_BYTES_MAX: u64 = 256 << 20;

/// The manifest: the first entry of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version of the backup.
    pub backup: u32,
    /// Version of the program that wrote the backup.
    pub tachikoma: String,
    /// Id of the loop.
    pub loop_id: LoopId,
    /// Number of the last record in the backup.
    pub seq: Seq,
    /// Epoch of the last record in the backup.
    #[serde(default, skip_serializing_if = "Epoch::is_unknown")]
    #[serde(rename = "life")]
    pub epoch: Epoch,
    /// Whether this is the safety backup that a restore took before it replaced the loop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_restore: bool,
    /// When the backup was taken.
    pub taken_at: Timestamp,
    /// Number of the iteration that was started last.
    pub iteration: u32,
    /// State of the loop as `status` shows it.
    pub status: LoopState,
    /// Number of the journal segment in the backup; `None` if the journal was unusable.
    pub segment: Option<u32>,
    /// The files of the backup except the manifest, in the order in which they are stored.
    pub files: Vec<Entry>,
}

/// A file in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path of the file inside the backup.
    pub name: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// CRC-32C of the file content, in hexadecimal.
    pub crc32c: String,
}

/// Input for a backup: the state of a loop after one record.
#[derive(Debug)]
pub struct Moment {
    /// The snapshot at the last record of the backup.
    pub snapshot: Box<Snapshot>,
    /// Bytes of the snapshot file if an earlier version wrote it and it has to be stored unchanged; otherwise `None`.
    pub original: Option<Vec<u8>>,
    /// The last journal segment, up to the last record of the backup; `None` if the journal is damaged or older than the snapshot.
    pub journal: Option<JournalPart>,
    /// Directory of the loop.
    pub loop_dir: PathBuf,
    /// Path of the git bundle; `None` if the backup is not uploaded.
    pub work: Option<PathBuf>,
    /// Whether this is the safety backup that a restore takes before it replaces the loop.
    pub before_restore: bool,
}

/// Result of taking a backup.
#[derive(Debug)]
pub struct Taken {
    /// Path of the backup.
    pub path: PathBuf,
    /// Whether the backup contains the git bundle.
    pub has_work: bool,
    /// Warnings about the backup, which is valid in spite of them.
    pub troubles: Vec<String>,
}

/// Destination of backups and number of backups to keep.
#[derive(Clone, Debug)]
pub struct Backups {
    /// The directory of the backups.
    pub dir: PathBuf,
    /// Number of backups to keep for each loop; 0 = all.
    pub max: u32,
    /// Compression of the backups.
    pub packing: Packing,
    /// Encryption of the backups.
    pub encryption: Encryption,
}

/// Takes a backup: writes it to a temporary file, reads it back and renames it. Then removes the oldest backups if there are too many.
///
/// # Errors
/// The backup cannot be written or verified, or was canceled. No backup is left, and none was removed. If the journal is damaged,
/// the error names the damage.
pub fn take(
    backups: &Backups,
    moment: &Moment,
    canceled: &AtomicBool,
) -> Result<Taken, StoreError> {
    let begun = tachikoma_runtime::clock::monotonic();
    if let Some(journal) = &moment.journal {
        // The journal is synced first, so that the backup contains only records that are on disk.
        safe_read::open(&journal.path)
            .and_then(|file| file.sync_data())
            .map_err(StoreError::io("sync", &journal.path))?;
    }
    make_dir(&backups.dir)?;
    let epoch = &moment.snapshot.state.epoch;
    let temporary = files::temporary(&backups.dir, epoch);
    let taken = write(&temporary, moment, backups, canceled)
        .and_then(|()| files::place(backups, &temporary, moment));
    let path = taken.map_err(|error| {
        // The backup is incomplete, so its temporary file is removed.
        let _ = std::fs::remove_file(&temporary);
        let journal = moment.journal.as_ref().filter(|_| !error.is_full_disk());
        let damage = journal.and_then(|journal| journal.damage(&backups.encryption));
        damage.unwrap_or(error)
    })?;
    // The backup exists now, so later errors are only warnings.
    let mut troubles = Vec::new();
    if let Err(error) = sync_dir(&backups.dir) {
        let error = chain(&error);
        troubles.push(format!(
            "a power failure may delete the new backup, because its directory could not be synced ({error})"
        ));
    }
    troubles.extend(files::rotate(
        backups,
        moment.snapshot.loop_id,
        epoch,
        &path,
    ));
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
    canceled: &AtomicBool,
) -> Result<(), StoreError> {
    let mut file = private()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(StoreError::io("create", path))?;
    archive::write(&mut file, moment, backups, canceled).map_err(StoreError::io("write", path))?;
    file.sync_all().map_err(StoreError::sync(path))?;
    drop(file);
    let content = read_through(path, &backups.encryption)?;
    if content.manifest.seq != moment.snapshot.seq {
        return Err(container::damaged(
            path,
            "it does not end at the requested record",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
