//! Writes files atomically and synced, does not follow symbolic links, and checks owners of files. Knows nothing of loops.

pub mod atomic_file;
pub mod lock_file;
mod names;
pub mod owner;
pub mod quarantine;
pub mod safe_read;
pub mod user_file;

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub use names::{printable, relative_to};

/// Name of the directory below the working directory that contains all files of Tachikoma. Other tools may use it, too.
pub const RALPH_DIR: &str = ".ralph";

/// A file or directory could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// An operation on a file failed.
    #[error("{action} {}", path.display())]
    Io {
        /// The operation that failed, as a verb such as `open`.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: io::Error,
    },
    /// A sync failed. It is never retried: after a failed sync the content on disk is unknown.
    #[error("sync {}", path.display())]
    Sync {
        /// Path of the file or directory.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: io::Error,
    },
}

impl FsError {
    /// Returns a constructor of [`FsError::Io`], for `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// Returns a constructor of [`FsError::Sync`], for `map_err`.
    pub fn sync(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Sync { path, source }
    }
}

/// Creates a directory and its parents, accessible only by the owner. An existing directory must not be a symbolic link, because
/// files would be written to its target.
pub fn make_dir(path: &Path) -> Result<(), FsError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FsError::io("create directory", path))?;
    refuse_link(path)
}

/// Checks a directory of Tachikoma that may exist already: no part of its path from `.ralph` on is a symbolic link, and only the
/// owner can access it. `.ralph` itself keeps its mode, because other tools may use it. Directories outside of it are the user's
/// responsibility.
pub fn check_dir(working_dir: &Path, dir: &Path) -> Result<(), FsError> {
    let ralph = working_dir.join(RALPH_DIR);
    let Ok(below) = dir.strip_prefix(&ralph) else {
        return Ok(());
    };
    if below.components().any(|part| part == Component::ParentDir) {
        return Ok(());
    }
    let parts = below.components().scan(ralph.clone(), |path, part| {
        path.push(part);
        Some(path.clone())
    });
    for path in [ralph.clone()].into_iter().chain(parts) {
        match refuse_link(&path) {
            // The code that creates the directory, or writes there, reports why that fails.
            Err(FsError::Io { source, .. }) if is_missing(&source) => return Ok(()),
            checked => checked?,
        }
    }
    if dir != ralph {
        make_private(dir)?;
    }
    Ok(())
}

/// Returns whether an error means that no file exists at a path.
#[must_use]
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn refuse_link(path: &Path) -> Result<(), FsError> {
    let metadata =
        std::fs::symlink_metadata(path).map_err(FsError::io("look at directory", path))?;
    if metadata.is_symlink() {
        let source = io::Error::other("it is a symbolic link, and those are not followed");
        return Err(FsError::io("use directory", path)(source));
    }
    Ok(())
}

/// Removes the permissions of the group and of others, if this user owns the directory.
fn make_private(dir: &Path) -> Result<(), FsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |errno: rustix::io::Errno| FsError::io("use directory", dir)(errno.into());
    let Ok(opened) = rustix::fs::open(dir, flags, Mode::empty()) else {
        // This is not a directory, or another user owns it. The next write there reports that.
        return Ok(());
    };
    let stat = rustix::fs::fstat(&opened).map_err(failed)?;
    let open_to_others = Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO);
    if open_to_others && stat.st_uid == rustix::process::geteuid().as_raw() {
        rustix::fs::fchmod(&opened, Mode::RWXU).map_err(failed)?;
    }
    Ok(())
}

/// Returns options to open a file of Tachikoma: accessible only by the owner, and never through a symbolic link.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    let no_follow = OFlags::NOFOLLOW.bits();
    options
        .mode(0o600)
        .custom_flags(i32::try_from(no_follow).unwrap_or(0));
    options
}

/// Syncs a directory, so that its entries are on disk.
pub fn sync_dir(path: &Path) -> Result<(), FsError> {
    std::fs::File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(FsError::sync(path))
}
