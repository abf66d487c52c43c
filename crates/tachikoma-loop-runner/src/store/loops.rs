//! The loops of a working directory.

use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;

use super::{RALPH_DIR, journal};

/// Returns the directory of a loop.
#[must_use]
pub fn dir(working_dir: &Path, loop_id: LoopId) -> PathBuf {
    working_dir
        .join(RALPH_DIR)
        .join("loops")
        .join(loop_id.to_string())
}

/// Finds the current loop of a working directory: the one that was begun last. A loop's clock goes on after that of
/// the loop before it, so "last" does not depend on the wall clock.
#[must_use]
pub fn current(working_dir: &Path) -> Option<LoopId> {
    let loops = working_dir.join(RALPH_DIR).join("loops");
    let entries = std::fs::read_dir(loops).ok()?;
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let loop_id: LoopId = entry.file_name().to_str()?.parse().ok()?;
            Some((journal::begun(&entry.path())?, loop_id))
        })
        .max()
        .map(|(_, loop_id)| loop_id)
}

/// Finds the working directory for a path: the nearest one upward that has a `.ralph/` of ours.
#[must_use]
pub fn working_dir_of(path: &Path) -> Option<PathBuf> {
    path.ancestors()
        .find(|dir| dir.join(RALPH_DIR).join("loops").is_dir())
        .map(Path::to_owned)
}
