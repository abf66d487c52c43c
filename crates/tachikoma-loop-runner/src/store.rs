//! What is kept on disk: the journal of each loop and the lock of the working directory.

pub mod compressed;
pub mod journal;
pub mod lock;
pub mod loops;
pub mod retention;

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The directory below the working directory in which everything of ours lives. Other tools may use it too.
pub const RALPH_DIR: &str = ".ralph";

/// Something on disk could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The journal does not say what it ought to.
    #[error("journal {} is damaged at line {line}: {what}", path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// The journal was written by a newer version.
    #[error("journal {} has format {found}; this version reads up to {supported}", path.display())]
    Newer {
        /// The segment.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// What this version can read.
        supported: u32,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// Makes a directory and its parents, for the owner alone. One that is there already must not be a symbolic link: what
/// we write would go wherever that points.
pub(crate) fn make_dir(path: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(StoreError::io("create directory", path))?;
    let metadata =
        std::fs::symlink_metadata(path).map_err(StoreError::io("look at directory", path))?;
    if metadata.is_symlink() {
        let source = io::Error::other("it is a symbolic link, and those are not followed");
        return Err(StoreError::io("use directory", path)(source));
    }
    Ok(())
}

/// Returns options to open a file of ours: for the owner alone, and never through a symbolic link.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
    options
        .mode(0o600)
        .custom_flags(i32::try_from(no_follow).unwrap_or(0));
    options
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    std::fs::File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(StoreError::io("sync directory", path))
}
