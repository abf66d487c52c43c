//! Files that are seen whole or not at all: written under a name that nobody else has, and renamed.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{StoreError, make_dir, private, sync_dir};

/// What a file under way is called.
const TEMP_PREFIX: &str = ".state-";
const TEMP_SUFFIX: &str = ".tmp";

/// Whether a file must be on disk when its writing returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It need not: the journal is the truth.
    Lazy,
    /// It must: a person may look next, or the machine may be switched off.
    Synced,
}

/// Writes a file under a name that nobody else has, and gives it its own when it is whole.
pub(super) fn write_whole(
    path: &Path,
    bytes: &[u8],
    durability: Durability,
) -> Result<FileMark, StoreError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    make_dir(dir)?;
    let unique = uuid::Uuid::new_v4().simple();
    let temporary = dir.join(format!("{TEMP_PREFIX}{unique}{TEMP_SUFFIX}"));
    let written = write_to(&temporary, bytes, durability).and_then(|mark| {
        std::fs::rename(&temporary, path).map_err(StoreError::io("replace", path))?;
        Ok(mark)
    });
    if written.is_err() {
        // Whatever it is, it is no use to anyone.
        let _ = std::fs::remove_file(&temporary);
        return written;
    }
    if durability == Durability::Synced {
        sync_dir(dir)?;
    }
    written
}

fn write_to(path: &Path, bytes: &[u8], durability: Durability) -> Result<FileMark, StoreError> {
    let mut file = private()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(StoreError::io("create", path))?;
    file.write_all(bytes)
        .map_err(StoreError::io("write", path))?;
    if durability == Durability::Synced {
        file.sync_all().map_err(StoreError::io("sync", path))?;
    }
    let there = file.metadata().map_err(StoreError::io("look at", path))?;
    Ok(FileMark::from(&there))
}

/// By what a file is known again without being read: device, number, size, time of the last change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileMark(u64, u64, u64, (i64, i64));

impl FileMark {
    /// Looks at a file; none if there is none, or nobody may look.
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

/// Returns whether a file of that name is a file under way, or was when its writer died.
pub(super) fn is_temporary(name: &str) -> bool {
    name.strip_prefix(TEMP_PREFIX)
        .and_then(|rest| rest.strip_suffix(TEMP_SUFFIX))
        .is_some_and(|unique| unique.len() == 32 && uuid::Uuid::try_parse(unique).is_ok())
}

/// Removes what writers of the file at `path` left that died. The lock of the working directory must be held.
pub(crate) fn remove_remains(path: &Path) {
    let entries = path.parent().and_then(|dir| std::fs::read_dir(dir).ok());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_temporary) {
            // It takes a little room, and harms nobody.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
