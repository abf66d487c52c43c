//! New files are made known to git before a commit can name them, and unknown again if it fails: the user's index is then,
//! byte for byte, what it was.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::time::SystemTime;

use super::commit::{CommitError, LOCK_PAUSE, LOCK_WAIT, specs};
use super::index::{ended_by_nul, entries};
use super::keeper::Keeper;
use super::path::RepoPath;
use super::program::{CallOff, GitError};
use super::repository::Repository;
use super::signature::of_file;
use crate::clock;

/// What an index says of a file that is intended only: that it is empty.
const EMPTY_FILES: [&[u8]; 2] = [
    b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    b"473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
];

/// Files that are known to the user's index for the sake of a commit.
#[derive(Debug)]
pub(super) struct Intent {
    /// The index as it was, and when it was written; none if there was none.
    before: Option<(Vec<u8>, SystemTime)>,
    /// What it looks like with them.
    after: u64,
}

impl Keeper {
    /// Makes those of the files known that are not.
    pub(super) fn intend(
        &mut self,
        files: &[RepoPath],
        call_off: &CallOff,
    ) -> Result<Option<Intent>, CommitError> {
        let came = |path: &&RepoPath| self.dirty.get(*path).is_some_and(|head| !head.is_there());
        let mut new: Vec<RepoPath> = files.iter().filter(came).cloned().collect();
        if new.is_empty() {
            return Ok(None);
        }
        let users = self.ground.users_entries(call_off)?;
        let known: HashSet<&[u8]> = entries(&users).map(|entry| entry.path).collect();
        new.retain(|path| !known.contains(path.bytes()));
        if new.is_empty() {
            return Ok(None);
        }
        self.work.intended = new.iter().cloned().collect();
        self.work.write(&self.work_path)?;
        let before = before(&self.ground.repository)?;
        let made = self.make_known(&new, call_off);
        let intent = Intent {
            before,
            after: of_file(&self.ground.repository.index),
        };
        match made {
            Ok(()) => Ok(Some(intent)),
            Err(error) => {
                // It may have written the index before it was ended. If this fails, the next runner tries it.
                let _ = self.take_back_intended(&CallOff::new());
                Err(error)
            }
        }
    }

    fn make_known(&self, new: &[RepoPath], call_off: &CallOff) -> Result<(), CommitError> {
        let repository = &self.ground.repository;
        let specs = specs(new);
        let mut words = vec!["add", "--intent-to-add", "--pathspec-from-file=-"];
        words.push("--pathspec-file-nul");
        if repository.git_dir.join("info/sparse-checkout").exists() {
            // Who asks for a sparse work tree and then writes outside of it means it.
            words.push("--sparse");
        }
        let order = repository.git.order(&words).stdin(&specs);
        self.locking(&order.in_the_users_name(), call_off)
    }

    /// Nothing is intended any more.
    pub(super) fn forget_intended(&mut self) -> Result<(), GitError> {
        if self.work.intended.is_empty() {
            return Ok(());
        }
        self.work.intended.clear();
        self.work.write(&self.work_path)
    }

    /// Makes files unknown that a commit has left known which did not end: as git does it.
    pub(super) fn take_back_intended(&mut self, call_off: &CallOff) -> Result<(), GitError> {
        if self.work.intended.is_empty() {
            return Ok(());
        }
        let users = self.ground.users_entries(call_off)?;
        let left = entries(&users).filter(|entry| {
            EMPTY_FILES.contains(&entry.object) && self.work.intended.contains(entry.path)
        });
        let paths = ended_by_nul(left.map(|entry| entry.path));
        if !paths.is_empty() {
            let git = &self.ground.repository.git;
            let order = git.order(&["update-index", "--force-remove", "-z", "--stdin"]);
            order.stdin(&paths).ask(call_off)?;
        }
        self.forget_intended()
    }
}

fn before(repository: &Repository) -> Result<Option<(Vec<u8>, SystemTime)>, GitError> {
    let failed = || GitError::io("read", &repository.index);
    match fs::read(&repository.index) {
        Ok(bytes) => {
            let there = fs::metadata(&repository.index).map_err(failed())?;
            Ok(Some((bytes, there.modified().map_err(failed())?)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed()(error)),
    }
}

impl Intent {
    /// Puts the index back as it was, unless somebody else has changed it since. Returns whether that is done.
    pub fn take_back(self, repository: &Repository) -> bool {
        let lock = repository.index_lock();
        let deadline = clock::monotonic() + LOCK_WAIT;
        let mut file = loop {
            match File::options().write(true).create_new(true).open(&lock) {
                Ok(file) => break file,
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return false,
                Err(_) if clock::monotonic() >= deadline => return false,
                Err(_) => std::thread::sleep(LOCK_PAUSE),
            }
        };
        // The lock is ours from here on: it becomes the index, or goes.
        let written = of_file(&repository.index) == self.after && self.write(&mut file, repository);
        if !written {
            let _ = fs::remove_file(&lock);
        }
        written
    }

    fn write(self, file: &mut File, repository: &Repository) -> bool {
        let lock = repository.index_lock();
        let Some((bytes, modified)) = self.before else {
            return fs::remove_file(&repository.index).is_ok() && fs::remove_file(lock).is_ok();
        };
        let mode = fs::metadata(&repository.index).map(|there| there.permissions());
        file.write_all(&bytes).is_ok()
            // Git takes files that are as young as the index for unsettled: it must not look any younger than it was.
            && file.set_modified(modified).is_ok()
            && mode.is_ok_and(|mode| file.set_permissions(mode).is_ok())
            && fs::rename(lock, &repository.index).is_ok()
    }
}
