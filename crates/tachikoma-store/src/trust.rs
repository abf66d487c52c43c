//! Decisions of a user about a working directory: which configurations may run programs, and which loops the user started. They
//! are stored outside of the working directory, because a clone or an agent may write there.
//!
//! Each working directory has its own directory of decisions, and each decision is a file. The file name contains the decision;
//! the text inside is for users.

use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tachikoma_core::LoopId;
use tachikoma_fs::{is_missing, make_dir, owner, private, sync_dir};

use super::StoreError;
use tachikoma_config::digest;

/// Maximum number of decisions about one directory. The oldest are removed first, and the user is asked again.
const AGREEMENTS_MAX: usize = 200;

/// Name of the file that contains the path of the working directory, for users.
const PATH: &str = "path";

/// A decision of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Settings with this digest may name programs and relax permissions.
    Configuration([u8; 32]),
    /// The user started this loop in this directory, or adopted it.
    Loop(LoopId),
    /// The user gave a setting with this digest on the command line of this loop.
    Override(LoopId, [u8; 32]),
}

impl Agreement {
    /// Returns the decision for a command-line setting of a loop, from its key and its value as TOML.
    #[must_use]
    pub fn to_override(loop_id: LoopId, key: &str, value: &str) -> Self {
        Self::Override(loop_id, digest([key, value]))
    }

    fn name(&self) -> String {
        match self {
            Self::Configuration(digest) => format!("configuration-{}", hex(digest)),
            Self::Loop(loop_id) => loop_id.to_string(),
            Self::Override(loop_id, digest) => format!("{loop_id}-{}", hex(digest)),
        }
    }
}

/// Directories of new decisions, which have to be synced.
#[derive(Debug)]
#[must_use]
pub struct Added(Vec<PathBuf>);

impl Added {
    /// Syncs the decisions.
    ///
    /// # Errors
    /// A directory cannot be synced.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|dir| sync_dir(dir))?;
        Ok(())
    }
}

/// The decisions about one working directory.
#[derive(Clone, Debug)]
pub struct Agreements {
    working_dir: PathBuf,
    /// The directory with the decisions about all working directories.
    all: PathBuf,
    folder: PathBuf,
}

impl Agreements {
    /// Returns the decisions about a working directory, which must be a canonical path. `state_dir` is the state directory of the user.
    #[must_use]
    pub fn of(state_dir: &Path, working_dir: &Path) -> Self {
        let all = state_dir.join("trust");
        Self {
            folder: all.join(hex(&digest([working_dir.as_os_str().as_bytes()]))),
            working_dir: working_dir.to_owned(),
            all,
        }
    }

    /// Returns whether the user made this decision. False if other users can write to the directory of decisions.
    #[must_use]
    pub fn have(&self, agreement: &Agreement) -> bool {
        let path = self.folder.join(agreement.name());
        std::fs::symlink_metadata(path).is_ok_and(|there| there.is_file() && is_own(&there))
            && [&self.all, &self.folder]
                .into_iter()
                .all(|dir| is_private(dir))
    }

