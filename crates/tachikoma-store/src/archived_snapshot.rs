//! The snapshot of an archived loop: it lies in the directory of its loop, where no run finds it as the current one.

use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::quarantine::quarantine;
use tachikoma_fs::{is_missing, sync_dir};

use super::StoreError;
use super::layout::{self, ARCHIVED, is_archived};
use super::snapshot;
use super::vault::Vault;

/// Keeps the snapshot of a loop that is not the one at hand: it archives its loop, unless that is gone or archived already.
///
/// # Errors
/// It cannot be moved; it is then where it was.
pub fn set_aside(
    working_dir: &Path,
    snapshot: &Path,
    loop_id: LoopId,
    vault: &Vault,
) -> Result<(), StoreError> {
    let dir = layout::loop_dir(working_dir, loop_id);
    let bytes = snapshot::bytes(snapshot, vault)?;
    if dir.is_dir() && !is_archived(&dir) {
        write_archived(&dir, &bytes, vault)?;
    } else if vault.read(&dir.join(ARCHIVED), snapshot::BYTES_MAX).ok() != Some(bytes) {
        quarantine(working_dir, &snapshot::place(snapshot, vault))?;
        return Ok(());
    }
    remove(snapshot, vault)
}

/// An empty one stays empty: it says that nobody knows.
pub fn write_archived(dir: &Path, bytes: &[u8], vault: &Vault) -> Result<(), StoreError> {
    let path = dir.join(ARCHIVED);
    let sealed = match bytes.is_empty() {
        true => bytes.into(),
        false => vault.seal(bytes).map_err(StoreError::io("seal", &path))?,
    };
    write_whole(&path, &sealed, Durability::Synced)?;
    Ok(())
}

/// Says of an archived loop that nobody knows any more what its state was.
pub fn write_unknown(path: &Path) -> Result<(), StoreError> {
    write_whole(path, b"", Durability::Synced)?;
    Ok(())
}

/// Moves a snapshot to the quarantine, in whatever form it is.
pub fn move_away(working_dir: &Path, snapshot: &Path, vault: &Vault) -> Result<(), StoreError> {
    for path in forms(snapshot, vault) {
        quarantine(working_dir, &path)?;
    }
    Ok(())
}

/// The files that are a snapshot.
fn forms(snapshot: &Path, vault: &Vault) -> impl Iterator<Item = PathBuf> {
    let counts = snapshot::place(snapshot, vault);
    let forms = snapshot::all_places(snapshot);
    let is_one = move |path: &PathBuf| *path == counts || snapshot::is_ours(path, vault);
    forms.into_iter().filter(is_one)
}

/// Removes a snapshot, in whatever form it is.
pub fn remove(snapshot: &Path, vault: &Vault) -> Result<(), StoreError> {
    for path in forms(snapshot, vault) {
        match std::fs::remove_file(&path) {
            Ok(()) => sync_dir(path.parent().unwrap_or(Path::new(".")))?,
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(StoreError::io("remove", &path)(error)),
        }
    }
    Ok(())
}
