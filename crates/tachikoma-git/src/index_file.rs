//! Copies of index files, and temporary files and directories that are removed on drop.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::{atomic_file, private, safe_read};

use super::program::GitError;

/// An index file that is removed on drop.
#[derive(Debug)]
pub struct TemporaryIndex(pub PathBuf);

impl TemporaryIndex {
    /// Copies an index into the directory of a loop. If `base` is `None`, the index is empty.
    pub fn of(base: Option<&PathBuf>, loop_dir: &Path) -> Result<Self, GitError> {
        let index = Self(atomic_file::temporary(loop_dir));
        if let Some(base) = base {
            copy_index(base, &index.0)?;
        }
        Ok(index)
    }
}

/// Copies an index to a new file with the same modification time: git reads files that are not older than the index, and trusts
/// the index for older ones. The copy is consistent even if the file is replaced meanwhile.
pub fn copy_index(base: &Path, to: &Path) -> Result<(), GitError> {
    let copy = || -> io::Result<()> {
        let mut from = safe_read::open(base)?;
        let mut copy = private().write(true).create_new(true).open(to)?;
        io::copy(&mut from, &mut copy)?;
        copy.set_modified(from.metadata()?.modified()?)
    };
    copy().map_err(GitError::io("copy", base))
}

impl Drop for TemporaryIndex {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A directory outside of the work tree that is removed on drop.
#[derive(Debug)]
pub struct TemporaryDir(pub PathBuf);

impl TemporaryDir {
    pub(crate) fn new() -> Result<Self, GitError> {
        let path = atomic_file::temporary(&std::env::temp_dir());
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(GitError::io("make directory", &path))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
