//! The snapshot of an archived loop. It is in the directory of that loop, where a run does not use it as the current snapshot.

use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::quarantine::quarantine;
use tachikoma_fs::{is_missing, sync_dir};

use super::StoreError;
use super::encryption::Encryption;
use super::layout::{self, ARCHIVED, is_archived};
use super::snapshot;

/// Moves the snapshot of another loop to that loop's directory, which archives the loop. If that directory is missing or already
/// has another snapshot, the file moves to the quarantine.
///
/// # Errors
/// The snapshot cannot be moved. It is unchanged.
pub fn set_aside(
    working_dir: &Path,
    snapshot: &Path,
    loop_id: LoopId,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    let dir = layout::loop_dir(working_dir, loop_id);
    let bytes = snapshot::bytes(snapshot, encryption)?;
    if dir.is_dir() && !is_archived(&dir) {
        write_archived(&dir, &bytes, encryption)?;
    } else if encryption
        .read(&dir.join(ARCHIVED), snapshot::BYTES_MAX)
        .ok()
        != Some(bytes)
    {
        quarantine(working_dir, &snapshot::place(snapshot, encryption))?;
        return Ok(());
    }
    remove(snapshot, encryption)
}

/// Writes the snapshot of an archived loop. Empty `bytes` mean that the state is unknown; the file is empty, too.
pub fn write_archived(dir: &Path, bytes: &[u8], encryption: &Encryption) -> Result<(), StoreError> {
    let path = dir.join(ARCHIVED);
    if bytes.is_empty() {
        return write_unknown(&path);
    }
    encryption.write(&path, bytes, Durability::Synced)?;
    Ok(())
}

/// Archives a loop with an empty snapshot, because its state is unknown.
pub fn write_unknown(path: &Path) -> Result<(), StoreError> {
    write_whole(path, b"", Durability::Synced)?;
    Ok(())
}

/// Moves all files of a snapshot to the quarantine: plain, compressed and encrypted.
pub fn move_away(
    working_dir: &Path,
    snapshot: &Path,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    for path in forms(snapshot, encryption) {
        quarantine(working_dir, &path)?;
    }
    Ok(())
}

/// Lists all possible files of a snapshot: plain, compressed and encrypted.
fn forms(snapshot: &Path, encryption: &Encryption) -> impl Iterator<Item = PathBuf> {
    let counts = snapshot::place(snapshot, encryption);
    let forms = snapshot::all_places(snapshot);
    let is_one = move |path: &PathBuf| *path == counts || snapshot::is_ours(path, encryption);
    forms.into_iter().filter(is_one)
}

/// Removes all files of a snapshot: plain, compressed and encrypted.
pub fn remove(snapshot: &Path, encryption: &Encryption) -> Result<(), StoreError> {
    for path in forms(snapshot, encryption) {
        match std::fs::remove_file(&path) {
            Ok(()) => sync_dir(path.parent().unwrap_or(Path::new(".")))?,
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(StoreError::io("remove", &path)(error)),
        }
    }
    Ok(())
}
