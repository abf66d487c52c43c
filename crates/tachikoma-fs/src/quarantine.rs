//! Moves unreadable files to `.ralph/quarantine` instead of overwriting them.

use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::{FsError, RALPH_DIR, atomic_file, make_dir, private, sync_dir};

/// Name of the quarantine directory in `.ralph`.
const NAME: &str = "quarantine";

/// Maximum number of files in quarantine. A user would not read more.
const ENTRIES_MAX: usize = 100;

/// Maximum size of the quarantine in bytes. An agent that keeps damaging files must not fill the disk.
const BYTES_MAX: u64 = 256 << 20;

/// Maximum number of entries that are counted in a directory. A directory with more counts as too large.
const MEASURED_FILES_MAX: u32 = 10_000;

/// Maximum number of deleted files that a message names. The others are only counted.
const NAMED_MAX: usize = 3;

/// Returns the quarantine directory of a working directory.
pub fn dir(working_dir: &Path) -> PathBuf {
    working_dir.join(RALPH_DIR).join(NAME)
}

/// Creates the quarantine directory. A file at its path is renamed.
fn make(working_dir: &Path) -> Result<PathBuf, FsError> {
    let dir = dir(working_dir);
    if in_the_way(&dir) {
        move_to_free_name(&dir, &working_dir.join(RALPH_DIR))?;
    }
    make_dir(&dir)?;
    Ok(dir)
}

/// Moves the file or directory at `path` to the quarantine of the working directory, under a free name. Returns its new path;
/// `None` if nothing was at `path`.
pub fn quarantine(working_dir: &Path, path: &Path) -> Result<Option<PathBuf>, FsError> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    let dir = make(working_dir)?;
    move_to_free_name(path, &dir).map(Some)
}

/// Moves the file or directory at `path` to the quarantine, under a free name made from the file name of `was`.
pub fn quarantine_as(working_dir: &Path, path: &Path, was: &Path) -> Result<PathBuf, FsError> {
    let dir = make(working_dir)?;
    let place = free_name(was, &dir)?;
    std::fs::rename(path, &place).map_err(FsError::io("move away", path))?;
    Ok(place)
}

/// Copies a file into the quarantine of the working directory. The original is not removed, because a part of it is still needed.
pub fn keep_copy(working_dir: &Path, path: &Path) -> Result<(), FsError> {
    let dir = make(working_dir)?;
    let place = free_name(path, &dir)?;
    atomic_file::copy_new(path, &place)?;
    sync_dir(&dir)
}

/// Copies a file without its first `len` bytes into the quarantine of the working directory.
pub fn keep_tail(working_dir: &Path, path: &Path, len: u64) -> Result<(), FsError> {
    let mut source = private()
        .read(true)
        .open(path)
        .map_err(FsError::io("open", path))?;
    source
        .seek(SeekFrom::Start(len))
        .map_err(FsError::io("read", path))?;
    let dir = make(working_dir)?;
    let place = free_name(path, &dir)?;
    let mut kept = private()
        .create_new(true)
        .write(true)
        .open(&place)
        .map_err(FsError::io("create", &place))?;
    io::copy(&mut source, &mut kept).map_err(FsError::io("copy into quarantine", path))?;
    kept.sync_all().map_err(FsError::sync(&place))?;
    sync_dir(&dir)
}

/// A file or directory that was moved to the quarantine.
struct Entry {
    /// Time when the file was moved to the quarantine, and its number among files of the same name. Together they define the order.
    came: ((i64, i64), u32),
    name: String,
    bytes: u64,
}

/// Deletes the oldest files in quarantine if there are too many or their total size is too large. The newest file is never
/// deleted, because its path was just reported. Returns a message if files were deleted. The caller must hold the lock of the
/// working directory.
pub fn bound(working_dir: &Path) -> Option<String> {
    let dir = dir(working_dir);
    let mut entries = list(&dir);
    let mut bytes = entries
        .iter()
        .fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
    if entries.len() <= ENTRIES_MAX && bytes <= BYTES_MAX {
        return None;
    }
    entries.sort_by_key(|entry| entry.came);
    let mut left = entries.len();
    let mut deleted = Vec::new();
    for entry in entries {
        if left <= 1 || (left <= ENTRIES_MAX && bytes <= BYTES_MAX) {
            break;
        }
        let path = dir.join(&entry.name);
        let removed = if path.is_dir() && !path.is_symlink() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        if removed.is_ok() {
            left -= 1;
            bytes = bytes.saturating_sub(entry.bytes);
            deleted.push(entry.name);
        }
    }
    if deleted.is_empty() {
        return None;
    }
    let more = deleted.len().saturating_sub(NAMED_MAX);
    let mut named = deleted[..deleted.len() - more].join(", ");
    if more > 0 {
        named += &format!(" and {more} more");
    }
    Some(format!(
        "{RALPH_DIR}/{NAME} had more than {ENTRIES_MAX} entries or {} MiB; the oldest were deleted: {named}",
        BYTES_MAX >> 20
    ))
}

/// Lists the files that were moved to the quarantine, in no particular order.
fn list(dir: &Path) -> Vec<Entry> {
    if in_the_way(dir) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let entry = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let number = number_of(&name)?;
        let there = std::fs::symlink_metadata(entry.path()).ok()?;
        Some(Entry {
            came: ((there.ctime(), there.ctime_nsec()), number),
            bytes: size(&entry.path()),
            name,
        })
    };
    entries.filter_map(entry).collect()
}

