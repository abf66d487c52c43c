//! Files that are left out of auto-commits, snapshots and rollbacks: protected files (by default `.env*`, `*.pem`, `*.key` and `secrets/**`),
//! new files above 50 MiB (`git.max_file_bytes`), and the loop's own files.
//! Other modules leave out: ignored files and new files beyond 1 GiB in all (`known_tree`), changes of the user
//! (`change_owner`), files that cannot be read (`index`), and nested repositories (`commit`).

use std::path::Path;

use super::path::is_ours;
use super::runtime_files::RuntimeFiles;
use tachikoma_config::{Protected, ProtectedError, Settings};

/// Patterns and limits for files that are left out.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Protected files, which are never stored in snapshots or commits and never replaced by rollbacks.
    pub protected: Protected,
    /// Maximum size in bytes of new files that are stored; 0 = no limit.
    pub max_file_bytes: u64,
    /// Files that the loop writes.
    pub runtime_files: RuntimeFiles,
}

/// Settings from which [`Rules`] are built. Compiling the patterns takes time, and most callers do not need them.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    protected: Vec<String>,
    max_file_bytes: u64,
    /// Files that the loop writes.
    pub runtime_files: RuntimeFiles,
}

impl Bounds {
    /// Returns the settings for a working directory.
    #[must_use]
    pub fn of(settings: &Settings, working_dir: &Path) -> Self {
        let (git, state) = (&settings.git, &settings.state);
        Self {
            protected: git.protected.clone(),
            max_file_bytes: git.max_file_bytes,
            runtime_files: RuntimeFiles::new(
                &working_dir.join(&state.state_path),
                &working_dir.join(&settings.session.state_dir),
                &working_dir.join(&state.backup_dir),
            ),
        }
    }

    /// Compiles the patterns and returns the rules.
    ///
    /// # Errors
    /// A pattern is invalid.
    pub fn rules(&self) -> Result<Rules, ProtectedError> {
        Ok(Rules {
            protected: Protected::new(&self.protected)?,
            max_file_bytes: self.max_file_bytes,
            runtime_files: self.runtime_files.clone(),
        })
    }
}

impl Rules {
    /// Returns whether a path is never read or changed.
    pub fn is_off_limits(&self, top: &Path, path: &[u8]) -> bool {
        self.is_runtime_file(top, path) || self.protected.has(path)
    }

    /// Returns whether the loop itself writes a path.
    pub(crate) fn is_runtime_file(&self, top: &Path, path: &[u8]) -> bool {
        is_ours(path) || self.runtime_files.has(top, path)
    }

    /// Returns whether a new file of this size is left out.
    pub(crate) fn is_huge(&self, bytes: u64) -> bool {
        self.max_file_bytes > 0 && bytes > self.max_file_bytes
    }

    /// Returns the rules for the work tree at `top`. If the loop writes no files there, the check for them is skipped.
    pub(crate) fn within(self, top: &Path) -> Self {
        let runtime_files = self.runtime_files.below(top);
        Self {
            runtime_files,
            ..self
        }
    }
}
