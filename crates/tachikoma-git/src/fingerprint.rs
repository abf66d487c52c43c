//! Cheap change detection: the metadata of every watched file and the names in every watched directory.
//!
//! [`Fingerprint::scan`] records a directory tree. [`Fingerprint::check`] compares the record with the tree and starts no process.
//! It may report an unchanged file, but never misses a change: while the times of a file are too recent to be trusted, its content
//! is compared.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;
use tachikoma_runtime::clock;

use super::head::submodule_stamp;
use super::path::{RepoPath, at};
use super::program::CancelToken;
use super::stamp::{changed_at, stamp};

/// Age in nanoseconds from which file times are trusted. The kernel updates them every ten milliseconds at most. The value allows
/// for a busy machine.
const RACY_NANOS: i64 = 50_000_000;

/// Like `RACY_NANOS`, for a file system that stores whole or even seconds.
const RACY_COARSE_NANOS: i64 = 2_100_000_000;

/// Files above this size in bytes are not read. They count as changed while their times are too recent.
const HASHED_BYTES_MAX: u64 = 32 << 20;

/// Size of the buffer for reading a file, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Number of files from which a second thread is used. Starting a thread takes as long as checking a hundred files.
const TWO_THREADS_MIN_FILES: usize = 1000;

/// The recorded state of a directory tree.
#[derive(Debug, Default)]
pub struct Fingerprint {
    directories: Vec<Directory>,
    /// Nested repositories and submodules, with a stamp of the commit that each has checked out.
    repositories: Vec<(RepoPath, u64)>,
}

#[derive(Debug)]
struct Directory {
    /// Path relative to the top; empty for the top itself.
    path: Box<[u8]>,
    /// Stamp of the directory itself; `None` makes the next check report changed names.
    stamp: Option<u64>,
    /// Whether names can still change without changing the stamp, because the directory changed very recently.
    racy: bool,
    /// Hash of the names and types of all entries.
    listing: u64,
    /// The watched files and symbolic links in the directory.
    files: Vec<(CString, FileMark)>,
}

#[derive(Clone, Copy, Debug)]
struct FileMark {
    stamp: u64,
    content: Content,
}

/// How a change of a file is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Settled,
    /// The file changed so recently that it can change again with the same stamp. Holds the hash of its content.
    Racy(u64),
    /// The file changed so recently that its stamp is not reliable, and its content was not read.
    Unknown,
}

/// A watched file that may have changed.
#[derive(Debug)]
pub struct ChangedFile {
    pub path: RepoPath,
    /// Size of the file in bytes.
    pub size: u64,
}

/// Result of [`Fingerprint::check`].
#[derive(Debug, Default)]
pub struct Check {
    /// Files with other metadata or content.
    pub changed: Vec<ChangedFile>,
    /// Whether a full scan is needed: files were added, removed or replaced by another type, or a nested repository changed.
    pub rescan: bool,
}

/// Result of [`Fingerprint::scan`].
#[derive(Debug, Default)]
pub struct Scan {
    pub fingerprint: Fingerprint,
    /// Files that are new, or have other metadata or content than in the previous scan.
    pub changed: Vec<ChangedFile>,
    /// Files of the previous scan that no longer exist.
    pub gone: Vec<RepoPath>,
}

impl Fingerprint {
    /// Records the tree below `top`. `skip` selects files and directories that are not watched. Changes are reported relative to `before`.
    ///
    /// # Errors
    /// The directory `top` cannot be opened.
    pub fn scan(
        top: &Path,
        before: Self,
        skip: &dyn Fn(&[u8]) -> bool,
        cancel: &CancelToken,
    ) -> io::Result<Scan> {
        let top_fd = rustix::fs::open(top, directory_flags(), Mode::empty())?;
        let observer = Observer::new();
        let mut known = before.into_marks();
        let mut scan = Scan::default();
        let mut pending: Vec<Vec<u8>> = vec![Vec::new()];
        while let Some(path) = pending.pop() {
            if cancel.is_canceled() {
                break;
            }
            // The directory was removed meanwhile. This changed the listing of its parent, so the next check notices it.
            let Ok(fd) = open_directory(&top_fd, &path) else {
                continue;
            };
            let (Ok(stat), Ok(names)) = (rustix::fs::fstat(&fd), names_in(&fd)) else {
                continue;
            };
            let mut directory = Directory {
                stamp: Some(stamp(&stat)),
                racy: observer.is_racy(&stat),
                listing: hash_of(&names),
                files: Vec::new(),
                path: path.into(),
            };
            for (name, kind) in names {
                let path = directory.join(&name);
                if name.to_bytes() == b".git" || skip(&path) {
                    continue;
                }
                match kind {
                    FileType::Directory if is_repository(&top_fd, &path) => {
                        let stamp = submodule_stamp(&at(top, &path));
                        let path = RepoPath::new(&path);
                        scan.fingerprint.repositories.push((path, stamp));
                    }
                    FileType::Directory => pending.push(path),
                    FileType::RegularFile | FileType::Symlink => {
                        let path = RepoPath::new(&path);
                        let Some(seen) = observer.observe(&fd, &name, known.remove(&path)) else {
                            directory.stamp = None;
                            continue;
                        };
                        if seen.changed {
                            let size = seen.size;
                            scan.changed.push(ChangedFile { path, size });
                        }
                        directory.files.push((name, seen.mark));
                    }
                    // Pipes, sockets and devices are skipped.
                    _ => {}
                }
            }
            scan.fingerprint.directories.push(directory);
        }
        scan.gone = known.into_keys().collect();
        Ok(scan)
    }