/// Returns the number at the end of a file name in quarantine, as 2 in `state.json.2`; `None` without a number.
pub fn number_of(name: &str) -> Option<u32> {
    let (_, number) = name.rsplit_once('.')?;
    number.parse().ok()
}

/// Returns the size in bytes of a file, or of a directory with all its content. Links are not followed.
pub fn size(path: &Path) -> u64 {
    let mut bytes = 0_u64;
    let mut entries = 0_u32;
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        entries += 1;
        if entries > MEASURED_FILES_MAX {
            return u64::MAX;
        }
        let Ok(there) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if there.is_dir() {
            let below = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let below = below.map(|entry| entry.path());
            waiting.extend(below.take(MEASURED_FILES_MAX as usize));
        } else {
            bytes = bytes.saturating_add(there.len());
        }
    }
    bytes
}

/// Creates the directories from `.ralph` down to `dir`, accessible only by the owner. A file at the path of one of them is moved
/// to the quarantine; a file at the path of `.ralph` is renamed.
pub fn remake_dirs(working_dir: &Path, dir: &Path) -> Result<(), FsError> {
    let ralph = working_dir.join(RALPH_DIR);
    let below = dir.strip_prefix(&ralph).unwrap_or(Path::new(""));
    if in_the_way(&ralph) {
        move_to_free_name(&ralph, working_dir)?;
    }
    make_dir(&ralph)?;
    let mut path = ralph;
    for part in below {
        path.push(part);
        if in_the_way(&path) {
            quarantine(working_dir, &path)?;
        }
        make_dir(&path)?;
    }
    Ok(())
}

fn in_the_way(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_dir())
}

fn move_to_free_name(path: &Path, dir: &Path) -> Result<PathBuf, FsError> {
    let place = free_name(path, dir)?;
    std::fs::rename(path, &place).map_err(FsError::io("move away", path))?;
    Ok(place)
}

/// Returns an unused name with a number above all others, so that names sort by age. The working directory is locked, so no other
/// Tachikoma process uses the name meanwhile.
fn free_name(path: &Path, dir: &Path) -> Result<PathBuf, FsError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let taken = entries.filter_map(|entry| {
        let taken = entry.file_name();
        let (rest, number) = taken.to_str()?.rsplit_once('.')?;
        number.parse::<u32>().ok().filter(|_| rest == name)
    });
    let next = taken.max().unwrap_or(0).checked_add(1).ok_or_else(|| {
        let source = io::Error::other(format!("no number is left for another {name}"));
        FsError::io("find a free name in", dir)(source)
    })?;
    Ok(dir.join(format!("{name}.{next}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a sparse file of the given size and moves it to the quarantine. Returns its path there.
    fn put(working_dir: &Path, bytes: u64) -> PathBuf {
        let path = working_dir.join("entry");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        quarantine(working_dir, &path).unwrap().unwrap()
    }

    fn names(working_dir: &Path) -> Vec<u32> {
        let mut numbers: Vec<_> = list(&dir(working_dir))
            .iter()
            .map(|entry| number_of(&entry.name).unwrap())
            .collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn file_count_limit_deletes_the_oldest_files() {
        let place = tempfile::tempdir().unwrap();
        for _ in 0..ENTRIES_MAX {
            put(place.path(), 1);
        }
        assert_eq!(bound(place.path()), None);
        std::fs::write(dir(place.path()).join("of another tool"), "").unwrap();
        put(place.path(), 1);
        let said = bound(place.path()).unwrap();
        assert!(said.ends_with("deleted: entry.1"), "{said}");
        let left: Vec<u32> = (2..=101).collect();
        assert_eq!(names(place.path()), left);
        assert!(dir(place.path()).join("of another tool").exists());
        assert!(put(place.path(), 1).ends_with("entry.102"));
    }

    #[test]
    fn total_size_limit_deletes_oldest_files_and_keeps_the_newest() {
        let place = tempfile::tempdir().unwrap();
        let inner = place.path().join("directory/inner");
        std::fs::create_dir_all(&inner).unwrap();
        let file = std::fs::File::create(inner.join("file")).unwrap();
        file.set_len(BYTES_MAX).unwrap();
        quarantine(place.path(), &place.path().join("directory")).unwrap();
        assert_eq!(bound(place.path()), None);
        put(place.path(), 1);
        let said = bound(place.path()).unwrap();
        assert!(said.ends_with("deleted: directory.1"), "{said}");
        put(place.path(), BYTES_MAX + 1);
        let said = bound(place.path()).unwrap();
        assert!(said.ends_with("deleted: entry.1"), "{said}");
        assert_eq!(names(place.path()), [2]);
        assert_eq!(bound(place.path()), None);
    }

    #[test]
    fn file_at_the_path_of_the_quarantine_directory_is_renamed() {
        let place = tempfile::tempdir().unwrap();
        let ralph = place.path().join(RALPH_DIR);
        std::fs::create_dir(&ralph).unwrap();
        std::fs::write(ralph.join(NAME), "mine").unwrap();
        assert!(put(place.path(), 1).ends_with("quarantine/entry.1"));
        let moved = std::fs::read_to_string(ralph.join("quarantine.1"));
        assert_eq!(moved.unwrap(), "mine");
    }
}