    /// Writes decisions. They are visible at once, and durable after [`Added::sync`].
    ///
    /// # Errors
    /// A decision cannot be written, or other users can write to the directory of decisions.
    pub fn add(&self, agreements: &[Agreement]) -> Result<Added, StoreError> {
        let made = self.folder.ancestors().take_while(|dir| !dir.exists());
        let made = made.filter_map(Path::parent).map(Path::to_owned);
        let added = Added(std::iter::once(self.folder.clone()).chain(made).collect());
        make_dir(&self.folder)?;
        for dir in [&self.all, &self.folder] {
            if !is_private(dir) {
                let source = std::io::Error::other("other users can write to it");
                return Err(StoreError::io("use directory", dir)(source));
            }
        }
        let text = format!("{}\n", self.working_dir.display());
        let names: Vec<String> = agreements.iter().map(Agreement::name).collect();
        for name in [PATH].into_iter().chain(names.iter().map(String::as_str)) {
            let path = self.folder.join(name);
            match private().write(true).create_new(true).open(&path) {
                // The content only repeats the name, so an incomplete file is valid.
                Ok(mut file) => {
                    let _ = file.write_all(text.as_bytes());
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(StoreError::io("create", &path)(error)),
            }
        }
        self.prune(&names);
        Ok(added)
    }

    /// Removes all decisions about the working directory. Returns whether there were any.
    ///
    /// # Errors
    /// The decisions cannot be removed.
    pub fn forget(&self) -> Result<bool, StoreError> {
        match std::fs::remove_dir_all(&self.folder) {
            Ok(()) => {
                sync_dir(&self.all)?;
                Ok(true)
            }
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(StoreError::io("delete", &self.folder)(error)),
        }
    }

    fn prune(&self, newest: &[String]) {
        let entries = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten();
        let is_other = |name: &std::ffi::OsStr| {
            name != PATH && !newest.iter().any(|newest| name == newest.as_str())
        };
        let mut others: Vec<_> = entries
            .filter(|entry| is_other(&entry.file_name()))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        others.sort();
        let excess = others
            .len()
            .saturating_sub(AGREEMENTS_MAX.saturating_sub(newest.len()));
        for (_, path) in &others[..excess] {
            // An old decision that cannot be removed is harmless.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_own(there: &std::fs::Metadata) -> bool {
    owner::is_ours(there.uid())
}

/// Returns whether a directory belongs to this user and only the user can write to it.
fn is_private(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir)
        .is_ok_and(|there| there.is_dir() && is_own(&there) && there.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ONE: Agreement = Agreement::Configuration([1; 32]);

    #[test]
    fn agreement_applies_to_one_directory_and_one_digest() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let here = Agreements::of(&state, Path::new("/here"));
        assert!(!here.have(&ONE));
        let added = here.add(&[ONE]).unwrap();
        assert_eq!(added.0.len(), 4, "three directories were created");
        added.sync().unwrap();
        let again = here.add(&[ONE]).unwrap();
        assert_eq!(again.0.len(), 1);
        assert!(here.have(&ONE));
        assert!(!here.have(&Agreement::Configuration([2; 32])));
        assert!(!Agreements::of(&state, Path::new("/there")).have(&ONE));
        let of_loop = |number| Agreement::Loop(LoopId::from_u128(number));
        let _ = here.add(&[of_loop(1)]).unwrap();
        assert!(here.have(&of_loop(1)) && !here.have(&of_loop(2)));
        assert!(here.forget().unwrap());
        assert!(!here.have(&ONE) && !here.forget().unwrap());
    }

    #[test]
    fn agreements_in_a_directory_writable_by_others_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let here = Agreements::of(dir.path(), Path::new("/here"));
        let _ = here.add(&[ONE]).unwrap();
        for open in [here.all.clone(), here.folder.clone()] {
            std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
            assert!(!here.have(&ONE), "{}", open.display());
            let error = here.add(&[ONE]).unwrap_err();
            assert!(error.to_string().contains("use directory"), "{error}");
            std::fs::set_permissions(&open, Permissions::from_mode(0o700)).unwrap();
        }
        let file = here.folder.join(ONE.name());
        std::fs::rename(&file, here.folder.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(here.folder.join("elsewhere"), &file).unwrap();
        assert!(!here.have(&ONE), "a symbolic link is ignored");
    }

    #[test]
    fn agreements_are_bounded_and_the_newest_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let here = Agreements::of(dir.path(), Path::new("/here"));
        let number = |number: usize| Agreement::Loop(LoopId::from_u128(number as u128));
        for made in 0..AGREEMENTS_MAX + 20 {
            let _ = here.add(&[number(made)]).unwrap();
            assert!(here.have(&number(made)));
        }
        let kept = std::fs::read_dir(&here.folder).unwrap().count();
        assert_eq!(
            kept,
            AGREEMENTS_MAX + 1,
            "the limit, plus the file that names the directory"
        );
    }
}
