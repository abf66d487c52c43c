//! Files of backups: their names, how they are listed, and how old ones are removed.

use std::cmp::Reverse;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use tachikoma_core::{Epoch, LoopId, Seq, Timestamp};
use tachikoma_fs::{atomic_file, private};

use super::{Backups, Moment, container};
use crate::encryption::{self, Encryption};
use crate::snapshot::Packing;
use crate::{StoreError, compressed, layout};
use tachikoma_core::error_chain as chain;

/// Extension of a backup that is not compressed.
const SUFFIX: &str = ".tar";

/// Maximum number of backups with the same record and second.
const REPEATS_MAX: u32 = 1_000;

/// A temporary file that was not changed for this long belongs to a dead process. The largest backup takes minutes on the slowest disk.
const STALE: Duration = Duration::from_secs(3_600);

/// Number of hexadecimal digits in a temporary name that identify the epoch.
const MARK_DIGITS: usize = 16;

/// A backup, described by its file name. Newer backups compare as greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// When the backup was taken, as `20261115T054715Z`. Compared first, because record numbers decrease after a restore.
    pub taken_at: String,
    /// Number of the last record in the backup.
    pub seq: Seq,
    /// Number that distinguishes backups of the same record and second.
    repeat: u32,
    /// Id of the loop.
    pub loop_id: LoopId,
    /// Path of the backup.
    pub path: PathBuf,
}

/// Lists the backups of one loop or of all loops, newest first. Empty files are left out: they only reserve a name.
///
/// # Errors
/// The directory cannot be read. If it is missing, the list is empty.
pub fn list(dir: &Path, of: Option<LoopId>) -> Result<Vec<Listed>, StoreError> {
    let mut listed = list_names(dir, of)?;
    listed.retain(|listed| {
        std::fs::symlink_metadata(&listed.path).is_ok_and(|there| there.len() > 0)
    });
    Ok(listed)
}

/// Lists the backups by name, newest first, including empty files that reserve a name.
pub fn list_names(dir: &Path, of: Option<LoopId>) -> Result<Vec<Listed>, StoreError> {
    let mut found = Vec::new();
    for entry in layout::entries(dir).map_err(StoreError::io("list", dir))? {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let listed = entry.file_name().to_str().and_then(|name| parse(dir, name));
        found.extend(
            listed.filter(|listed| is_file && of.is_none_or(|loop_id| loop_id == listed.loop_id)),
        );
    }
    found.sort();
    found.reverse();
    Ok(found)
}

/// Parses the name of a backup. `path` of the result is only the name.
#[must_use]
pub fn by_name(name: &str) -> Option<Listed> {
    parse(Path::new(""), name)
}

/// Returns whether a file name is that of a backup or of an unfinished backup.
pub fn is_name(name: &str) -> bool {
    atomic_file::is_temporary(name) || parse(Path::new(""), name).is_some()
}

fn parse(dir: &Path, name: &str) -> Option<Listed> {
    let (packed, encrypted) = match name.strip_suffix(encryption::SUFFIX) {
        Some(packed) => (packed, encryption::SUFFIX),
        None => (name, ""),
    };
    let (plain, packing) = match packed.strip_suffix(compressed::SUFFIX) {
        Some(plain) => (plain, Packing::Compressed),
        None => (packed, Packing::Plain),
    };
    let stem = plain.strip_suffix(SUFFIX)?;
    let (loop_id, rest) = stem.split_at_checked(LoopId::from_u128(0).to_string().len())?;
    let mut parts = rest.strip_prefix('-')?.split('-');
    let seq: u64 = parts.next()?.parse().ok()?;
    let taken_at = parts.next()?;
    let repeat = parts.next().map_or(Some(0), |part| part.parse().ok())?;
    let listed = Listed {
        taken_at: taken_at.to_owned(),
        seq: Seq(seq),
        repeat,
        loop_id: layout::exact_id(loop_id)?,
        path: dir.join(name),
    };
    let is_second = taken_at.len() == "20261115T054715Z".len() && taken_at.ends_with('Z');
    let again = name_of(listed.loop_id, listed.seq, taken_at, repeat, packing);
    (is_second && again + encrypted == name).then_some(listed)
}

fn name_of(loop_id: LoopId, seq: Seq, taken_at: &str, repeat: u32, packing: Packing) -> String {
    let number = seq.0;
    let repeat = match repeat {
        0 => String::new(),
        repeat => format!("-{repeat}"),
    };
    let packed = match packing {
        Packing::Plain => "",
        Packing::Compressed => compressed::SUFFIX,
    };
    format!("{loop_id}-{number:020}-{taken_at}{repeat}{SUFFIX}{packed}")
}

/// Formats a time for names: `20261115T054715Z`.
fn second(time: Timestamp) -> String {
    let text = time.to_string();
    let digits = text.chars().take("2026-11-15T05:47:15".len());
    digits
        .filter(|c| !matches!(c, '-' | ':'))
        .chain(['Z'])
        .collect()
}

/// Renames a finished backup to an unused name and returns the new path.
pub fn place(backups: &Backups, written: &Path, moment: &Moment) -> Result<PathBuf, StoreError> {
    let dir = &backups.dir;
    let snapshot = &moment.snapshot;
    let taken_at = second(snapshot.saved_at);
    for repeat in 0..REPEATS_MAX {
        let (loop_id, seq) = (snapshot.loop_id, snapshot.seq);
        let name = name_of(loop_id, seq, &taken_at, repeat, backups.packing);
        let path = backups.encryption.named(dir.join(name));
        match rename_new(written, &path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StoreError::io("create", &path)(error)),
        }
    }
    let source = std::io::Error::other("there are too many backups of the same second");
    Err(StoreError::io("find a name in", dir)(source))
}

