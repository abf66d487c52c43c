//! The loops of a working directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tachikoma_core::{LoopId, Timestamp};
use tachikoma_fs::{RALPH_DIR, atomic_file};

use super::journal::segment;
use super::layout::{self, ARCHIVED, is_archived, moved_away};
use super::vault::Vault;
use super::{StoreError, journal, lock, snapshot, test_history};

/// Returns whether a file of that name in the directory of a loop is ours.
pub fn is_ours_in_loop(name: &str) -> bool {
    segment::is_ours(name)
        || name == ARCHIVED
        || atomic_file::is_temporary(name)
        || test_history::is_ours(name)
}

/// Returns the error for a loop whose directory was moved away and not replaced.
fn interrupted(path: &Path) -> StoreError {
    let source = std::io::Error::other(
        "a restoration of the loop was interrupted; `tachikoma run` puts back what was there, and goes on",
    );
    StoreError::io("use", path)(source)
}

/// Finds the current loop of a working directory: the one that was begun last and is not archived. A loop's clock goes on after that of
/// the loop before it, so "last" does not depend on the wall clock.
///
/// A loop whose journal is damaged or newer than this version is found as well, and so is one of which only the snapshot
/// is left: passing over it would begin another one in its place.
///
/// # Errors
/// The loops cannot be listed.
pub fn current(
    working_dir: &Path,
    snapshot: &Path,
    vault: &Vault,
) -> Result<Option<LoopId>, StoreError> {
    let Found {
        current,
        unreadable,
    } = find(working_dir, snapshot, vault)?;
    match unreadable.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(current),
    }
}

/// The loops of a working directory that are not archived.
#[derive(Debug)]
pub struct Found {
    /// The one that was begun last, of those that can be read.
    pub current: Option<LoopId>,
    /// What lies in the place of loops and cannot be read at all.
    pub unreadable: Vec<(PathBuf, StoreError)>,
}

/// Finds the current loop, whatever else lies there.
///
/// # Errors
/// The loops cannot be listed.
pub fn find(working_dir: &Path, snapshot: &Path, vault: &Vault) -> Result<Found, StoreError> {
    let (mut found, unreadable) = look(working_dir, vault)?;
    // One that cannot be read names nobody; whoever needs it says so.
    if let Ok(Some(saved)) = snapshot::read(snapshot, vault)
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
    vault: &Vault,
) -> Result<Vec<(Timestamp, LoopId)>, StoreError> {
    let (found, unreadable) = look(working_dir, vault)?;
    match unreadable.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(found),
    }
}

type Looked = (Vec<(Timestamp, LoopId)>, Vec<(PathBuf, StoreError)>);

fn look(working_dir: &Path, vault: &Vault) -> Result<Looked, StoreError> {
    let loops = layout::loops_dir(working_dir);
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let entries = match std::fs::read_dir(&loops) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((found, unreadable)),
        Err(error) => return Err(StoreError::io("list", &loops)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(StoreError::io("list", &loops))?;
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
        match journal::begun(&entry.path(), vault) {
            Ok(begun) => found.extend(begun.map(|begun| (begun, loop_id))),
            Err(error) => unreadable.push((entry.path(), error)),
        }
    }
    Ok((found, unreadable))
}

/// Finds the working directory for a path: the nearest one upward that has a `.ralph/` with loops or at least a snapshot, or a
/// runner whose loop is not kept.
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

/// Finds the working directory for a path in which something of ours may be left to delete: the nearest one upward with a lock
/// file, which a loop that is not kept leaves too.
#[must_use]
pub fn purgeable_dir_of(path: &Path) -> Option<PathBuf> {
    let has_lock = |dir: &&Path| dir.join(RALPH_DIR).join("lock").is_file();
    path.ancestors().find(has_lock).map(Path::to_owned)
}

/// One that is sealed is ours without being opened.
fn has_snapshot(path: &Path) -> bool {
    matches!(
        snapshot::read(path, &Vault::plain()),
        Ok(Some(_)) | Err(StoreError::Locked { .. })
    )
}

/// What may not be looked at is there all the same, and the one who reads it says so.
fn is_ours(loops: &Path) -> bool {
    match std::fs::metadata(loops) {
        Ok(metadata) => metadata.is_dir(),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}