    /// Compares the record with the tree below `top`, and updates the record of changed files.
    ///
    /// # Errors
    /// The directory `top` cannot be opened.
    pub fn check(&mut self, top: &Path, cancel: &CancelToken) -> io::Result<Check> {
        let top_fd = rustix::fs::open(top, directory_flags(), Mode::empty())?;
        let observer = Observer::new();
        let check_all = |directories: &mut [Directory]| {
            let mut check = Check::default();
            for directory in directories {
                if !cancel.is_canceled() {
                    directory.check(&top_fd, &observer, &mut check);
                }
            }
            check
        };
        let half = match self.files() >= TWO_THREADS_MIN_FILES {
            true => self.directories.len() / 2,
            false => 0,
        };
        let (first, second) = self.directories.split_at_mut(half);
        let mut check = match first.is_empty() {
            true => check_all(second),
            // Nearly all of the time is spent in system calls, which two threads can make in parallel.
            false => std::thread::scope(|scope| {
                let helper = scope.spawn(|| check_all(first));
                let mut check = check_all(second);
                match helper.join() {
                    Ok(more) => {
                        check.changed.extend(more.changed);
                        check.rescan |= more.rescan;
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
                check
            }),
        };
        let moved =
            |(path, stamp): &(RepoPath, u64)| *stamp != submodule_stamp(&top.join(path.as_path()));
        check.rescan = check.rescan || self.repositories.iter().any(moved);
        Ok(check)
    }

    /// Stops watching the files for which `keep` returns false. The next check requests a scan.
    pub fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        for directory in &mut self.directories {
            let files = std::mem::take(&mut directory.files);
            let before = files.len();
            directory.files = files
                .into_iter()
                .filter(|(name, _)| keep(&directory.join(name)))
                .collect();
            if directory.files.len() < before {
                directory.stamp = None;
            }
        }
    }

    /// Returns whether a directory is a nested repository or a submodule.
    pub fn is_repository(&self, path: &[u8]) -> bool {
        self.repositories
            .iter()
            .any(|(known, _)| known.bytes() == path)
    }

    /// Returns the nested repositories and submodules.
    pub fn repositories(&self) -> impl Iterator<Item = &RepoPath> {
        self.repositories.iter().map(|(path, _)| path)
    }

    /// Returns the number of watched files.
    pub fn files(&self) -> usize {
        let directories = self.directories.iter();
        directories.map(|directory| directory.files.len()).sum()
    }

    /// Returns the number of watched directories.
    pub fn directories(&self) -> usize {
        self.directories.len()
    }

    fn into_marks(self) -> HashMap<RepoPath, FileMark> {
        let mut marks = HashMap::with_capacity(self.files());
        for directory in self.directories {
            for (name, mark) in &directory.files {
                marks.insert(RepoPath::new(&directory.join(name)), *mark);
            }
        }
        marks
    }
}

impl Directory {
    fn join(&self, name: &CStr) -> Vec<u8> {
        let mut path = self.path.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        path
    }

    fn check(&mut self, top: &OwnedFd, observer: &Observer, check: &mut Check) {
        let fd = match open_directory(top, &self.path) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                check.rescan = true;
                return;
            }
            // The directory cannot be read now.
            Err(_) => return,
        };
        let Ok(stat) = rustix::fs::fstat(&fd) else {
            return;
        };
        let now = Some(stamp(&stat));
        if self.racy || self.stamp != now {
            let same = names_in(&fd).is_ok_and(|names| hash_of(&names) == self.listing);
            if self.stamp.is_none() || !same {
                self.stamp = None;
                check.rescan = true;
                return;
            }
            self.stamp = now;
            self.racy = observer.is_racy(&stat);
        }
        for at in 0..self.files.len() {
            let (name, mark) = &self.files[at];
            let Some(seen) = observer.observe(&fd, name, Some(*mark)) else {
                check.rescan = true;
                continue;
            };
            if seen.changed {
                check.changed.push(ChangedFile {
                    path: RepoPath::new(&self.join(name)),
                    size: seen.size,
                });
            }
            self.files[at].1 = seen.mark;
        }
    }
}