/// Renames a file. Fails if the target exists.
fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // This file system cannot rename without replacing, so an empty file reserves the name first.
        Err(Errno::INVAL | Errno::NOSYS) => {
            private().write(true).create_new(true).open(to)?;
            std::fs::rename(from, to).inspect_err(|_| {
                let _ = std::fs::remove_file(to);
            })
        }
        renamed => Ok(renamed?),
    }
}

/// Removes the oldest backups of an epoch if there are too many. Only files that are backups of that epoch, by name and content,
/// are counted and removed. Returns warnings.
pub fn rotate(backups: &Backups, loop_id: LoopId, epoch: &Epoch, newest: &Path) -> Vec<String> {
    if backups.max == 0 {
        return Vec::new();
    }
    let max = usize::try_from(backups.max).unwrap_or(usize::MAX);
    let mut listed = match list_names(&backups.dir, Some(loop_id)) {
        Ok(listed) => listed,
        Err(error) => return vec![not_removed(&error)],
    };
    let empty = listed.extract_if(.., |listed| is_empty(&listed.path));
    let stale = empty.filter(|listed| is_stale(&listed.path));
    let mut removed: Vec<_> = stale.map(|listed| remove(&listed.path)).collect();
    // The new backup is never removed. Backups of one epoch are ordered by record number, because the clock may have been changed.
    listed.sort_by_key(|listed| Reverse((listed.path == newest, listed.seq)));
    let ours = listed.into_iter().filter(|listed| {
        let manifest = container::manifest_of(&listed.path, &backups.encryption);
        manifest.is_ok_and(|manifest| manifest.loop_id == loop_id && manifest.epoch == *epoch)
    });
    removed.extend(ours.skip(max).map(|old| remove(&old.path)));
    let failed = removed.into_iter().filter_map(Result::err);
    failed.map(|error| not_removed(&error)).collect()
}

fn not_removed(error: &StoreError) -> String {
    format!("an older backup could not be removed ({})", chain(error))
}

/// Removes the backups of a deleted loop, or only those of one epoch.
pub fn remove_of(
    dir: &Path,
    loop_id: LoopId,
    epoch: Option<&Epoch>,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    for listed in list_names(dir, Some(loop_id))? {
        let manifest = container::manifest_of(&listed.path, encryption);
        let is_it = manifest.is_ok_and(|manifest| {
            manifest.loop_id == loop_id && epoch.is_none_or(|epoch| *epoch == manifest.epoch)
        });
        // An old empty file was reserved by a process that died before it wrote the backup.
        if is_it || (is_empty(&listed.path) && is_stale(&listed.path)) {
            remove(&listed.path)?;
        }
    }
    Ok(())
}

/// Returns a unique temporary path in `dir` that names the epoch.
pub fn temporary(dir: &Path, epoch: &Epoch) -> PathBuf {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    dir.join(atomic_file::temporary_name(
        &(mark(epoch) + &unique[MARK_DIGITS..]),
    ))
}

fn mark(epoch: &Epoch) -> String {
    let mut mark = epoch.to_string();
    mark.truncate(MARK_DIGITS);
    format!("{mark:0<MARK_DIGITS$}")
}

/// Returns whether a file is a temporary file of a dead process: its name has that epoch, or it was not changed for an hour.
pub fn is_remainder(path: &Path, epoch: Option<&Epoch>) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let unique = name.and_then(atomic_file::unique_of);
    unique.is_some_and(|unique| {
        epoch.is_some_and(|epoch| unique.starts_with(&mark(epoch))) || is_stale(path)
    })
}

/// Removes temporary files of dead processes. The caller must hold the lock of the working directory.
pub fn remove_remains(dir: &Path, epoch: Option<&Epoch>) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if is_remainder(&path, epoch) {
            // A temporary file that cannot be removed is harmless.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_empty(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|there| there.len() == 0)
}

fn is_stale(path: &Path) -> bool {
    let there = std::fs::symlink_metadata(path);
    let modified = there.and_then(|there| there.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > STALE))
}

/// Removes a backup, if it still exists.
fn remove(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StoreError::io("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_names_are_parsed_strictly() {
        let loop_id = LoopId::from_u128(7);
        let taken_at = second(Timestamp::from_millis(1_763_183_084_007));
        assert_eq!(taken_at, "20251115T050444Z");
        let name = name_of(loop_id, Seq(12), &taken_at, 0, Packing::Plain);
        assert_eq!(
            name,
            "loop_00000000-0000-0000-0000-000000000007-00000000000000000012-20251115T050444Z.tar"
        );
        for (repeat, packing) in [
            (0, Packing::Plain),
            (1, Packing::Plain),
            (12, Packing::Plain),
            (0, Packing::Compressed),
            (3, Packing::Compressed),
        ] {
            let name = name_of(loop_id, Seq(12), &taken_at, repeat, packing);
            let listed = parse(Path::new("/b"), &name).unwrap();
            assert_eq!(
                (listed.loop_id, listed.seq, listed.repeat),
                (loop_id, Seq(12), repeat)
            );
        }
        for other in [
            "notes.tar",
            &name.replace("loop_", "LOOP_"),
            &name.replace("00000000000000000012", "12"),
            &name.replace("Z.tar", ".tar"),
            &name.replace(".tar", "-01.tar"),
            &name.replace(".tar", ".tar.bak"),
            &format!("my-{name}"),
        ] {
            assert_eq!(parse(Path::new("/b"), other), None, "{other}");
        }
    }
}
