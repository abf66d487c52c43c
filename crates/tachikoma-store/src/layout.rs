//! Names of the directories and files below `.ralph/`.

use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_fs::RALPH_DIR;

/// Returns the directory of one loop.
#[must_use]
pub fn loop_dir(working_dir: &Path, loop_id: LoopId) -> PathBuf {
    loops_dir(working_dir).join(loop_id.to_string())
}

/// Returns the directory that contains all loops.
pub fn loops_dir(working_dir: &Path) -> PathBuf {
    working_dir.join(RALPH_DIR).join("loops")
}

/// Name of the directory with the output of gates, in the directory of a loop.
pub const GATES_DIR: &str = "gates";

/// Returns the directory with the output of gates. Its files are named like transcripts.
#[must_use]
pub fn gates_dir(dir: &Path) -> PathBuf {
    dir.join(GATES_DIR)
}

/// Name of the snapshot of an archived loop, in the directory of the loop. The file is empty if the state is unknown. Moving it
/// back makes the loop the current one again.
pub const ARCHIVED: &str = "archived.json";

/// Returns whether the loop in `dir` is archived.
#[must_use]
pub fn is_archived(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir.join(ARCHIVED)).is_ok()
}

/// Prefix of a loop's directory while a restore replaces it, on file systems that cannot exchange two directories.
pub const MOVED_AWAY: &str = ".was-";

/// Returns the id of the loop that a restore moved to a directory of this name.
#[must_use]
pub fn moved_away(name: &str) -> Option<LoopId> {
    exact_id(name.strip_prefix(MOVED_AWAY)?)
}

/// Parses a loop id. `None` unless the text is spelled exactly as this program writes it.
pub fn exact_id(name: &str) -> Option<LoopId> {
    let loop_id: LoopId = name.parse().ok()?;
    (loop_id.to_string() == name).then_some(loop_id)
}

/// Lists the entries of a directory; empty if there is no such directory.
pub fn entries(dir: &Path) -> io::Result<Vec<DirEntry>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Appends a suffix to a path.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
