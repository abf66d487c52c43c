//! Errors of the store, and their causes.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tachikoma_fs::FsError;

/// Something on disk could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file could not be read, written or synced.
    #[error(transparent)]
    File(#[from] FsError),
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
    /// Returns a constructor of the error for a failed read or write, for `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| {
            let locked = source.get_ref().and_then(|inner| inner.downcast_ref());
            if let Some(Locked(why)) = locked {
                let why = why.clone();
                return Self::Locked { action, path, why };
            }
            FsError::io(action, &path)(source).into()
        }
    }

    /// Returns a constructor of the error for a failed sync, for `map_err`.
    pub fn sync(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let failed = FsError::sync(path);
        move |source| failed(source).into()
    }

    /// Returns whether a write failed because the disk is full, so that it can be retried later. A failed sync is never retried.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        matches!(self, Self::File(FsError::Io { source, .. }) if full.contains(&source.kind()))
    }
}

/// Something is sealed, and the keys to it are not here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Locked(String);

/// Returns the error for a file whose keys are missing.
pub fn locked(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, Locked(why.into()))
}

/// Returns whether an error says that something is sealed and the keys to it are not here.
#[must_use]
pub fn is_locked(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner
        .and_then(|inner| inner.downcast_ref::<Locked>())
        .is_some()
}

/// Returns whether an error that came while a file was read says that the file is damaged.
#[must_use]
pub fn is_damage(error: &io::Error) -> bool {
    error.kind() == ErrorKind::InvalidData
}
