//! Leading all that is kept to the form that is wanted: `state.encrypt` was turned on, or off, or the keys are other ones.

use std::path::{Path, PathBuf};

use tachikoma_fs::{FsError, RALPH_DIR, atomic_file, quarantine};

use super::retention;
use crate::opencode::supervisor;
use crate::session::transcripts;
use crate::store::archive;
use crate::store::journal::segment;
use crate::store::layout::{self, ARCHIVED};
use crate::store::vault::convert::{convert, files_below, hold_the_same, salvage};
use crate::store::vault::{self, Vault, is_sealed};
use crate::store::{StoreError, backup, is_damage, lock, snapshot, test_history};

/// What is led to its form.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    pub working_dir: &'a Path,
    pub snapshot: &'a Path,
    /// The transcripts of all loops.
    pub state_dir: &'a Path,
    pub backups: &'a Path,
    /// The segment that is written: it is in its form.
    pub written: &'a Path,
    pub vault: &'a Vault,
}

/// How many files were brought into their form, or could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resealed {
    pub done: u64,
    /// Damaged: what opens of them is in its form, and they lie in the quarantine as they were.
    pub salvaged: u64,
    /// Sealed to keys that are not here: they stay as they are.
    pub locked: u64,
    /// Backups that are damaged, or not the same as the one in its form: they stay as they are.
    pub odd: u64,
}

/// What came of one file.
enum Brought {
    InForm,
    Done,
    Salvaged,
    Odd,
}

impl Kept<'_> {
    /// Brings every file into its form. The lock of the working directory must be held. Done again after a crash, it goes on.
    ///
    /// # Errors
    /// One cannot be brought into its form; it is as it was, and those behind it too.
    pub fn reseal(&self) -> Result<Resealed, StoreError> {
        let mut resealed = Resealed::default();
        if self.vault.is_plain() {
            // Whatever is sealed could not be opened.
            return Ok(resealed);
        }
        let in_place = self.in_place().into_iter().map(|path| (path.clone(), path));
        let renamed = self.renamed().into_iter().map(|path| {
            let to = self.named(&path);
            (path, to)
        });
        for (path, to) in in_place.chain(renamed) {
            match self.bring(&path, &to) {
                Ok(Brought::InForm) => {}
                Ok(Brought::Done) => resealed.done += 1,
                Ok(Brought::Salvaged) => resealed.salvaged += 1,
                Ok(Brought::Odd) => resealed.odd += 1,
                // Said when it was put there.
                Err(StoreError::Locked { .. }) if self.is_quarantined(&path) => {}
                Err(StoreError::Locked { .. }) => resealed.locked += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(resealed)
    }

    /// Files that keep their names.
    fn in_place(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for dir in entries(&layout::loops_dir(self.working_dir)) {
            remove_remains(&dir);
            for path in entries(&dir) {
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                    continue;
                };
                if segment::is_ours(name) || name == ARCHIVED || test_history::is_ours(name) {
                    found.push(path);
                }
            }
            for (name, is_ours) in retention::BELOW {
                remove_remains(&dir.join(name));
                found.extend(ours_in(&dir.join(name), is_ours));
            }
        }
        for dir in entries(self.state_dir) {
            remove_remains(&dir);
            found.extend(ours_in(&dir, transcripts::is_ours));
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

    /// Files whose names say whether they are sealed.
    fn renamed(&self) -> Vec<PathBuf> {
        let backups = backup::list(self.backups, None).unwrap_or_default();
        let is_below = self.backups.starts_with(self.working_dir);
        // Elsewhere they may be of other working directories.
        let backups = backups.into_iter().filter(|listed| {
            is_below || layout::loop_dir(self.working_dir, listed.loop_id).is_dir()
        });
        let snapshots = snapshot::all_places(self.snapshot).into_iter();
        let snapshots =
            snapshots.filter(|path| is_sealed(path) || snapshot::is_ours(path, self.vault));
        snapshots.chain(backups.map(|listed| listed.path)).collect()
    }

    /// What a file that is led to its form is called then.
    fn named(&self, path: &Path) -> PathBuf {
        if is_sealed(path) == self.vault.seals() {
            return path.to_owned();
        }
        let name = path.to_string_lossy();
        match name.strip_suffix(vault::SUFFIX) {
            Some(plain) => plain.into(),
            None => format!("{name}{}", vault::SUFFIX).into(),
        }
    }

    fn bring(&self, path: &Path, to: &Path) -> Result<Brought, StoreError> {
        if std::fs::symlink_metadata(path).is_ok_and(|there| there.len() == 0) {
            return Ok(Brought::InForm);
        }
        if path != to && std::fs::symlink_metadata(to).is_ok() {
            return match hold_the_same(self.vault, path, to) {
                Ok(true) => {
                    std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
                    Ok(Brought::Done)
                }
                Err(error) if !is_damaged(&error) => Err(error),
                Ok(false) | Err(_) if is_backup(path) => Ok(Brought::Odd),
                // The next snapshot takes the place of both.
                Ok(false) | Err(_) => Ok(Brought::InForm),
            };
        }
        match convert(self.vault, path, to) {
            Ok(true) => Ok(Brought::Done),
            Ok(false) => Ok(Brought::InForm),
            Err(error) if is_damaged(&error) && is_sealed(path) => self.salvage(path),
            Err(error) => Err(error),
        }
    }

    /// Keeps a damaged file as it is in the quarantine, and in its place what opens of it: without its key nobody could tell
    /// that it is damaged, and not locked.
    fn salvage(&self, path: &Path) -> Result<Brought, StoreError> {
        if self.is_quarantined(path) || Vault::plain().locked_out_of(path).is_none() {
            return Ok(Brought::InForm);
        }
        if is_backup(path) {
            return Ok(Brought::Odd);
        }
        quarantine::keep_copy(self.working_dir, path)?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if segment::is_ours(name) || transcripts::is_ours(name) {
            salvage(self.vault, path)?;
        } else if name == ARCHIVED {
            archive::write_unknown(path)?;
        } else {
            std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
        }
        Ok(Brought::Salvaged)
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

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Removes half the files of writers that died, which may be in clear text; what cannot be removed goes with its loop.
fn remove_remains(dir: &Path) {
    for path in ours_in(dir, atomic_file::is_temporary) {
        if path.is_file() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn ours_in(dir: &Path, is_ours: fn(&str) -> bool) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(is_ours)
    };
    entries(dir).into_iter().filter(is_one).collect()
}
