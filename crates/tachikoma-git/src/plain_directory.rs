//! Finds changes in a working directory without a repository, from the files alone.
//!
//! Only the loop's own files are ignored. No record is stored for the next runner.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::fingerprint::{Fingerprint, Scan, hash_file};
use super::path::{RepoPath, is_ours};
use super::program::CancelToken;
use super::runtime_files::RuntimeFiles;

/// Maximum number of files and directories. Checking that many takes half a second, twice in each iteration.
#[cfg(not(test))]
const ENTRIES_MAX: usize = 200_000;

/// Lower limit of files and directories for tests.
#[cfg(test)]
const ENTRIES_MAX: usize = 200;

/// A working directory and its state at the last check.
#[derive(Debug)]
pub struct PlainDirectory {
    top: PathBuf,
    /// Files that the loop writes.
    runtime_files: RuntimeFiles,
    fingerprint: Fingerprint,
    /// Hashes of the files that changed. Writing the same content again is not a change.
    contents: HashMap<RepoPath, u64>,
}

/// Why changes cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum PlainDirectoryError {
    /// The directory cannot be read.
    #[error("read directory {}", path.display())]
    Io {
        /// Path of the directory.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The directory has too many files.
    #[error("there are more than {ENTRIES_MAX} files in {}; create a git repository with a .gitignore", path.display())]
    TooMany {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The scan was canceled.
    #[error("the scan of {} was canceled", path.display())]
    Canceled {
        /// Path of the directory.
        path: PathBuf,
    },
}

impl PlainDirectory {
    /// Scans a directory. `own` are the files that the loop itself writes. They are ignored. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read, or has too many files.
    pub fn open(
        top: &Path,
        own: &RuntimeFiles,
        cancel: &CancelToken,
    ) -> Result<Self, PlainDirectoryError> {
        let mut plain = Self {
            top: top.to_owned(),
            runtime_files: own.clone(),
            fingerprint: Fingerprint::default(),
            contents: HashMap::new(),
        };
        plain.scan(cancel)?;
        Ok(plain)
    }

    /// Returns the files that were added, changed or removed since the last check. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read, or has too many files.
    pub fn find_changes(
        &mut self,
        cancel: &CancelToken,
    ) -> Result<Vec<RepoPath>, PlainDirectoryError> {
        let (changed, gone) = self.changes(cancel)?;
        for path in &gone {
            self.contents.remove(path);
        }
        let mut files = gone;
        for path in changed {
            let hash = self.hash(&path);
            let same = hash.is_some() && self.contents.get(&path).copied() == hash;
            match hash {
                Some(hash) => self.contents.insert(path.clone(), hash),
                None => self.contents.remove(&path),
            };
            if !same {
                files.push(path);
            }
        }
        Ok(files)
    }

    /// Returns the files that changed or are new, and the files that were removed.
    fn changes(
        &mut self,
        cancel: &CancelToken,
    ) -> Result<(Vec<RepoPath>, Vec<RepoPath>), PlainDirectoryError> {
        let check = self.fingerprint.check(&self.top, cancel);
        let check = check.map_err(|error| self.failed(error))?;
        let mut changed: Vec<RepoPath> = check.changed.into_iter().map(|file| file.path).collect();
        let mut gone = Vec::new();
        if check.rescan {
            let scan = self.scan(cancel)?;
            changed.extend(scan.changed.into_iter().map(|file| file.path));
            gone = scan.gone;
        }
        if cancel.is_canceled() {
            let path = self.top.clone();
            return Err(PlainDirectoryError::Canceled { path });
        }
        Ok((changed, gone))
    }

    /// Scans the directory and stores its fingerprint.
    fn scan(&mut self, cancel: &CancelToken) -> Result<Scan, PlainDirectoryError> {
        let skip = |path: &[u8]| is_ours(path) || self.runtime_files.has(&self.top, path);
        let before = mem::take(&mut self.fingerprint);
        let scan = Fingerprint::scan(&self.top, before, &skip, cancel);
        let mut scan = scan.map_err(|error| self.failed(error))?;
        self.fingerprint = mem::take(&mut scan.fingerprint);
        if self.fingerprint.files() + self.fingerprint.directories() > ENTRIES_MAX {
            let path = self.top.clone();
            return Err(PlainDirectoryError::TooMany { path });
        }
        Ok(scan)
    }

    fn failed(&self, source: io::Error) -> PlainDirectoryError {
        let path = self.top.clone();
        PlainDirectoryError::Io { path, source }
    }

    /// Hashes the content of a file. `None` if it is not a file, or too large to be read.
    fn hash(&self, path: &RepoPath) -> Option<u64> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.top.join(path.as_path()), flags, Mode::empty());
        hash_file(file.ok()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn opened(top: &Path) -> PlainDirectory {
        let own = RuntimeFiles::new(&top.join("state.json"), &top.join("out"), &top.join("kept"));
        PlainDirectory::open(top, &own, &CancelToken::new()).unwrap()
    }

    fn changed(plain: &mut PlainDirectory) -> usize {
        plain.find_changes(&CancelToken::new()).unwrap().len()
    }

    #[test]
    fn added_changed_and_removed_files_are_counted_once() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        fs::create_dir_all(top.join("src/deep")).unwrap();
        fs::write(top.join("src/a"), "1").unwrap();
        let mut plain = opened(top);
        assert_eq!(changed(&mut plain), 0);
        fs::write(top.join("src/a"), "2").unwrap();
        fs::write(top.join("src/deep/b"), "1").unwrap();
        fs::create_dir_all(top.join("new/below")).unwrap();
        fs::write(top.join("new/below/c"), "1").unwrap();
        std::os::unix::fs::symlink("a", top.join("src/link")).unwrap();
        assert_eq!(changed(&mut plain), 4);
        assert_eq!(changed(&mut plain), 0);
        fs::remove_dir_all(top.join("src")).unwrap();
        assert_eq!(changed(&mut plain), 3);
        assert_eq!(changed(&mut plain), 0);
    }

    /// Each edit keeps the file size and happens within one tick of the clock for file times.
    #[test]
    fn plain_directory_detects_every_quick_edit() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("a");
        let mut plain = opened(scratch.path());
        for round in 0..200 {
            fs::write(&file, format!("{round:05}")).unwrap();
            assert_eq!(changed(&mut plain), 1, "round {round}");
        }
    }

    #[test]
    fn rewriting_the_same_content_is_not_a_change() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("report.txt");
        let mut plain = opened(scratch.path());
        fs::write(&file, "the same").unwrap();
        assert_eq!(changed(&mut plain), 1);
        for _ in 0..3 {
            fs::remove_file(&file).unwrap();
            fs::write(&file, "the same").unwrap();
            assert_eq!(changed(&mut plain), 0);
        }
        fs::write(&file, "another").unwrap();
        assert_eq!(changed(&mut plain), 1);
    }

    #[test]
    fn runtime_files_do_not_count_as_changes() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        let mut plain = opened(top);
        let transcripts = format!("out/{}", tachikoma_core::LoopId::from_u128(1));
        for dir in [".ralph/loops", &transcripts, ".git/objects"] {
            fs::create_dir_all(top.join(dir)).unwrap();
            fs::write(top.join(dir).join("file"), "x").unwrap();
        }
        assert_eq!(changed(&mut plain), 0);
        fs::write(top.join("out/result"), "x").unwrap();
        assert_eq!(changed(&mut plain), 1);
    }

    #[test]
    fn directory_with_too_many_files_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        for number in 0..150 {
            fs::write(top.join(format!("{number}")), "").unwrap();
        }
        let mut plain = opened(top);
        for number in 150..250 {
            fs::write(top.join(format!("{number}")), "").unwrap();
        }
        let error = plain.find_changes(&CancelToken::new()).unwrap_err();
        assert!(
            matches!(error, PlainDirectoryError::TooMany { .. }),
            "{error}"
        );
    }

    #[test]
    fn pipes_and_dangling_links_are_tolerated() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        let mut plain = opened(top);
        std::os::unix::fs::symlink("nowhere", top.join("link")).unwrap();
        std::os::unix::fs::symlink(".", top.join("loop")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            top.join("pipe"),
            Mode::from_raw_mode(0o600),
        )
        .unwrap();
        assert_eq!(changed(&mut plain), 2);
        assert_eq!(changed(&mut plain), 0);
    }
}
