//! Deletes all files of Tachikoma in a working directory, and no others: other tools may use `.ralph/` too. Links are not followed.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir};
use tachikoma_core::{Epoch, LoopId};
use tachikoma_fs::{RALPH_DIR, atomic_file, is_missing, quarantine, safe_read};

use super::{paths_in, restore, retention};
use crate::git::snapshots;
use crate::log_files;
use crate::loop_files::StoreConfig;
use crate::opencode::supervisor;
use crate::session::transcripts;
use crate::store::compressed::open_dir;
use crate::store::encryption::{self, Encryption};
use crate::store::epochs::Epochs;
use crate::store::lock::{self, is_our_ignore};
use crate::store::{StoreError, backup, layout, snapshot};

/// Maximum size of a `.gitignore` file that can be Tachikoma's own. Larger files are not deleted.
const IGNORE_BYTES_MAX: u64 = 64 << 10;

/// The result of a purge.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// How many files were deleted.
    pub files: u64,
    /// Files of other programs. They were not deleted.
    pub left: Vec<PathBuf>,
    /// Reasons why git snapshots could not be deleted, one per loop.
    pub troubles: Vec<String>,
}

/// Deletes all files. The caller holds the lock of the working directory, and the file of the lock is deleted last.
///
/// # Errors
/// A file cannot be deleted. The purge can be repeated.
pub(crate) fn purge(store_config: &StoreConfig) -> Result<Purged, StoreError> {
    let ralph = store_config.working_dir.join(RALPH_DIR);
    // If `.ralph` is a symbolic link, the purge would delete files of another directory.
    open_dir(&ralph).map_err(StoreError::io("open", &ralph))?;
    let mut purged = Purged::default();
    let all = layout::loops_dir(&store_config.working_dir);
    let mut ids = ids_in(&all);
    if store_config.state_dir.starts_with(&ralph) {
        // Transcripts of loops without a journal are deleted only by a purge: in a shared directory they may belong to other working directories.
        ids.extend(ids_in(&store_config.state_dir));
    }
    ids.sort_unstable();
    ids.dedup();
    let epoch =
        |id: &LoopId| Epochs::of(&all.join(id.to_string()), &store_config.encryption).current();
    let epochs: Vec<(LoopId, Option<Epoch>)> = ids.iter().map(|id| (*id, epoch(id))).collect();
    for loop_id in &ids {
        let name = loop_id.to_string();
        // Git snapshots are deleted before the journal, which is needed to find them.
        if let Err(why) = snapshots::delete_all_in(&store_config.working_dir, *loop_id) {
            purged.troubles.push(format!(
                "the git snapshots of {loop_id} were not deleted: {why}"
            ));
        }
        let sessions = store_config.state_dir.join(&name);
        purged.clear(&sessions, |name| {
            transcripts::is_ours(name) || atomic_file::is_temporary(name)
        })?;
        let journal = all.join(&name);
        for (name, is_ours) in retention::all_subdirectories() {
            let below = journal.join(name);
            purged.clear(&below, |name| {
                is_ours(name) || atomic_file::is_temporary(name)
            })?;
        }
        purged.clear(&journal, super::is_ours_in_loop)?;
        purged.socket(&store_config.runtime_dir.join(format!("{name}.sock")));
    }
    if let Some(holder) = lock::holder(&store_config.working_dir) {
        let ours = holder.socket.file_name().and_then(|name| name.to_str());
        if ours.is_some_and(|name| name.starts_with(&format!("{}.", holder.loop_id))) {
            purged.socket(&holder.socket);
        }
    }
    let moved = paths_in(&all, |name| layout::moved_away(name).is_some());
    for left in restore::remains(&all).into_iter().chain(moved) {
        std::fs::remove_dir_all(&left).map_err(StoreError::io("delete", &left))?;
        purged.files += 1;
    }
    let is_shared = !store_config.backups.dir.starts_with(&ralph);
    purged.backups(store_config, is_shared.then_some(&epochs))?;
    let server = ralph.join(supervisor::DIR);
    if lock::is_held_in(&server) {
        purged.troubles.push(
            "the files of the OpenCode server were not deleted, because it is running; `tachikoma opencode stop` ends it"
                .to_owned(),
        );
    } else {
        purged.clear(&server, supervisor::is_supervisor_file)?;
    }
    purged.clear(
        &log_files::dir(&store_config.working_dir),
        log_files::is_ours,
    )?;
    purged
        .quarantine(&quarantine::dir(&store_config.working_dir))
        .map_err(StoreError::io("delete", &ralph))?;
    atomic_file::remove_remains(&store_config.snapshot);
    for snapshot in snapshot::all_places(&store_config.snapshot) {
        for path in snapshot::older_versions_of(&snapshot)
            .iter()
            .chain([&snapshot])
        {
            purged.snapshot(path, &store_config.encryption)?;
        }
    }
    let identity = ralph.join(encryption::IDENTITY);
    if encryption::is_age(&identity) {
        purged.file(&identity)?;
    }
    let ignore = ralph.join(".gitignore");
    if safe_read::read(&ignore, IGNORE_BYTES_MAX).is_ok_and(|text| is_our_ignore(&text)) {
        purged.file(&ignore)?;
    }
    for dir in [&store_config.state_dir, &all] {
        remove_dir(dir);
    }
    purged.file(&ralph.join("lock"))?;
    remove_dir(&ralph);
    Ok(purged)
}

