//! New files are made known to git before a commit can name them, and unknown again if it fails. No other entry of the user's
//! index is touched: somebody else may have staged something meanwhile.

use std::collections::HashSet;

use super::commit::{CommitError, specs};
use super::index::{ended_by_nul, entries};
use super::keeper::Keeper;
use super::path::RepoPath;
use super::program::{CallOff, GitError};

/// What an index says of a file that is intended only: that it is empty.
const EMPTY_FILES: [&[u8]; 2] = [
    b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    b"473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
];

impl Keeper {
    /// Makes those of the files known that are not.
    pub(super) fn intend(
        &mut self,
        files: &[RepoPath],
        call_off: &CallOff,
    ) -> Result<(), CommitError> {
        let came = |path: &&RepoPath| self.dirty.get(*path).copied().unwrap_or(false);
        let mut new: Vec<RepoPath> = files.iter().filter(came).cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        let users = self.ground.users_entries(call_off)?;
        let known: HashSet<&[u8]> = entries(&users).map(|entry| entry.path).collect();
        new.retain(|path| !known.contains(path.bytes()));
        if new.is_empty() {
            return Ok(());
        }
        self.work.intended = new.iter().cloned().collect();
        self.work.write(&self.work_path)?;
        let made = self.make_known(&new, call_off);
        if made.is_err() {
            // It may have written the index before it was ended. If this fails, the next runner tries it.
            let _ = self.take_back_intended(&CallOff::new());
        }
        made
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

    /// Makes files unknown that a commit has left known which was not made.
    pub(super) fn take_back_intended(&mut self, call_off: &CallOff) -> Result<(), CommitError> {
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
            self.locking(&order.stdin(&paths), call_off)?;
        }
        self.forget_intended()?;
        Ok(())
    }
}
