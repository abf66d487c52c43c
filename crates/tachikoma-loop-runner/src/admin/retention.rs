//! Deletes old loops of a working directory. A loop is deleted completely or not at all, and files of other programs are kept.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use tachikoma_core::{LoopId, Timestamp};
use tachikoma_fs::RALPH_DIR;

use crate::git::{rollback_backup, snapshots};
use crate::session::transcripts;
use crate::store::backup::Backups;
use crate::store::compressed::open_dir;
use crate::store::encryption::Encryption;
use crate::store::epochs::Epochs;
use crate::store::journal;
use crate::store::{StoreError, backup, checkpoints, layout, prompts};
use tachikoma_core::error_chain as chain;

/// The number of loops that are kept: enough for the last days, and few enough to list.
pub const LOOPS_KEPT: usize = 10;

/// Returns whether a working directory may have more loops than are kept. This check is fast and changes nothing.
#[must_use]
pub fn is_due(working_dir: &Path) -> bool {
    std::fs::read_dir(layout::loops_dir(working_dir))
        .is_ok_and(|entries| entries.count() > LOOPS_KEPT)
}

/// Deletes the loops of a working directory except the last [`LOOPS_KEPT`] and `current`: their journals, their transcripts below
/// `state_dir`, their backups, and their git snapshots. A loop with foreign files in its directories is kept. Links are not followed.
///
/// Returns a warning for each loop that could not be deleted. The next run tries again.
///
/// # Errors
/// The loops cannot be listed.
pub fn prune(
    working_dir: &Path,
    state_dir: &Path,
    backups: &Backups,
    current: LoopId,
    canceled: &AtomicBool,
) -> Result<Vec<String>, StoreError> {
    let path = layout::loops_dir(working_dir);
    // A link in place of `.ralph` would lead to loops of another directory.
    open_dir(&working_dir.join(RALPH_DIR)).map_err(StoreError::io("open", &path))?;
    let above = open_dir(&path).map_err(StoreError::io("open", &path))?;
    let mut found = list(&path, &backups.encryption)?;
    found.sort();
    let mut troubles = Vec::new();
    let excess = found.len().saturating_sub(LOOPS_KEPT);
    for (_, loop_id) in found.into_iter().take(excess) {
        if canceled.load(Ordering::Relaxed) {
            break;
        }
        if loop_id == current {
            continue;
        }
        match remove(working_dir, &above, state_dir, backups, loop_id) {
            Ok(()) => (),
            // A foreign file in the directory keeps the loop.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => (),
            Err(error) => troubles.push(format!(
                "{loop_id} is older than the last {LOOPS_KEPT} loops and cannot be deleted: {error}; `tachikoma state clear --purge` deletes all loops"
            )),
        }
    }
    Ok(troubles)
}

/// Lists the loops with the time of their first record, in no order. A loop without records counts as the oldest.
pub(super) fn list(
    loops: &Path,
    encryption: &Encryption,
) -> Result<Vec<(Option<Timestamp>, LoopId)>, StoreError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(loops).map_err(StoreError::io("list", loops))? {
        let entry = entry.map_err(StoreError::io("list", loops))?;
        let name = entry.file_name();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(loop_id) = name.to_str().and_then(layout::exact_id).filter(|_| is_dir) else {
            continue;
        };
        // The age of an unreadable loop is unknown, so it is never deleted.
        if let Ok(begun) = journal::begun(&entry.path(), encryption) {
            found.push((begun, loop_id));
        }
    }
    Ok(found)
}

