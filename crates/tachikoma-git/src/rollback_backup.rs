//! Files of the work tree as they were before a rollback, byte for byte: with them what has begun is undone without any filter of the
//! repository. They lie in the directory of the loop for as long as the rollback takes, and outlive whoever dies over it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use tachikoma_fs::atomic_file::{self, Durability};
use tachikoma_fs::{FsError, make_dir};

use super::path::{ancestors, at, is_there, parts};
use super::program::GitError;
use super::snapshots::Moment;

/// Where a rollback puts them, in the directory of its loop.
const FIRST: &str = "rolling-back";

/// Where one puts them that makes up for another, whose own must stay.
const AGAIN: &str = "rolling-back-again";

/// Says what they are. Without it nothing was changed yet.
const LIST: &str = "list";

/// Where they lie, in the directory of the loop.
pub const DIRS: [&str; 2] = [FIRST, AGAIN];

/// Whether it is a name of a file there.
pub fn is_ours(name: &str) -> bool {
    name == LIST || atomic_file::is_temporary(name) || name.parse::<usize>().is_ok()
}

/// Files that are set aside.
#[derive(Debug)]
pub struct RollbackBackup {
    dir: PathBuf,
    top: PathBuf,
    /// What was there; the n-th is the file `n`.
    was: Vec<Vec<u8>>,
    /// What was not.
    came: Vec<Vec<u8>>,
    /// Directories that were not, those above first.
    made: Vec<Vec<u8>>,
}

impl RollbackBackup {
    /// Finds what a rollback to a moment has left that somebody died over.
    #[must_use]
    pub fn left_behind(loop_dir: &Path, to: Moment) -> Option<Self> {
        let dir = loop_dir.join(FIRST);
        let list = fs::read(dir.join(LIST)).ok()?;
        let mut parts = parts(&list);
        if parts.next()? != to.to_string().as_bytes() {
            return None;
        }
        let top = PathBuf::from(OsStr::from_bytes(parts.next()?));
        let mut aside = Self::empty(dir, top);
        for part in parts {
            let (kind, path) = part.split_first()?;
            let path = path.to_vec();
            match kind {
                b'w' => aside.was.push(path),
                b'c' => aside.came.push(path),
                b'm' => aside.made.push(path),
                _ => return None,
            }
        }
        Some(aside)
    }

    fn empty(dir: PathBuf, top: PathBuf) -> Self {
        Self {
            dir,
            top,
            was: Vec::new(),
            came: Vec::new(),
            made: Vec::new(),
        }
    }

    /// Sets aside what is at some paths. Nothing is taken away there.
    pub fn make<'a>(
        loop_dir: &Path,
        top: &Path,
        to: Moment,
        paths: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Self, GitError> {
        let name = match Self::left_behind(loop_dir, to) {
            Some(_) => AGAIN,
            None => FIRST,
        };
        let mut aside = Self::empty(loop_dir.join(name), top.to_owned());
        let failed = |error: FsError, path: &Path| {
            GitError::io("set aside", path)(io::Error::other(tachikoma_core::error_chain(&error)))
        };
        // Of one that nobody makes up for.
        aside.remove();
        make_dir(&aside.dir).map_err(|error| failed(error, &aside.dir))?;
        let mut made = BTreeSet::new();
        for path in paths {
            let from = at(top, path);
            let is_file = |there: fs::Metadata| !there.is_dir();
            if is_there(top, path) && fs::symlink_metadata(&from).is_ok_and(is_file) {
                let to = aside.dir.join(aside.was.len().to_string());
                copy(&from, &to).map_err(GitError::io("set aside", &from))?;
                aside.was.push(path.to_vec());
            } else {
                aside.came.push(path.to_vec());
            }
            let is_dir = |path: &[u8]| {
                let there = fs::symlink_metadata(at(top, path));
                there.is_ok_and(|there| there.is_dir())
            };
            made.extend(ancestors(path).filter(|above| !is_dir(above)));
        }
        aside.made = made.into_iter().map(<[u8]>::to_vec).collect();
        let list = aside.dir.join(LIST);
        let written = atomic_file::write_whole(&list, &aside.list(to), Durability::Synced);
        written.map_err(|error| failed(error, &list))?;
        Ok(aside)
    }

    fn list(&self, to: Moment) -> Vec<u8> {
        let mut list = to.to_string().into_bytes();
        list.push(0);
        list.extend_from_slice(self.top.as_os_str().as_bytes());
        list.push(0);
        for (kind, paths) in [(b'w', &self.was), (b'c', &self.came), (b'm', &self.made)] {
            for path in paths {
                list.push(kind);
                list.extend_from_slice(path);
                list.push(0);
            }
        }
        list
    }

    /// Brings all of it back. Can be done again when it fails in the middle.
    ///
    /// # Errors
    /// A file cannot be removed or written: which.
    pub fn put_back(&self) -> Result<(), GitError> {
        for path in self.came.iter().filter(|path| is_there(&self.top, path)) {
            let path = at(&self.top, path);
            if !fs::symlink_metadata(&path).is_ok_and(|there| there.is_dir()) {
                fs::remove_file(&path).map_err(GitError::io("remove", &path))?;
            }
        }
        for dir in self.made.iter().rev() {
            // One that is needed has something in it.
            let _ = fs::remove_dir(at(&self.top, dir));
        }
        for (number, path) in self.was.iter().enumerate() {
            let from = self.dir.join(number.to_string());
            let path = at(&self.top, path);
            replace(&from, &path).map_err(GitError::io("put back", &path))?;
        }
        Ok(())
    }

    /// Nobody needs them any more.
    pub fn remove(&self) {
        // First what says that they are needed.
        let _ = fs::remove_file(self.dir.join(LIST));
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A second name is enough: git never writes into a file that is there.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let there = fs::symlink_metadata(from)?;
    if there.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    fs::copy(from, to)?;
    let copy = File::options().append(true).open(to);
    // Whoever may not write to it looks into it once more.
    copy.and_then(|copy| copy.set_modified(there.modified()?))
        .or(Ok(()))
}

fn replace(from: &Path, path: &Path) -> io::Result<()> {
    let same = |there: fs::Metadata| {
        let kept = fs::symlink_metadata(from);
        kept.is_ok_and(|kept| (kept.dev(), kept.ino()) == (there.dev(), there.ino()))
    };
    if fs::symlink_metadata(path).is_ok_and(same) {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let temporary = atomic_file::temporary(dir);
    copy(from, &temporary)?;
    fs::rename(&temporary, path).inspect_err(|_| drop(fs::remove_file(&temporary)))
}