impl Purged {
    /// Deletes Tachikoma's files in a directory, and then the directory if it is empty.
    fn clear(&mut self, dir: &Path, is_ours: impl Fn(&str) -> bool) -> Result<(), StoreError> {
        self.try_clear(dir, is_ours)
            .map_err(StoreError::io("delete", dir))
    }

    fn try_clear(&mut self, dir: &Path, is_ours: impl Fn(&str) -> bool) -> io::Result<()> {
        let opened = match open_dir(dir) {
            Ok(opened) => opened,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) => {
                self.left.push(dir.to_owned());
                return Ok(());
            }
        };
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let ours = retention::own_file(&opened, entry.file_name()).filter(|name| is_ours(name));
            match ours {
                Some(name) => {
                    rustix::fs::unlinkat(&opened, name, AtFlags::empty())?;
                    self.files += 1;
                }
                None => {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    self.left.push(dir.join(name));
                }
            }
        }
        remove_dir(dir);
        Ok(())
    }

    /// Deletes all complete and unfinished backups. In a shared directory only backups with the epochs of these loops are deleted, and
    /// the directory stays.
    fn backups(
        &mut self,
        store_config: &StoreConfig,
        shared: Option<&Vec<(LoopId, Option<Epoch>)>>,
    ) -> Result<(), StoreError> {
        let dir = &store_config.backups.dir;
        if !std::fs::symlink_metadata(dir).is_ok_and(|there| there.is_dir()) {
            return Ok(());
        }
        let listed = backup::list_names(dir, None)?;
        let failed = StoreError::io("delete", dir);
        let entries: io::Result<Vec<_>> = std::fs::read_dir(dir).and_then(Iterator::collect);
        for entry in entries.map_err(failed)? {
            let path = entry.path();
            let backup = listed.iter().find(|listed| listed.path == path);
            let is_temporary = || {
                entry
                    .file_name()
                    .to_str()
                    .is_some_and(atomic_file::is_temporary)
            };
            let is_ours = match (backup, shared) {
                // Below `.ralph/`, only Tachikoma writes files with names of backups, so even damaged ones are deleted.
                (Some(_), None) => true,
                (None, None) => is_temporary(),
                (Some(backup), Some(epochs)) => {
                    let mut epochs = epochs.iter();
                    let Some((loop_id, epoch)) = epochs.find(|(id, _)| *id == backup.loop_id)
                    else {
                        continue;
                    };
                    match (epoch, backup::manifest_of(&path, &store_config.encryption)) {
                        (Some(epoch), Ok(told)) if *epoch == told.epoch => told.loop_id == *loop_id,
                        // A backup with another epoch may belong to another working directory.
                        (_, Ok(_)) => continue,
                        (_, Err(_)) => false,
                    }
                }
                (None, Some(epochs)) if is_temporary() => {
                    let epochs = epochs.iter().filter_map(|(_, epoch)| epoch.as_ref());
                    let mut epochs = epochs.map(Some).chain([None]);
                    if !epochs.any(|epoch| backup::is_remainder(&path, epoch)) {
                        continue;
                    }
                    true
                }
                (None, Some(_)) => false,
            };
            if is_ours && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                self.file(&path)?;
            } else {
                self.left.push(path);
            }
        }
        if shared.is_none() {
            remove_dir(dir);
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), StoreError> {
        match std::fs::remove_file(path) {
            Ok(()) => self.files += 1,
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(StoreError::io("delete", path)(error)),
        }
        Ok(())
    }

    /// Deletes a snapshot if its checksum is valid. Other tools use this file name too.
    fn snapshot(&mut self, path: &Path, encryption: &Encryption) -> Result<(), StoreError> {
        if snapshot::is_ours(path, encryption) {
            return self.file(path);
        }
        if std::fs::symlink_metadata(path).is_ok() {
            self.left.push(path.to_owned());
        }
        Ok(())
    }

    /// Deletes the control socket of a runner that has ended. Errors are ignored, because a leftover socket is harmless.
    fn socket(&mut self, path: &Path) {
        let there = std::fs::symlink_metadata(path);
        if there.is_ok_and(|there| there.file_type().is_socket())
            && std::fs::remove_file(path).is_ok()
        {
            self.files += 1;
        }
    }

    /// Deletes Tachikoma's files in the quarantine. Their names end with a number.
    fn quarantine(&mut self, dir: &Path) -> io::Result<()> {
        if !std::fs::symlink_metadata(dir).is_ok_and(|there| there.is_dir()) {
            return Ok(());
        }
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().and_then(quarantine::number_of).is_none() {
                self.left.push(entry.path());
                continue;
            }
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
            self.files += 1;
        }
        remove_dir(dir);
        Ok(())
    }
}

/// Removes a directory if it is empty.
fn remove_dir(dir: &Path) {
    let _ = std::fs::remove_dir(dir);
}

fn ids_in(dir: &Path) -> Vec<LoopId> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| layout::exact_id(entry.file_name().to_str()?))
        .collect()
}
