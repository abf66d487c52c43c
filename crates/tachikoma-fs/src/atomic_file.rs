//! Writes files atomically: under a unique temporary name, which is then renamed.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::{FsError, make_dir, private, safe_read, sync_dir};

/// Prefix and suffix of the name of a temporary file.
const TEMP_PREFIX: &str = ".state-";
const TEMP_SUFFIX: &str = ".tmp";

/// Whether a file must be synced to disk before the function that writes it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No sync is needed, because the content can be restored from the journal.
    Lazy,
    /// The file is synced, because a user may read it next, or the machine may be switched off.
    Synced,
}

/// Writes a file under a unique temporary name, then renames it.
pub fn write_whole(path: &Path, bytes: &[u8], durability: Durability) -> Result<FileMark, FsError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    make_dir(dir)?;
    let temporary = temporary(dir);
    let written = write_to(&temporary, bytes, durability).and_then(|mark| {
        std::fs::rename(&temporary, path).map_err(FsError::io("replace", path))?;
        Ok(mark)
    });
    if written.is_err() {
        // A partial file is useless, so it is removed.
        let _ = std::fs::remove_file(&temporary);
        return written;
    }
    if durability == Durability::Synced {
        sync_dir(dir)?;
    }
    written
}

/// Returns a unique temporary path in `dir`, recognizable by [`is_temporary`] if it is left there.
pub fn temporary(dir: &Path) -> PathBuf {
    let unique = uuid::Uuid::new_v4().simple();
    dir.join(temporary_name(&unique.to_string()))
}

/// Returns the name of a temporary file with the given 32 hexadecimal digits.
pub fn temporary_name(unique: &str) -> String {
    format!("{TEMP_PREFIX}{unique}{TEMP_SUFFIX}")
}

fn write_to(path: &Path, bytes: &[u8], durability: Durability) -> Result<FileMark, FsError> {
    let mut file = private()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(FsError::io("create", path))?;
    file.write_all(bytes).map_err(FsError::io("write", path))?;
    if durability == Durability::Synced {
        file.sync_all().map_err(FsError::sync(path))?;
    }
    let there = file.metadata().map_err(FsError::io("look at", path))?;
    Ok(FileMark::from(&there))
}

/// Maximum number of different copies of one file that [`keep_beside`] creates with the same suffix.
const COPIES_MAX: u32 = 100;

/// Copies a file to the same directory, with `suffix` after its name. An existing file is not overwritten: if its content differs,
/// the copy gets a number.
pub fn keep_beside(path: &Path, suffix: &str) -> Result<(), FsError> {
    for number in 0..COPIES_MAX {
        let mut kept = path.as_os_str().to_owned();
        kept.push(suffix);
        if number > 0 {
            kept.push(format!(".{number}"));
        }
        let kept = PathBuf::from(kept);
        match copy_new(path, &kept) {
            Err(FsError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {
                if is_equal(path, &kept) {
                    return Ok(());
                }
            }
            copied => {
                copied?;
                return sync_dir(path.parent().unwrap_or(Path::new(".")));
            }
        }
    }
    let source = std::io::Error::other("it has 100 copies already; delete some");
    Err(FsError::io("keep", path)(source))
}

fn is_equal(one: &Path, other: &Path) -> bool {
    let content = |path| {
        let file = safe_read::open(path).ok()?;
        let bytes = std::io::Read::bytes(std::io::BufReader::new(file));
        Some(bytes.map(Result::ok))
    };
    match (content(one), content(other)) {
        (Some(one), Some(other)) => one.eq(other),
        (None, _) | (_, None) => false,
    }
}

/// Copies a file to a path that does not exist yet. The copy is synced to disk; its directory entry is not.
pub fn copy_new(from: &Path, to: &Path) -> Result<(), FsError> {
    let mut source = safe_read::open(from).map_err(FsError::io("read", from))?;
    let mut target = private()
        .write(true)
        .create_new(true)
        .open(to)
        .map_err(FsError::io("create", to))?;
    let copied = std::io::copy(&mut source, &mut target)
        .map_err(FsError::io("copy", from))
        .and_then(|_| target.sync_all().map_err(FsError::sync(to)));
    if copied.is_err() {
        // A partial copy is useless, so it is removed.
        let _ = std::fs::remove_file(to);
    }
    copied
}

/// Identifies a version of a file without reading it, by device, inode, size and modification time.
#[derive(Debug, PartialEq, Eq)]
pub struct FileMark(u64, u64, u64, (i64, i64));

impl FileMark {
    /// Reads the mark of a file from its metadata; `None` if the metadata cannot be read.
    pub fn of(path: &Path) -> Option<Self> {
        let there = std::fs::symlink_metadata(path).ok()?;
        Some(Self::from(&there))
    }
}

impl From<&std::fs::Metadata> for FileMark {
    fn from(there: &std::fs::Metadata) -> Self {
        let changed = (there.mtime(), there.mtime_nsec());
        Self(there.dev(), there.ino(), there.len(), changed)
    }
}

/// Returns whether a name is that of a temporary file, which may be a leftover.
pub fn is_temporary(name: &str) -> bool {
    unique_of(name).is_some()
}

/// Returns the 32 hexadecimal digits in the name of a temporary file; `None` for other names.
pub fn unique_of(name: &str) -> Option<&str> {
    let unique = name.strip_prefix(TEMP_PREFIX)?.strip_suffix(TEMP_SUFFIX)?;
    (unique.len() == 32 && uuid::Uuid::try_parse(unique).is_ok()).then_some(unique)
}

/// Removes temporary files of killed processes from the directory of `path`. The caller must hold the lock of the working directory.
pub fn remove_remains(path: &Path) {
    let entries = path.parent().and_then(|dir| std::fs::read_dir(dir).ok());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_temporary) {
            // An error is ignored, because a leftover file is small and harmless.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_beside_does_not_overwrite_files_or_follow_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        std::fs::write(at("file"), "old").unwrap();
        std::fs::write(at("precious"), "precious").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("file.v1")).unwrap();
        std::fs::write(at("file.v1.1"), "kept before").unwrap();
        keep_beside(&at("file"), ".v1").unwrap();
        assert_eq!(read("precious"), "precious");
        assert_eq!(read("file.v1.1"), "kept before");
        assert_eq!(read("file.v1.2"), "old");
        keep_beside(&at("file"), ".v1").unwrap();
        assert!(
            !at("file.v1.3").exists(),
            "a copy with this content exists already"
        );
    }
}
