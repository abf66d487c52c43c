//! A working directory without a repository: what changed in it, by its files alone.
//!
//! Nothing is ignored there but the loop's own files, and nothing is remembered from one runner to the next.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _};
use std::mem;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, openat};

use super::fingerprint::{Dir, What};
use super::path::{RepoPath, is_ours};
use super::program::CancelToken;
use super::runtime_files::RuntimeFiles;
use super::walk::{Walk, is_nested};
use super::walk_result::NewFileBudget;

/// Files and directories that are looked at. A look at as many takes half a second, twice in each iteration; more of them are
/// no project but somebody's home.
#[cfg(not(test))]
const ENTRIES_MAX: usize = 200_000;

/// So that tests need not make them.
#[cfg(test)]
const ENTRIES_MAX: usize = 200;

/// Files that are written anew are compared by what they have, up to this. A larger one counts as changed.
const HASHED_BYTES_MAX: u64 = 32 << 20;

/// What one read takes.
const CHUNK_BYTES: usize = 64 << 10;

/// A working directory, as it was when it was last looked at.
#[derive(Debug)]
pub struct PlainDirectory {
    top: PathBuf,
    /// What the loop itself writes, from the top.
    runtime_files: RuntimeFiles,
    root: Dir,
    entries: usize,
    /// Hashes of what files had when they last changed: whoever writes the same again has changed nothing.
    contents: HashMap<RepoPath, u64>,
}

/// Why nobody knows what changed.
#[derive(Debug, thiserror::Error)]
pub enum PlainDirectoryError {
    /// It cannot be looked at.
    #[error("look at directory {}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is too much in it.
    #[error("there are more than {ENTRIES_MAX} files in {}; a git repository says which of them matter", path.display())]
    TooMany {
        /// Which one.
        path: PathBuf,
    },
    /// Nobody waits for it any more.
    #[error("the look at {} was called off", path.display())]
    Canceled {
        /// Which one.
        path: PathBuf,
    },
}

impl PlainDirectory {
    /// Looks at a directory for the first time. `own` is what the loop writes there. Blocks.
    ///
    /// # Errors
    /// It cannot be looked at, or has too much in it.
    pub fn open(
        top: &Path,
        own: &RuntimeFiles,
        cancel: &CancelToken,
    ) -> Result<Self, PlainDirectoryError> {
        let mut plain = Self {
            top: top.to_owned(),
            runtime_files: own.clone(),
            root: Dir::default(),
            entries: 0,
            contents: HashMap::new(),
        };
        plain.walk(cancel)?;
        Ok(plain)
    }

