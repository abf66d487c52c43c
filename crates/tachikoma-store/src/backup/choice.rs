//! Chooses the backup for a restore, and finds backups of records that a loop has lost.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopId, Seq};
use tachikoma_fs::RALPH_DIR;

use super::{Listed, Manifest, container, list};
use crate::encryption::Encryption;
use crate::epochs::Epochs;
use crate::{StoreError, layout};

/// Lists the backups of the loop in `loop_dir`, or all backups if there is no loop. The best is first: backups of the current
/// epoch, then of earlier epochs, by record number, then all others by time. Backups that a restore made are listed separately, so
/// that a second restore does not undo the first.
///
/// # Errors
/// The directory cannot be read.
pub fn best_first(
    dir: &Path,
    current: Option<(LoopId, &Path)>,
    encryption: &Encryption,
) -> Result<(Vec<Listed>, Vec<Listed>), StoreError> {
    let listed = list(dir, current.map(|(loop_id, _)| loop_id))?;
    let epochs = current.map(|(_, dir)| Epochs::of(dir, encryption));
    let ranked = listed.into_iter().map(|listed| {
        let manifest = container::manifest_of(&listed.path, encryption).ok();
        let rank = match (&manifest, &epochs) {
            (Some(manifest), Some(epochs)) => epochs.rank(&manifest.epoch),
            // The epoch of an unreadable backup is unknown, so it is listed like one of the current epoch. Reading it later
            // reports the error.
            (None, Some(epochs)) => epochs.current_rank(),
            (_, None) => None,
        };
        // Within an epoch, backups are ordered by record number, because the clock may have been changed.
        let place = rank.map(|rank| (rank, listed.seq));
        let is_safety_backup = manifest.is_some_and(|manifest| manifest.before_restore);
        (is_safety_backup, place, listed)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(_, place, listed)| Reverse((*place, listed.clone())));
    let (mut others, mut safety_backups) = (Vec::new(), Vec::new());
    for (is_safety_backup, _, listed) in ranked {
        match is_safety_backup {
            true => safety_backups.push(listed),
            false => others.push(listed),
        }
    }
    Ok((others, safety_backups))
}

/// Finds the valid backup that is furthest ahead of a record. Its later records existed once and are lost. Only files with newer
/// record numbers in their names are read.
pub fn ahead_of(
    seq: Seq,
    mut listed: Vec<Listed>,
    loop_dir: &Path,
    encryption: &Encryption,
) -> Option<Listed> {
    listed.retain(|listed| listed.seq > seq);
    listed.sort_by_key(|listed| Reverse(listed.seq));
    let epochs = Epochs::of(loop_dir, encryption);
    listed.into_iter().find(|listed| {
        // A backup that cannot be decrypted proves nothing.
        let manifest = container::manifest_of(&listed.path, encryption);
        manifest.is_ok_and(|found| {
            found.seq > seq && epochs.has(&found.epoch, found.seq, found.segment)
        }) && container::read_through(&listed.path, encryption).is_ok()
    })
}

/// Describes a journal that ends before the last record of a backup.
pub fn cut_short(ends: Seq, ahead: &Listed) -> String {
    format!(
        "it ends with record {ends}, and backup {} has records up to {}",
        ahead.path.display(),
        ahead.seq
    )
}

/// A valid backup of a loop that has no other files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfLost {
    /// Path of the backup.
    pub path: PathBuf,
    /// Manifest of the backup.
    pub manifest: Manifest,
}

impl OfLost {
    /// Returns a message about the backup and the command that restores it.
    #[must_use]
    pub fn message(&self, working_dir: &Path) -> String {
        let Self { path, manifest } = self;
        format!(
            "a backup has {} up to iteration {}: `tachikoma state restore {}` restores it",
            manifest.loop_id,
            manifest.iteration,
            path.strip_prefix(working_dir).unwrap_or(path).display()
        )
    }
}

/// Finds the newest valid backup of a loop that has no files in the working directory. Backup directories outside of `.ralph/` may
/// be shared, so backups of loops of other directories are ignored.
#[must_use]
pub fn of_lost_loop(dir: &Path, working_dir: &Path, encryption: &Encryption) -> Option<OfLost> {
    let is_ours = dir.starts_with(working_dir.join(RALPH_DIR));
    let listed = list(dir, None).ok()?.into_iter();
    let mut lost = listed.filter(|listed| {
        std::fs::symlink_metadata(layout::loop_dir(working_dir, listed.loop_id)).is_err()
    });
    lost.find_map(|listed| {
        let content = container::read_through(&listed.path, encryption).ok()?;
        (is_ours || content.working_dir == working_dir).then_some(OfLost {
            path: listed.path,
            manifest: content.manifest,
        })
    })
}
