//! Checks, before a run touches anything, that the keys open the encrypted files of a working directory.

use std::path::{Path, PathBuf};

use super::vault::{Vault, is_sealed};
use super::{StoreError, journal, layout, snapshot};

/// What may be sealed of a working directory: enough to tell whether the keys are the right ones.
pub struct EncryptedFiles {
    /// The snapshot, and loops that wait to go on.
    pub current: Vec<PathBuf>,
    /// Those of archived loops.
    pub archived: Vec<PathBuf>,
}

/// Finds what may be sealed of a working directory, of each loop the newest first.
pub fn encrypted_files(working_dir: &Path, snapshot: &Path) -> EncryptedFiles {
    let loops = std::fs::read_dir(layout::loops_dir(working_dir));
    let dirs = loops.into_iter().flatten().flatten();
    let mut found = EncryptedFiles {
        current: snapshot::all_places(snapshot),
        archived: Vec::new(),
    };
    for dir in dirs.map(|entry| entry.path()) {
        match layout::is_archived(&dir) {
            true => found.archived.extend(segments_in(&dir)),
            false => found.current.extend(segments_in(&dir)),
        }
    }
    found
}

/// Checks that there are keys to what a run would go on with. What only archived loops have refuses nobody, unless nothing else
/// is there and none of it opens: then the key is the wrong one.
///
/// # Errors
/// They are not here.
pub fn check_keys(vault: &Vault, working_dir: &Path, snapshot: &Path) -> Result<(), StoreError> {
    let EncryptedFiles { current, archived } = encrypted_files(working_dir, snapshot);
    vault.check_opens(&current)?;
    let opens = |path: &PathBuf| vault.locked_out_of(path).is_none();
    let mut sealed = archived.iter().filter(|path| is_sealed(path));
    if current.iter().any(|path| path.exists()) || sealed.any(opens) {
        return Ok(());
    }
    vault.check_opens(&archived)
}

/// What may be sealed of one loop.
pub fn segments_in(loop_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let segments = journal::segments(loop_dir).unwrap_or_default();
    segments.into_iter().rev().map(|(_, path)| path)
}
