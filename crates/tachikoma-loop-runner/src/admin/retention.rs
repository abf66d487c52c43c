//! How many loops of a working directory are kept, and how the others go: whole, and only what is ours.

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
use crate::store::compressed::open_dir;
use crate::store::journal;
use crate::store::lives::Lives;
use crate::store::vault::Vault;
use crate::store::{StoreError, backup, checkpoints, layout, prompts};
use tachikoma_core::error_chain as chain;

/// Enough to look back at what was tried in the last days, and few enough to list.
pub const LOOPS_KEPT: usize = 10;

/// Returns whether a working directory may have more loops than are kept. A quick look, which changes nothing.
#[must_use]
pub fn is_due(working_dir: &Path) -> bool {
    std::fs::read_dir(layout::loops_dir(working_dir))
        .is_ok_and(|entries| entries.count() > LOOPS_KEPT)
}

/// Removes the loops of a working directory, but for the last [`LOOPS_KEPT`] and `current`: the directories of their
/// journals, those of their transcripts below `state_dir`, their backups, and their snapshots in git. A loop with anything in its directories that is not ours
/// is left alone, and no link is followed.
///
/// Returns which could not be removed, and why: they are left for the next time.
///
/// # Errors
/// The loops cannot be listed.
pub fn prune(
    working_dir: &Path,
    state_dir: &Path,
    backups: &Path,
    current: LoopId,
    vault: &Vault,
    called_off: &AtomicBool,
) -> Result<Vec<String>, StoreError> {
    let path = layout::loops_dir(working_dir);
    // A link in the place of `.ralph` leads to loops that are not of this directory.
    open_dir(&working_dir.join(RALPH_DIR)).map_err(StoreError::io("open", &path))?;
    let above = open_dir(&path).map_err(StoreError::io("open", &path))?;
    let mut found = list(&path, vault)?;
    found.sort();
    let mut troubles = Vec::new();
    let excess = found.len().saturating_sub(LOOPS_KEPT);
    for (_, loop_id) in found.into_iter().take(excess) {
        if called_off.load(Ordering::Relaxed) {
            break;
        }
        if loop_id == current {
            continue;
        }
        match remove(working_dir, &above, state_dir, (backups, vault), loop_id) {
            Ok(()) => (),
            // Whoever put something into it wants to have it there.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => (),
            Err(error) => troubles.push(format!(
                "{loop_id} is older than the last {LOOPS_KEPT} loops and cannot be removed: {error}; `tachikoma state clear --purge` removes all of them"
            )),
        }
    }
    Ok(troubles)
}

/// Lists the loops with the time of their first record, in no order. One without any record is older than all others.
pub(super) fn list(
    loops: &Path,
    vault: &Vault,
) -> Result<Vec<(Option<Timestamp>, LoopId)>, StoreError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(loops).map_err(StoreError::io("list", loops))? {
        let entry = entry.map_err(StoreError::io("list", loops))?;
        let name = entry.file_name();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(loop_id) = name.to_str().and_then(layout::exact_id).filter(|_| is_dir) else {
            continue;
        };
        // One that cannot be read has an age that nobody knows.
        if let Ok(begun) = journal::begun(&entry.path(), vault) {
            found.push((begun, loop_id));
        }
    }
    Ok(found)
}

/// Removes a loop: transcripts and snapshots first, since without the journal nobody would know that they are left.
fn remove(
    working_dir: &Path,
    loops: &OwnedFd,
    state_dir: &Path,
    (backups, vault): (&Path, &Vault),
    loop_id: LoopId,
) -> io::Result<()> {
    let name = loop_id.to_string();
    let (journal, below) = open_loop(loops, &name)?;
    snapshots::delete_all_around(working_dir, loop_id).map_err(io::Error::other)?;
    // Elsewhere they may be of other directories, to which the loop was brought.
    let is_below = backups.starts_with(working_dir.join(RALPH_DIR));
    let life = Lives::of(&layout::loop_dir(working_dir, loop_id), vault).current();
    if is_below || life.is_some() {
        let life = life.filter(|_| !is_below);
        backup::remove_of(backups, loop_id, life.as_ref(), vault)
            .map_err(|error| io::Error::other(chain(&error)))?;
    }
    let sessions = match open_dir(state_dir) {
        Ok(sessions) => Some(sessions),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(sessions) = sessions {
        match Ours::open(&sessions, &name, transcripts::is_ours) {
            Ok(transcripts) => transcripts.remove(&sessions, &name)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(error),
        }
    }
    for (name, directory) in below {
        directory.remove(&journal.directory, name)?;
    }
    journal.remove(loops, &name)
}

/// A directory in that of a loop, and which names in it are ours.
pub(super) type Below = (&'static str, fn(&str) -> bool);

/// What is kept of a loop.
pub(super) const BELOW: [Below; 3] = [
    (checkpoints::DIR, checkpoints::is_ours),
    (prompts::DIR, prompts::is_ours),
    (layout::GATES_DIR, transcripts::is_ours),
];

/// That, and what a rollback has set aside that somebody died over: as it lay in the work tree, whatever form the rest is in.
pub(super) fn all_below() -> impl Iterator<Item = Below> {
    let aside = rollback_backup::DIRS.map(|dir| -> Below { (dir, rollback_backup::is_ours) });
    BELOW.into_iter().chain(aside)
}

/// Opens the directory of a loop, and those in it, as far as it has them.
fn open_loop(loops: &OwnedFd, name: &str) -> io::Result<(Ours, Vec<(&'static str, Ours)>)> {
    let directory = open_below(loops, name)?;
    let mut below = Vec::new();
    for (name, is_ours) in all_below() {
        match open_below(&directory, name) {
            Ok(found) => below.push((name, Ours::in_dir(found, is_ours, &[])?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let known: Vec<&str> = below.iter().map(|(name, _)| *name).collect();
    let journal = Ours::in_dir(directory, super::is_ours_in_loop, &known)?;
    Ok((journal, below))
}

fn open_below(above: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, name, flags, Mode::empty())?)
}

/// A directory in which everything is ours, as it was looked through.
struct Ours {
    directory: OwnedFd,
    names: Vec<String>,
}

impl Ours {
    fn open(above: &OwnedFd, name: &str, is_ours: impl Fn(&str) -> bool) -> io::Result<Self> {
        Self::in_dir(open_below(above, name)?, is_ours, &[])
    }

    /// Looks through a directory. `known` are directories in it that were looked through before.
    fn in_dir(
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
                    "not everything in it is ours",
                )
            };
            names.push(ours.ok_or_else(not_ours)?);
        }
        names.sort();
        Ok(Self { directory, names })
    }

    /// The first file says how old a loop is, and goes last.
    fn remove(self, above: &OwnedFd, name: &str) -> io::Result<()> {
        for file in self.names.iter().rev() {
            rustix::fs::unlinkat(&self.directory, file, AtFlags::empty())?;
        }
        // Fails if something has come in between, which then stays.
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
