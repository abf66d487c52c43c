//! Encrypts or decrypts all stored files after `state.encrypt` or its keys have changed.

use std::path::{Path, PathBuf};

use tachikoma_fs::{FsError, RALPH_DIR, atomic_file, quarantine};

use super::{paths_in, retention};
use crate::opencode::supervisor;
use crate::session::transcripts;
use crate::store::archive;
use crate::store::encryption::convert::{convert, files_below, have_same_content, salvage};
use crate::store::encryption::{self, Encryption, is_encrypted};
use crate::store::journal::segment;
use crate::store::layout::{self, ARCHIVED};
use crate::store::{StoreError, backup, is_damage, lock, snapshot, test_history};

/// The stored files to convert.
#[derive(Debug)]
pub(crate) struct StoredFiles<'a> {
    pub working_dir: &'a Path,
    pub snapshot: &'a Path,
    /// Directory with the transcripts of all loops.
    pub state_dir: &'a Path,
    pub backups: &'a Path,
    /// Path of the open journal segment. It is already written with the new encryption settings.
    pub written: &'a Path,
    pub encryption: &'a Encryption,
}

/// The number of files for each result of the conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reencrypted {
    pub done: u64,
    /// Damaged files: their readable part was converted, and the originals are in the quarantine.
    pub salvaged: u64,
    /// Files for which no key is available. They are unchanged.
    pub locked: u64,
    /// Damaged backups, and backups for which a different file with the converted name exists. They are unchanged.
    pub odd: u64,
}

/// The result of converting one file.
enum Conversion {
    /// The file already has the wanted encryption.
    Unneeded,
    Done,
    Salvaged,
    Odd,
}

impl StoredFiles<'_> {
    /// Encrypts or decrypts every file. The caller holds the lock of the working directory. Can be repeated after a crash.
    ///
    /// # Errors
    /// A file cannot be converted. That file and all files after it are unchanged.
    pub fn reencrypt(&self) -> Result<Reencrypted, StoreError> {
        let mut counts = Reencrypted::default();
        if self.encryption.is_plain() {
            // Without keys, encrypted files cannot be decrypted, and plain files need no conversion.
            return Ok(counts);
        }
        let in_place = self.in_place().into_iter().map(|path| (path.clone(), path));
        let renamed = self.renamed().into_iter().map(|path| {
            let to = self.converted_name(&path);
            (path, to)
        });
        for (path, to) in in_place.chain(renamed) {
            match self.convert(&path, &to) {
                Ok(Conversion::Unneeded) => {}
                Ok(Conversion::Done) => counts.done += 1,
                Ok(Conversion::Salvaged) => counts.salvaged += 1,
                Ok(Conversion::Odd) => counts.odd += 1,
                // Quarantined files that cannot be decrypted are not counted: they were reported when they were moved there.
                Err(StoreError::Locked { .. }) if self.is_quarantined(&path) => {}
                Err(StoreError::Locked { .. }) => counts.locked += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(counts)
    }

    /// Returns the files that keep their names when they are converted.
    fn in_place(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for dir in paths_in(&layout::loops_dir(self.working_dir), |_| true) {
            delete_unfinished(&dir);
            found.extend(paths_in(&dir, |name| {
                segment::is_ours(name) || name == ARCHIVED || test_history::is_ours(name)
            }));
            for (name, is_ours) in retention::SUBDIRECTORIES {
                delete_unfinished(&dir.join(name));
                found.extend(paths_in(&dir.join(name), is_ours));
            }
        }
        for dir in paths_in(self.state_dir, |_| true) {
            delete_unfinished(&dir);
            found.extend(paths_in(&dir, transcripts::is_ours));
        }
        found.extend(files_below(&quarantine::dir(self.working_dir)));
        found.extend(snapshot::older_versions(self.snapshot));
        let server = self.working_dir.join(RALPH_DIR).join(supervisor::DIR);
        if !lock::is_held_in(&server) {
            found.extend(supervisor::log_files(&server));
        }
        found.retain(|path| path != self.written);
        found
    }

    /// Returns the files that get or lose the suffix of encrypted files when they are converted.
    fn renamed(&self) -> Vec<PathBuf> {
        let backups = backup::list(self.backups, None).unwrap_or_default();
        let is_below = self.backups.starts_with(self.working_dir);
        // In a shared directory, backups may belong to other working directories.
        let backups = backups.into_iter().filter(|listed| {
            is_below || layout::loop_dir(self.working_dir, listed.loop_id).is_dir()
        });
        let snapshots = snapshot::all_places(self.snapshot).into_iter();
        let snapshots =
            snapshots.filter(|path| is_encrypted(path) || snapshot::is_ours(path, self.encryption));
        snapshots.chain(backups.map(|listed| listed.path)).collect()
    }

    /// Returns the name that a file has after the conversion.
    fn converted_name(&self, path: &Path) -> PathBuf {
        if is_encrypted(path) == self.encryption.encrypts() {
            return path.to_owned();
        }
        let name = path.to_string_lossy();
        match name.strip_suffix(encryption::SUFFIX) {
            Some(plain) => plain.into(),
            None => format!("{name}{}", encryption::SUFFIX).into(),
        }
    }

    fn convert(&self, path: &Path, to: &Path) -> Result<Conversion, StoreError> {
        if std::fs::symlink_metadata(path).is_ok_and(|there| there.len() == 0) {
            return Ok(Conversion::Unneeded);
        }
        if path != to && std::fs::symlink_metadata(to).is_ok() {
            return match have_same_content(self.encryption, path, to) {
                Ok(true) => {
                    std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
                    Ok(Conversion::Done)
                }
                Err(error) if !is_damaged(&error) => Err(error),
                Ok(false) | Err(_) if is_backup(path) => Ok(Conversion::Odd),
                // The next snapshot replaces both.
                Ok(false) | Err(_) => Ok(Conversion::Unneeded),
            };
        }
        match convert(self.encryption, path, to) {
            Ok(true) => Ok(Conversion::Done),
            Ok(false) => Ok(Conversion::Unneeded),
            Err(error) if is_damaged(&error) && is_encrypted(path) => self.salvage(path),
            Err(error) => Err(error),
        }
    }

    /// Copies a damaged file to the quarantine, and replaces it by its readable part. Needs the key: without it a damaged file looks like a
    /// locked one.
    fn salvage(&self, path: &Path) -> Result<Conversion, StoreError> {
        if self.is_quarantined(path) || Encryption::plain().missing_key_error(path).is_none() {
            return Ok(Conversion::Unneeded);
        }
        if is_backup(path) {
            return Ok(Conversion::Odd);
        }
        quarantine::keep_copy(self.working_dir, path)?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if segment::is_ours(name) || transcripts::is_ours(name) {
            salvage(self.encryption, path)?;
        } else if name == ARCHIVED {
            archive::write_unknown(path)?;
        } else {
            std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
        }
        Ok(Conversion::Salvaged)
    }

    fn is_quarantined(&self, path: &Path) -> bool {
        path.starts_with(quarantine::dir(self.working_dir))
    }
}

fn is_backup(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| backup::by_name(name).is_some())
}

fn is_damaged(error: &StoreError) -> bool {
    matches!(error, StoreError::File(FsError::Io { source, .. }) if is_damage(source))
}

/// Deletes unfinished temporary files, which may not be encrypted. Files that cannot be deleted now are deleted with their loop later.
fn delete_unfinished(dir: &Path) {
    for path in paths_in(dir, atomic_file::is_temporary) {
        if path.is_file() {
            let _ = std::fs::remove_file(&path);
        }
    }
}
