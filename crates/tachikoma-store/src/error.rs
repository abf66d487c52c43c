//! Errors of the store, and their causes.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tachikoma_fs::FsError;

/// A stored file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file could not be read, written or synced.
    #[error(transparent)]
    File(#[from] FsError),
    /// A line of the journal is damaged.
    #[error("journal {} is damaged at line {line}: {what}", path.display())]
    Damaged {
        /// Path of the journal segment.
        path: PathBuf,
        /// Number of the damaged line, from 1.
        line: usize,
        /// Description of the damage.
        what: String,
    },
    /// The snapshot is damaged.
    #[error("snapshot {} is damaged: {what}", path.display())]
    DamagedSnapshot {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// The snapshot was written by a newer version.
    #[error("snapshot {} has version {found}; this version reads up to {supported}", path.display())]
    NewerSnapshot {
        /// Path of the file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// The newest format version that this program can read.
        supported: u32,
    },
    /// A backup is damaged.
    #[error("backup {} is damaged: {what}", path.display())]
    DamagedBackup {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// A backup was written by a newer version.
    #[error("backup {} has format {found}; this version reads up to {supported}", path.display())]
    NewerBackup {
        /// Path of the file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// The newest format version that this program can read.
        supported: u32,
    },
    /// A file is encrypted, and its keys are missing.
    #[error("{action} {}: {why}", path.display())]
    Locked {
        /// Name of the operation that failed.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Why no key decrypts the file.
        why: String,
    },
    /// The journal was written by a newer version.
    #[error("journal {} has format {found}; this version reads up to {supported}", path.display())]
    Newer {
        /// Path of the journal segment.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// The newest format version that this program can read.
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

    /// Returns the error for a damaged line of a journal segment.
    pub fn damaged(path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            line,
            what: what.into(),
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

/// Source of an I/O error: the file is encrypted, and its keys are missing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Locked(String);

/// Returns the I/O error for missing keys.
pub fn locked(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, Locked(why.into()))
}

/// Returns whether an error says that a file is encrypted and its keys are missing.
#[must_use]
pub fn is_locked(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(inner) if inner.is::<Locked>())
}

/// Returns whether an error during a read says that the file is damaged.
#[must_use]
pub fn is_damage(error: &io::Error) -> bool {
    error.kind() == ErrorKind::InvalidData
}
