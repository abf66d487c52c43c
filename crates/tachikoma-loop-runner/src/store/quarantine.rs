//! Where things go that stand in the way and that nobody can vouch for: nothing is overwritten because it could not
//! be read.

use std::io::{self, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::{RALPH_DIR, StoreError, make_dir, private, sync_dir};

/// More things of one name than this are no accident any more.
const SAME_NAME_MAX: u32 = 10_000;

/// Moves whatever is at `path` to the quarantine of the working directory, under a name that is free there. Returns
/// where it lies; none if there was nothing at `path`.
pub(crate) fn quarantine(working_dir: &Path, path: &Path) -> Result<Option<PathBuf>, StoreError> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    let dir = working_dir.join(RALPH_DIR).join("quarantine");
    make_dir(&dir)?;
    move_to_free_name(path, &dir).map(Some)
}

/// Copies a file of which a part is still needed into the quarantine of the working directory.
pub(super) fn keep_copy(working_dir: &Path, path: &Path) -> Result<(), StoreError> {
    let dir = working_dir.join(RALPH_DIR).join("quarantine");
    make_dir(&dir)?;
    let place = free_name(path, &dir)?;
    std::fs::copy(path, &place).map_err(StoreError::io("copy into quarantine", path))?;
    std::fs::File::open(&place)
        .and_then(|file| file.sync_all())
        .map_err(StoreError::sync(&place))?;
    sync_dir(&dir)
}

/// Copies what stands behind the first `len` bytes of a file into the quarantine of the working directory.
pub(super) fn keep_tail(working_dir: &Path, path: &Path, len: u64) -> Result<(), StoreError> {
    let mut source = private()
        .read(true)
        .open(path)
        .map_err(StoreError::io("open", path))?;
    source
        .seek(SeekFrom::Start(len))
        .map_err(StoreError::io("read", path))?;
    let dir = working_dir.join(RALPH_DIR).join("quarantine");
    make_dir(&dir)?;
    let place = free_name(path, &dir)?;
    let mut kept = private()
        .create_new(true)
        .write(true)
        .open(&place)
        .map_err(StoreError::io("create", &place))?;
    io::copy(&mut source, &mut kept).map_err(StoreError::io("copy into quarantine", path))?;
    kept.sync_all().map_err(StoreError::sync(&place))?;
    sync_dir(&dir)
}

/// Makes the directories from `.ralph` down to `dir`, for the owner alone. What stands in their place moves away: into
/// the quarantine, and what stands in the place of `.ralph` itself to a name beside it.
pub(super) fn remake_dirs(working_dir: &Path, dir: &Path) -> Result<(), StoreError> {
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

fn move_to_free_name(path: &Path, dir: &Path) -> Result<PathBuf, StoreError> {
    let place = free_name(path, dir)?;
    std::fs::rename(path, &place).map_err(StoreError::io("move away", path))?;
    Ok(place)
}

/// The working directory is locked, and no agent runs: nobody else takes the name in between.
fn free_name(path: &Path, dir: &Path) -> Result<PathBuf, StoreError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut free = (1..=SAME_NAME_MAX)
        .map(|number| dir.join(format!("{name}.{number}")))
        .filter(|place| std::fs::symlink_metadata(place).is_err());
    free.next().ok_or_else(|| {
        let source = io::Error::other("too many things of that name lie there");
        StoreError::io("find room in", dir)(source)
    })
}
