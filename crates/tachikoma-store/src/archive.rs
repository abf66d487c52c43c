//! Archives a loop: moves its snapshot into its directory. An archived loop is not the current loop, so the next run starts another one.

use std::path::Path;

use tachikoma_core::LoopId;
use tachikoma_fs::make_dir;
use tachikoma_fs::quarantine::quarantine;

use super::encryption::Encryption;
use super::recover::{self, Copies, Loss};
use super::snapshot::{self, Snapshot};
use super::{StoreError, layout, loops};

pub use super::archived_snapshot::{move_away, remove, set_aside, write_archived, write_unknown};

/// Archives a loop. The caller must hold the lock of the working directory.
///
/// # Errors
/// The snapshot cannot be moved. The loop is unchanged.
pub fn archive(
    working_dir: &Path,
    loop_id: LoopId,
    snapshot: &Path,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    let dir = layout::loop_dir(working_dir, loop_id);
    let bytes = match snapshot::read(snapshot, encryption) {
        Ok(Some(found)) if found.loop_id == loop_id => snapshot::bytes(snapshot, encryption)?,
        Ok(None) => of_journal(working_dir, snapshot, loop_id, encryption),
        Ok(Some(other)) => {
            set_aside(working_dir, snapshot, other.loop_id, encryption)?;
            of_journal(working_dir, snapshot, loop_id, encryption)
        }
        // A newer version wrote this snapshot, so its bytes are copied unchanged.
        Err(StoreError::NewerSnapshot { .. }) => snapshot::bytes(snapshot, encryption)?,
        Err(error) => {
            quarantine_unreadable(working_dir, snapshot, error, encryption)?;
            of_journal(working_dir, snapshot, loop_id, encryption)
        }
    };
    // The loop is archived as soon as this file exists.
    make_dir(&dir)?;
    write_archived(&dir, &bytes, encryption)?;
    remove(snapshot, encryption)
}

/// Archives every loop except `current`. A runner may have died after it created `current` and before it archived the loop before it.
///
/// # Errors
/// The loops cannot be listed, or one cannot be archived.
pub fn archive_others(
    working_dir: &Path,
    current: LoopId,
    snapshot: &Path,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    for (_, loop_id) in loops::unarchived(working_dir, encryption)? {
        if loop_id != current {
            let dir = layout::loop_dir(working_dir, loop_id);
            let bytes = of_journal(working_dir, snapshot, loop_id, encryption);
            write_archived(&dir, &bytes, encryption)?;
        }
    }
    Ok(())
}

/// Makes the path of the snapshot free for a new loop: archives the previous loop, and moves an unreadable snapshot to the quarantine.
///
/// # Errors
/// A snapshot cannot be moved.
pub fn make_way(
    working_dir: &Path,
    before: Option<LoopId>,
    snapshot: &Path,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    if let Some(loop_id) = before {
        return archive(working_dir, loop_id, snapshot, encryption);
    }
    match snapshot::read(snapshot, encryption) {
        Err(error) => quarantine_unreadable(working_dir, snapshot, error, encryption),
        Ok(Some(found)) => set_aside(working_dir, snapshot, found.loop_id, encryption),
        Ok(None) => Ok(()),
    }
}

/// Moves a file that is not a readable snapshot to the quarantine.
fn quarantine_unreadable(
    working_dir: &Path,
    snapshot: &Path,
    error: StoreError,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    let is_none = match &error {
        StoreError::DamagedSnapshot { .. } | StoreError::NewerSnapshot { .. } => true,
        _ => snapshot::place(snapshot, encryption).is_dir(),
    };
    if !is_none {
        return Err(error);
    }
    quarantine(working_dir, &snapshot::place(snapshot, encryption))?;
    Ok(())
}

/// Builds the snapshot of a loop from its journal; empty if the journal cannot be read.
fn of_journal(
    working_dir: &Path,
    snapshot: &Path,
    loop_id: LoopId,
    encryption: &Encryption,
) -> Vec<u8> {
    let dir = layout::loop_dir(working_dir, loop_id);
    let copies = Copies::only(snapshot, encryption);
    match recover::read(&dir, &copies, loop_id, Loss::Accept) {
        Ok(found) => {
            let snapshot = Snapshot::of(&found.state, working_dir, found.state.time);
            snapshot.encode().into_bytes()
        }
        Err(_) => Vec::new(),
    }
}
