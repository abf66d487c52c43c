//! What is kept on disk: the journal of each loop and the lock of the working directory.

pub mod archive;
pub mod backup;
pub mod checkpoints;
pub mod compressed;
pub mod journal;
pub(crate) mod lives;
pub mod lock;
pub mod loops;
mod migrate;
pub(crate) mod prompts;
pub mod purge;
pub(crate) mod quarantine;
pub mod recover;
pub(crate) mod regular;
pub(crate) mod reseal;
pub(crate) mod restore;
pub mod retention;
pub mod snapshot;
pub mod temporary;
pub(crate) mod tests_book;
pub mod vault;
pub mod verify;
pub(crate) mod whole;

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The directory below the working directory in which everything of ours lives. Other tools may use it too.
pub const RALPH_DIR: &str = ".ralph";

/// The directory of a loop that has what its gates said.
const GATES_DIR: &str = "gates";

/// Returns where what the gates of the loop in `dir` said is kept, named like transcripts.
#[must_use]
pub fn gates_dir(dir: &Path) -> PathBuf {
    dir.join(GATES_DIR)
}

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
    /// What was written could not be made durable. Never tried again: after it nobody knows what is on disk.
    #[error("sync {}", path.display())]
    Sync {
        /// What.
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
    /// The snapshot does not say what it ought to.
    #[error("snapshot {} is damaged: {what}", path.display())]
    DamagedSnapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The snapshot was written by a newer version.
    #[error("snapshot {} has version {found}; this version reads up to {supported}", path.display())]
    NewerSnapshot {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// What this version can read.
        supported: u32,
    },
    /// A backup does not hold what it ought to.
    #[error("backup {} is damaged: {what}", path.display())]
    DamagedBackup {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A backup was written by a newer version.
    #[error("backup {} has format {found}; this version reads up to {supported}", path.display())]
    NewerBackup {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// What this version can read.
        supported: u32,
    },
    /// Something is sealed, and the keys to it are not here.
    #[error("{action} {}: {why}", path.display())]
    Locked {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What is the matter with the keys.
        why: String,
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
        move |source| {
            let locked = source.get_ref().and_then(|inner| inner.downcast_ref());
            if let Some(vault::Locked(why)) = locked {
                let why = why.clone();
                return Self::Locked { action, path, why };
            }
            Self::Io {
                action,
                path,
                source,
            }
        }
    }

    pub(crate) fn sync(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Sync { path, source }
    }

    /// Returns whether there was no room to write: that may change, and can be waited for. A sync that failed for want of
    /// room is not meant.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        match self {
            Self::Io { source, .. } => matches!(
                source.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded
            ),
            Self::Sync { .. }
            | Self::Damaged { .. }
            | Self::DamagedSnapshot { .. }
            | Self::DamagedBackup { .. }
            | Self::Locked { .. }
            | Self::Newer { .. }
            | Self::NewerBackup { .. }
            | Self::NewerSnapshot { .. } => false,
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
    refuse_link(path)
}

/// Checks a directory of ours that may be there already: no part of its path from `.ralph` on is a symbolic link, and
/// it is for the owner alone. `.ralph` itself keeps its mode, since other tools may use it; what does not lie below it
/// is the user's to arrange.
pub(crate) fn check_dir(working_dir: &Path, dir: &Path) -> Result<(), StoreError> {
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
            // Whoever makes it, or writes there, finds out.
            Err(StoreError::Io { source, .. }) if is_missing(&source) => return Ok(()),
            checked => checked?,
        }
    }
    if dir != ralph {
        make_private(dir)?;
    }
    Ok(())
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn refuse_link(path: &Path) -> Result<(), StoreError> {
    let metadata =
        std::fs::symlink_metadata(path).map_err(StoreError::io("look at directory", path))?;
    if metadata.is_symlink() {
        let source = io::Error::other("it is a symbolic link, and those are not followed");
        return Err(StoreError::io("use directory", path)(source));
    }
    Ok(())
}

/// Takes a directory away from all but its owner, if that is us.
fn make_private(dir: &Path) -> Result<(), StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |errno: rustix::io::Errno| StoreError::io("use directory", dir)(errno.into());
    let Ok(opened) = rustix::fs::open(dir, flags, Mode::empty()) else {
        // No directory, or not ours: whoever writes there finds out.
        return Ok(());
    };
    let stat = rustix::fs::fstat(&opened).map_err(failed)?;
    let open_to_others = Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO);
    if open_to_others && stat.st_uid == rustix::process::geteuid().as_raw() {
        rustix::fs::fchmod(&opened, Mode::RWXU).map_err(failed)?;
    }
    Ok(())
}

/// Returns options to open a file of ours: for the owner alone, and never through a symbolic link.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    let no_follow = OFlags::NOFOLLOW.bits();
    options
        .mode(0o600)
        .custom_flags(i32::try_from(no_follow).unwrap_or(0));
    options
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    std::fs::File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(StoreError::sync(path))
}
