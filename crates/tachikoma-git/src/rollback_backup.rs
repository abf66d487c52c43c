//! Backup of the files that a rollback changes, byte for byte. It allows an undo without the repository's filters. It is stored in
//! the directory of the loop until the rollback is complete, and survives a crash.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use tachikoma_fs::atomic_file::{self, Durability};
use tachikoma_fs::make_dir;

use super::path::{ancestors, at, is_there, split_nul};
use super::program::GitError;
use super::snapshots::Moment;

/// Name of the backup directory, in the directory of the loop.
const FIRST: &str = "rolling-back";

/// Name of the backup directory while an interrupted rollback is repeated. The first backup must not be overwritten.
const AGAIN: &str = "rolling-back-again";

/// Name of the list of all files. Before it exists, no file of the work tree was changed.
const LIST: &str = "list";

/// All directories that can contain the backup of a rollback: of the first attempt, and of its repetition.
pub const DIRS: [&str; 2] = [FIRST, AGAIN];

/// Returns whether a file name belongs to the backup of a rollback.
pub fn is_ours(name: &str) -> bool {
    name == LIST || atomic_file::is_temporary(name) || name.parse::<usize>().is_ok()
}

/// The backup of the files that a rollback changes.
#[derive(Debug, Default)]
pub struct RollbackBackup {
    dir: PathBuf,
    top: PathBuf,
    /// Paths of files that existed. The n-th file is stored as `n`.
    was: Vec<Vec<u8>>,
    /// Paths at which no file existed.
    came: Vec<Vec<u8>>,
    /// Directories that did not exist, parents first.
    made: Vec<Vec<u8>>,
}

impl RollbackBackup {
    /// Finds the backup that an interrupted rollback left; `None` if there is none.
    #[must_use]
    pub fn left_behind(loop_dir: &Path, to: Moment) -> Option<Self> {
        let dir = loop_dir.join(FIRST);
        let list = fs::read(dir.join(LIST)).ok()?;
        let mut split_nul = split_nul(&list);
        if split_nul.next()? != to.to_string().as_bytes() {
            return None;
        }
        let top = PathBuf::from(OsStr::from_bytes(split_nul.next()?));
        let mut backup = Self {
            dir,
            top,
            ..Self::default()
        };
        for part in split_nul {
            let (kind, path) = part.split_first()?;
            let path = path.to_vec();
            match kind {
                b'w' => backup.was.push(path),
                b'c' => backup.came.push(path),
                b'm' => backup.made.push(path),
                _ => return None,
            }
        }
        Some(backup)
    }

    /// Backs up the files at some paths. The files themselves are not changed.
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
        let mut backup = Self {
            dir: loop_dir.join(name),
            top: top.to_owned(),
            ..Self::default()
        };
        // An incomplete backup of an earlier attempt is removed first.
        backup.remove();
        make_dir(&backup.dir)?;
        let mut made = BTreeSet::new();
        for path in paths {
            let from = at(top, path);
            let is_file = |there: fs::Metadata| !there.is_dir();
            if is_there(top, path) && fs::symlink_metadata(&from).is_ok_and(is_file) {
                let to = backup.dir.join(backup.was.len().to_string());
                copy(&from, &to).map_err(GitError::io("set aside", &from))?;
                backup.was.push(path.to_vec());
            } else {
                backup.came.push(path.to_vec());
            }
            let is_dir = |path: &[u8]| {
                let there = fs::symlink_metadata(at(top, path));
                there.is_ok_and(|there| there.is_dir())
            };
            made.extend(ancestors(path).filter(|above| !is_dir(above)));
        }
        backup.made = made.into_iter().map(<[u8]>::to_vec).collect();
        let list = backup.dir.join(LIST);
        atomic_file::write_whole(&list, &backup.list(to), Durability::Synced)?;
        Ok(backup)
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

    /// Restores all files. Can be repeated if it fails.
    ///
    /// # Errors
    /// A file cannot be removed or written.
    pub fn put_back(&self) -> Result<(), GitError> {
        for path in self.came.iter().filter(|path| is_there(&self.top, path)) {
            let path = at(&self.top, path);
            if !fs::symlink_metadata(&path).is_ok_and(|there| there.is_dir()) {
                fs::remove_file(&path).map_err(GitError::io("remove", &path))?;
            }
        }
        for dir in self.made.iter().rev() {
            // A directory that still contains files is not removed.
            let _ = fs::remove_dir(at(&self.top, dir));
        }
        for (number, path) in self.was.iter().enumerate() {
            let from = self.dir.join(number.to_string());
            let path = at(&self.top, path);
            replace(&from, &path).map_err(GitError::io("put back", &path))?;
        }
        Ok(())
    }

    /// Removes the backup.
    pub fn remove(&self) {
        // The list is removed first, because a backup with a list counts as valid.
        let _ = fs::remove_file(self.dir.join(LIST));
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Copies a file by a hard link, which is enough because git never writes into an existing file.
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
    // If the time cannot be set, git only has to read the file again.
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
