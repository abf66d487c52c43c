//! What a walk saw, and how much of it there is room for.

use rustix::fs::FileType;

use super::path::RepoPath;

/// What all new files together may have that are kept and not committed. More was not written by an agent.
#[cfg(not(test))]
const NEW_BYTES_MAX: u64 = 1 << 30;

/// So that tests need not write it.
#[cfg(test)]
const NEW_BYTES_MAX: u64 = 64 << 10;

/// What a walk saw.
#[derive(Debug, Default)]
pub struct WalkResult {
    /// Watched files and submodules that are there and may have changed.
    pub changed: Vec<Changed>,
    /// Watched files and submodules that are not there any more.
    pub gone: Vec<RepoPath>,
    /// Names that nobody knows yet.
    pub new: Vec<New>,
    /// New files for which there is no room.
    pub crowded: Vec<RepoPath>,
    /// Protected files that came or changed, for which nothing is done.
    pub protected: Vec<RepoPath>,
    /// Whether what is ignored may be another than before.
    pub rules: bool,
}

#[derive(Debug)]
pub struct Changed {
    pub path: RepoPath,
    pub size: u64,
}

#[derive(Debug)]
pub struct New {
    pub path: RepoPath,
    pub kind: FileType,
}

impl WalkResult {
    /// Takes in what another walk saw.
    pub fn extend(&mut self, other: Self) {
        self.changed.extend(other.changed);
        self.gone.extend(other.gone);
        self.new.extend(other.new);
        self.crowded.extend(other.crowded);
        self.protected.extend(other.protected);
        self.rules |= other.rules;
    }

    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.gone.is_empty() && self.new.is_empty()
    }
}

/// New files are kept as they come. Data that nobody thought of ignoring must not fill the disk with copies.
#[derive(Clone, Copy, Debug)]
pub struct NewFileBudget {
    left: u64,
    /// A larger file is left out for itself; 0 is for no limit.
    file_max: u64,
}

impl NewFileBudget {
    pub fn new(file_max: u64) -> Self {
        Self {
            left: NEW_BYTES_MAX,
            file_max,
        }
    }

    /// Takes up room for a file; returns whether there was enough.
    pub fn take(&mut self, size: u64) -> bool {
        if self.file_max == 0 || size > self.file_max {
            return true;
        }
        let left = self.left.checked_sub(size);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}
