//! Checks, before a run changes anything, that the keys decrypt the encrypted files of a working directory.

use std::path::{Path, PathBuf};

use super::encryption::{Encryption, is_encrypted};
use super::{StoreError, journal, layout, snapshot};

/// Encrypted files of a working directory with which the keys are checked.
pub struct EncryptedFiles {
    /// The snapshot, and files of loops that are not archived.
    pub current: Vec<PathBuf>,
    /// Files of archived loops.
    pub archived: Vec<PathBuf>,
}

/// Finds the files of a working directory that may be encrypted. For each loop, the newest file comes first.
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

/// Checks that the keys decrypt the files that a run needs. Archived loops are checked only if there are no other files; then one
/// of them must be decryptable.
///
/// # Errors
/// The keys are missing.
pub fn check_keys(
    encryption: &Encryption,
    working_dir: &Path,
    snapshot: &Path,
) -> Result<(), StoreError> {
    let EncryptedFiles { current, archived } = encrypted_files(working_dir, snapshot);
    encryption.check_opens(&current)?;
    let opens = |path: &PathBuf| encryption.missing_key_error(path).is_none();
    let mut encrypted = archived.iter().filter(|path| is_encrypted(path));
    if current.iter().any(|path| path.exists()) || encrypted.any(opens) {
        return Ok(());
    }
    encryption.check_opens(&archived)
}

/// Lists the files of one loop that may be encrypted.
pub fn segments_in(loop_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let segments = journal::segments(loop_dir).unwrap_or_default();
    segments.into_iter().rev().map(|(_, path)| path)
}
