//! Commands on stored loops that do more than read or write single files: restore, verify, purge, retention and re-encryption. The
//! caller of each command holds the lock of the working directory.

pub mod purge;
pub(crate) mod reencrypt;
pub(crate) mod restore;
pub mod retention;
pub mod verify;

use std::path::{Path, PathBuf};

use crate::git;
use crate::store::loops;

/// Returns whether a file of this name in the directory of a loop was written by Tachikoma.
fn is_ours_in_loop(name: &str) -> bool {
    loops::is_ours_in_loop(name) || git::is_ours_in_loop(name)
}

/// Returns the paths in a directory that have an accepted name. A directory that cannot be read has none.
fn paths_in(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| entry.file_name().to_str().is_some_and(&is_wanted));
    wanted.map(|entry| entry.path()).collect()
}