/// Deletes a loop. Transcripts and git snapshots are deleted first, because the journal is needed to find them.
fn remove(
    working_dir: &Path,
    loops: &OwnedFd,
    state_dir: &Path,
    backups: &Backups,
    loop_id: LoopId,
) -> io::Result<()> {
    let name = loop_id.to_string();
    let (journal, below) = open_loop(loops, &name)?;
    snapshots::delete_all_in(working_dir, loop_id).map_err(io::Error::other)?;
    // In a shared backup directory, a copy of the same loop in another working directory may have backups.
    let Backups {
        dir, encryption, ..
    } = backups;
    let is_below = dir.starts_with(working_dir.join(RALPH_DIR));
    let epoch = Epochs::of(&layout::loop_dir(working_dir, loop_id), encryption).current();
    if is_below || epoch.is_some() {
        let epoch = epoch.filter(|_| !is_below);
        backup::remove_of(dir, loop_id, epoch.as_ref(), encryption)
            .map_err(|error| io::Error::other(chain(&error)))?;
    }
    if let Some(sessions) = if_found(open_dir(state_dir))?
        && let Some(directory) = if_found(open_below(&sessions, &name))?
    {
        let transcripts = OurDirectory::list(directory, transcripts::is_ours, &[])?;
        transcripts.remove(&sessions, &name)?;
    }
    for (name, directory) in below {
        directory.remove(&journal.directory, name)?;
    }
    journal.remove(loops, &name)
}

/// Name of a subdirectory of a loop, and a function that returns whether a file name in it is Tachikoma's.
pub(super) type Subdirectory = (&'static str, fn(&str) -> bool);

/// The subdirectories of a loop with files that can be encrypted.
pub(super) const SUBDIRECTORIES: [Subdirectory; 3] = [
    (checkpoints::DIR, checkpoints::is_ours),
    (prompts::DIR, prompts::is_ours),
    (layout::GATES_DIR, transcripts::is_ours),
];

/// Returns [`SUBDIRECTORIES`] and the subdirectories of interrupted rollbacks. The files of a rollback are never encrypted.
pub(super) fn all_subdirectories() -> impl Iterator<Item = Subdirectory> {
    let aside =
        rollback_backup::DIRS.map(|dir| -> Subdirectory { (dir, rollback_backup::is_ours) });
    SUBDIRECTORIES.into_iter().chain(aside)
}

/// Opens the directory of a loop and its subdirectories.
fn open_loop(
    loops: &OwnedFd,
    name: &str,
) -> io::Result<(OurDirectory, Vec<(&'static str, OurDirectory)>)> {
    let directory = open_below(loops, name)?;
    let mut below = Vec::new();
    for (name, is_ours) in all_subdirectories() {
        if let Some(found) = if_found(open_below(&directory, name))? {
            below.push((name, OurDirectory::list(found, is_ours, &[])?));
        }
    }
    let known: Vec<&str> = below.iter().map(|(name, _)| *name).collect();
    let journal = OurDirectory::list(directory, super::is_ours_in_loop, &known)?;
    Ok((journal, below))
}

fn open_below(above: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, name, flags, Mode::empty())?)
}

/// Returns `None` if the directory does not exist.
fn if_found(opened: io::Result<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// An open directory that has only files that Tachikoma wrote.
struct OurDirectory {
    directory: OwnedFd,
    names: Vec<String>,
}

impl OurDirectory {
    /// Lists a directory. `known` are subdirectories that were listed before.
    fn list(
        directory: OwnedFd,
        is_ours: impl Fn(&str) -> bool,
        known: &[&str],
    ) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let is_known = known.iter().any(|known| known.as_bytes() == name);
            if matches!(name, b"." | b"..") || is_known {
                continue;
            }
            let ours = own_file(&directory, entry.file_name()).filter(|name| is_ours(name));
            let not_ours = || {
                io::Error::new(
                    io::ErrorKind::DirectoryNotEmpty,
                    "it contains files of other programs",
                )
            };
            names.push(ours.ok_or_else(not_ours)?);
        }
        names.sort();
        Ok(Self { directory, names })
    }

    /// Deletes the directory. The first segment is deleted last, because it has the age of the loop.
    fn remove(self, above: &OwnedFd, name: &str) -> io::Result<()> {
        for file in self.names.iter().rev() {
            rustix::fs::unlinkat(&self.directory, file, AtFlags::empty())?;
        }
        // Fails if another program added a file in the meantime. That file is kept.
        Ok(rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR)?)
    }
}

pub(super) fn own_file(directory: &OwnedFd, name: &CStr) -> Option<String> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let name = name.to_str().ok()?;
    is_file.then(|| name.to_owned())
}

#[cfg(test)]
mod tests;