/// Compares files with their recorded marks.
struct Observer {
    /// A file that changed at this time or later can change again with the same stamp; nanoseconds since 1970.
    racy_since: i64,
    /// Like `racy_since`, for a file system that stores no fractions of a second.
    racy_since_coarse: i64,
}

struct Observed {
    mark: FileMark,
    changed: bool,
    size: u64,
}

impl Observer {
    fn new() -> Self {
        let now = clock::file_time();
        Self {
            racy_since: now.saturating_sub(RACY_NANOS),
            racy_since_coarse: now.saturating_sub(RACY_COARSE_NANOS),
        }
    }

    fn is_racy(&self, stat: &Stat) -> bool {
        let (at, is_fine) = changed_at(stat);
        let limit = match is_fine {
            true => self.racy_since,
            false => self.racy_since_coarse,
        };
        at >= limit
    }

    /// Compares a file with its last mark. `None` if it is not a file or a symbolic link now.
    fn observe(&self, dir: &OwnedFd, name: &CStr, before: Option<FileMark>) -> Option<Observed> {
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return None,
            // The file cannot be examined now.
            Err(_) => {
                return before.map(|mark| Observed {
                    mark,
                    changed: false,
                    size: 0,
                });
            }
        };
        let stamp = stamp(&stat);
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let same = before.filter(|mark| mark.stamp == stamp);
        if let Some(mark) = same.filter(|mark| mark.content == Content::Settled) {
            let changed = false;
            return Some(Observed {
                mark,
                changed,
                size,
            });
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Symlink) {
            return None;
        }
        let is_racy = self.is_racy(&stat);
        let hash = match is_racy || same.is_some() {
            true => content_hash(dir, name, kind, size),
            false => None,
        };
        let changed = match (same.map(|mark| mark.content), hash) {
            (Some(Content::Racy(before)), Some(now)) => before != now,
            _ => true,
        };
        let content = match (is_racy, hash) {
            (false, _) => Content::Settled,
            (true, Some(hash)) => Content::Racy(hash),
            (true, None) => Content::Unknown,
        };
        let mark = FileMark { stamp, content };
        Some(Observed {
            mark,
            changed,
            size,
        })
    }
}

/// Hashes the content of a file or the target of a link. `None` if it cannot be read or is too large.
fn content_hash(dir: &OwnedFd, name: &CStr, kind: FileType, size: u64) -> Option<u64> {
    if kind == FileType::Symlink {
        let target = readlinkat(dir, name, Vec::new()).ok()?;
        let mut hasher = DefaultHasher::new();
        hasher.write(target.to_bytes());
        return Some(hasher.finish());
    }
    if size > HASHED_BYTES_MAX {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    hash_file(openat(dir, name, flags, Mode::empty()).ok()?.into())
}

/// Hashes the content of a file. `None` if it cannot be read or is too large.
pub fn hash_file(mut file: File) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut left = HASHED_BYTES_MAX;
    loop {
        let read = file.read(&mut chunk).ok()?;
        if read == 0 {
            return Some(hasher.finish());
        }
        hasher.write(&chunk[..read]);
        left = left.checked_sub(read as u64)?;
    }
}

/// Returns whether a directory is the top of a git work tree.
pub fn is_repository(fd: impl AsFd, dir: &[u8]) -> bool {
    let mut link = dir.to_vec();
    link.extend_from_slice(b"/.git");
    match statat(&fd, link.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            link.extend_from_slice(b"/HEAD");
            statat(&fd, link.as_slice(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn open_directory(top: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    openat(top, path, directory_flags(), Mode::empty())
}

/// Lists a directory, sorted by name.
fn names_in(fd: &OwnedFd) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            // Not every file system stores the file type in the directory entry.
            FileType::Unknown => match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(_) => FileType::Unknown,
            },
            kind => kind,
        };
        names.push((name.to_owned(), kind));
    }
    names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(names)
}

fn hash_of(names: &[(CString, FileType)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, kind) in names {
        hasher.write(name.to_bytes_with_nul());
        kind.as_raw_mode().hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