    /// Returns the files that are other than when they were last looked at, that came or that went. Blocks.
    ///
    /// # Errors
    /// It cannot be looked at, or has too much in it.
    pub fn look(&mut self, cancel: &CancelToken) -> Result<Vec<RepoPath>, PlainDirectoryError> {
        let (changed, gone) = self.walk(cancel)?;
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

    /// Returns what changed or came, and what went.
    fn walk(
        &mut self,
        cancel: &CancelToken,
    ) -> Result<(Vec<RepoPath>, Vec<RepoPath>), PlainDirectoryError> {
        let path = || self.top.clone();
        let failed = |errno: rustix::io::Errno| PlainDirectoryError::Io {
            path: path(),
            source: errno.into(),
        };
        let mut walk = Walk::new(NewFileBudget::new(0), cancel);
        walk.walk(&self.top, b"", &mut self.root).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(&self.top, flags, Mode::empty()).map_err(failed)?;
        // Each round is a level deeper.
        while !walk.seen.new.is_empty() {
            for new in mem::take(&mut walk.seen.new) {
                let name = new.path.bytes();
                self.entries += 1;
                let what = match new.kind {
                    _ if is_ours(name) || self.runtime_files.has(&self.top, name) => What::Left,
                    FileType::Directory if is_nested(&top, name) => What::Nested,
                    FileType::Directory => {
                        let mut dir = Box::<Dir>::default();
                        // One that went in the meantime is found to be gone by the next walk.
                        let _ = walk.walk(&self.top, name, &mut dir);
                        What::Dir(dir)
                    }
                    FileType::RegularFile | FileType::Symlink => {
                        match walk.first_look(&top, &new.path) {
                            Some(mark) => What::File(mark),
                            None => continue,
                        }
                    }
                    kind => What::Odd(kind),
                };
                self.root.put(name, what);
            }
            if self.entries > ENTRIES_MAX {
                return Err(PlainDirectoryError::TooMany { path: path() });
            }
        }
        if cancel.is_canceled() {
            return Err(PlainDirectoryError::Canceled { path: path() });
        }
        let seen = walk.seen;
        self.entries = self.entries.saturating_sub(seen.gone.len());
        let changed = seen.changed.into_iter().map(|changed| changed.path);
        Ok((changed.collect(), seen.gone))
    }

    /// A hash of what a file has, if it is a file of a size that can be read.
    fn hash(&self, path: &RepoPath) -> Option<u64> {
        let top = rustix::fs::open(&self.top, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(top.ok()?, path.as_path(), flags, Mode::empty());
        let file: File = opened.ok()?.into();
        let mut file = file.take(HASHED_BYTES_MAX + 1);
        let mut hasher = DefaultHasher::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut read = 0;
        loop {
            let part = file.read(&mut chunk).ok()?;
            if part == 0 {
                return Some(hasher.finish());
            }
            read += part as u64;
            if read > HASHED_BYTES_MAX {
                return None;
            }
            hasher.write(&chunk[..part]);
        }
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

    fn look(plain: &mut PlainDirectory) -> usize {
        plain.look(&CancelToken::new()).unwrap().len()
    }

    #[test]
    fn files_that_come_change_and_go_are_counted_once() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        fs::create_dir_all(top.join("src/deep")).unwrap();
        fs::write(top.join("src/a"), "1").unwrap();
        let mut plain = opened(top);
        assert_eq!(look(&mut plain), 0);
        fs::write(top.join("src/a"), "2").unwrap();
        fs::write(top.join("src/deep/b"), "1").unwrap();
        fs::create_dir_all(top.join("new/below")).unwrap();
        fs::write(top.join("new/below/c"), "1").unwrap();
        std::os::unix::fs::symlink("a", top.join("src/link")).unwrap();
        assert_eq!(look(&mut plain), 4);
        assert_eq!(look(&mut plain), 0);
        fs::remove_dir_all(top.join("src")).unwrap();
        assert_eq!(look(&mut plain), 3);
        assert_eq!(look(&mut plain), 0);
    }

    /// A clock that stands still, and the same number of bytes.
    #[test]
    fn a_change_is_seen_however_soon_it_comes() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("a");
        let mut plain = opened(scratch.path());
        for round in 0..200 {
            fs::write(&file, format!("{round:05}")).unwrap();
            assert_eq!(look(&mut plain), 1, "round {round}");
        }
    }

    #[test]
    fn the_same_written_again_is_no_change() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("report.txt");
        let mut plain = opened(scratch.path());
        fs::write(&file, "the same").unwrap();
        assert_eq!(look(&mut plain), 1);
        for _ in 0..3 {
            fs::remove_file(&file).unwrap();
            fs::write(&file, "the same").unwrap();
            assert_eq!(look(&mut plain), 0);
        }
        fs::write(&file, "another").unwrap();
        assert_eq!(look(&mut plain), 1);
    }

    #[test]
    fn what_the_loop_writes_itself_is_no_work() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        let mut plain = opened(top);
        let transcripts = format!("out/{}", tachikoma_core::LoopId::from_u128(1));
        for dir in [".ralph/loops", &transcripts, ".git/objects"] {
            fs::create_dir_all(top.join(dir)).unwrap();
            fs::write(top.join(dir).join("file"), "x").unwrap();
        }
        assert_eq!(look(&mut plain), 0);
        fs::write(top.join("out/result"), "x").unwrap();
        assert_eq!(look(&mut plain), 1);
    }

    #[test]
    fn too_many_files_are_said_and_not_looked_at() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        for number in 0..150 {
            fs::write(top.join(format!("{number}")), "").unwrap();
        }
        let mut plain = opened(top);
        for number in 150..250 {
            fs::write(top.join(format!("{number}")), "").unwrap();
        }
        let error = plain.look(&CancelToken::new()).unwrap_err();
        assert!(
            matches!(error, PlainDirectoryError::TooMany { .. }),
            "{error}"
        );
    }

    #[test]
    fn pipes_and_dead_links_harm_nobody() {
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
        assert_eq!(look(&mut plain), 2);
        assert_eq!(look(&mut plain), 0);
    }
}
