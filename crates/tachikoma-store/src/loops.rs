//! Finds the loops of a working directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopId, Timestamp};
use tachikoma_fs::{RALPH_DIR, atomic_file};

use super::encryption::Encryption;
use super::journal::segment;
use super::layout::{self, ARCHIVED, is_archived, moved_away};
use super::{StoreError, journal, lock, snapshot, test_history};

/// Returns whether a file name in the directory of a loop belongs to this program.
pub fn is_ours_in_loop(name: &str) -> bool {
    segment::is_ours(name)
        || name == ARCHIVED
        || atomic_file::is_temporary(name)
        || test_history::is_ours(name)
}

/// Returns the error for a loop that an interrupted restore moved away and did not replace.
fn interrupted(path: &Path) -> StoreError {
    let source = std::io::Error::other(
        "a restore of the loop was interrupted; `tachikoma run` puts back the earlier state and continues",
    );
    StoreError::io("use", path)(source)
}

/// Finds the current loop of a working directory: the newest one that is not archived. The time of a new loop is later than that
/// of the loop before, so the order does not depend on the wall clock.
///
/// A loop with a damaged or newer journal, or with only a snapshot, is found, too. Otherwise a new loop would replace it.
///
/// # Errors
/// The loops cannot be listed.
pub fn current(
    working_dir: &Path,
    snapshot: &Path,
    encryption: &Encryption,
) -> Result<Option<LoopId>, StoreError> {
    let Found {
        current,
        unreadable,
    } = find(working_dir, snapshot, encryption)?;
    first_error(unreadable).map(|()| current)
}

fn first_error(unreadable: Vec<(PathBuf, StoreError)>) -> Result<(), StoreError> {
    let first = unreadable.into_iter().next();
    first.map_or(Ok(()), |(_, error)| Err(error))
}

/// The loops of a working directory that are not archived.
#[derive(Debug)]
pub struct Found {
    /// The newest loop that can be read; `None` if there is none.
    pub current: Option<LoopId>,
    /// Directory entries that cannot be read at all, with the error.
    pub unreadable: Vec<(PathBuf, StoreError)>,
}

/// Finds the current loop and unreadable entries.
///
/// # Errors
/// The loops cannot be listed.
pub fn find(
    working_dir: &Path,
    snapshot: &Path,
    encryption: &Encryption,
) -> Result<Found, StoreError> {
    let (mut found, unreadable) = list_loops(working_dir, encryption)?;
    // An unreadable snapshot names no loop. Code that needs the snapshot reports the error.
    if let Ok(Some(saved)) = snapshot::read(snapshot, encryption)
        && !found.iter().any(|(_, loop_id)| *loop_id == saved.loop_id)
        && !is_archived(&layout::loop_dir(working_dir, saved.loop_id))
    {
        let begun = saved.state.started_at.unwrap_or(saved.state.time);
        found.push((begun, saved.loop_id));
    }
    Ok(Found {
        current: found.into_iter().max().map(|(_, loop_id)| loop_id),
        unreadable,
    })
}

/// Lists the loops that have a journal and are not archived, with the time of their first record.
pub fn unarchived(
    working_dir: &Path,
    encryption: &Encryption,
) -> Result<Vec<(Timestamp, LoopId)>, StoreError> {
    let (found, unreadable) = list_loops(working_dir, encryption)?;
    first_error(unreadable).map(|()| found)
}

/// Loops with the time of their first record, and directory entries that cannot be read, with the error.
type LoopList = (Vec<(Timestamp, LoopId)>, Vec<(PathBuf, StoreError)>);

/// Lists the loops that have a journal and are not archived.
fn list_loops(working_dir: &Path, encryption: &Encryption) -> Result<LoopList, StoreError> {
    let loops = layout::loops_dir(working_dir);
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for entry in layout::entries(&loops).map_err(StoreError::io("list", &loops))? {
        let name = entry.file_name();
        if let Some(loop_id) = name.to_str().and_then(moved_away)
            && std::fs::symlink_metadata(layout::loop_dir(working_dir, loop_id)).is_err()
        {
            unreadable.push((entry.path(), interrupted(&entry.path())));
        }
        let Some(loop_id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if is_archived(&entry.path()) {
            continue;
        }
        match journal::begun(&entry.path(), encryption) {
            Ok(begun) => found.extend(begun.map(|begun| (begun, loop_id))),
            Err(error) => unreadable.push((entry.path(), error)),
        }
    }
    Ok((found, unreadable))
}

/// Finds the working directory for a path: the nearest directory upward that has loops, a snapshot, or a runner with temporary state.
#[must_use]
pub fn working_dir_of(path: &Path) -> Option<PathBuf> {
    path.ancestors()
        .find(|dir| {
            let ralph = dir.join(RALPH_DIR);
            is_ours(&ralph.join("loops"))
                || has_snapshot(&ralph.join("state.json"))
                || lock::is_held(dir)
        })
        .map(Path::to_owned)
}

/// Finds the nearest directory upward with a lock file. A loop with temporary state leaves one, too, and it may have files to delete.
#[must_use]
pub fn purgeable_dir_of(path: &Path) -> Option<PathBuf> {
    let has_lock = |dir: &&Path| dir.join(RALPH_DIR).join("lock").is_file();
    path.ancestors().find(has_lock).map(Path::to_owned)
}

/// Returns whether a snapshot exists. An encrypted file at its path counts as one.
fn has_snapshot(path: &Path) -> bool {
    matches!(
        snapshot::read(path, &Encryption::plain()),
        Ok(Some(_)) | Err(StoreError::Locked { .. })
    )
}

/// Returns whether the directory of loops exists. If it cannot be examined, it counts as existing, and code that reads it reports
/// the error.
fn is_ours(loops: &Path) -> bool {
    match std::fs::metadata(loops) {
        Ok(metadata) => metadata.is_dir(),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}
