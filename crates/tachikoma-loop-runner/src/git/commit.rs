//! Commits of what the loop changed, by the user's own git with its hooks, and of nothing else.

use std::path::PathBuf;
use std::time::Duration;

use super::fingerprint::What;
use super::head::verify;
use super::index::ended_by_nul;
use super::intent::Intent;
use super::keeper::Keeper;
use super::path::RepoPath;
use super::program::{Answer, CallOff, GitError, Order};
use super::survey::Whose;
use crate::clock;

/// Whoever else works on the index is done in a moment; an editor's plugin looks every few seconds.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How often it is tried meanwhile.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// What is in the repository's own directory while something is under way that a commit would end up in.
const UNDERWAY: [(&str, &str); 7] = [
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("sequencer", "a cherry-pick or revert"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
    ("BISECT_LOG", "a bisection"),
];

/// A commit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its full name.
    pub id: String,
    /// How many files of the loop's are in it.
    pub files: usize,
}

/// Why nothing was committed. The work stays where it is, and the next commit takes it.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The user is in the middle of something.
    #[error(
        "{what} is under way in the repository; finish or abort it, and the next commit takes the work along"
    )]
    Underway {
        /// What.
        what: &'static str,
    },
    /// Another git works on the index, and does not let go of it.
    #[error(
        "another git process has locked the index; if none runs any more, remove {}",
        lock.display()
    )]
    Locked {
        /// The lock.
        lock: PathBuf,
    },
    /// Git refused, or one of the user's hooks did.
    #[error(transparent)]
    Git(#[from] GitError),
}

impl Keeper {
    /// Commits what the loop changed and has not committed, as of the last survey; none if there is nothing. Blocks; `limit` is
    /// for git and the hooks it runs, none is for as long as they like.
    ///
    /// # Errors
    /// Nothing was committed.
    pub fn commit(
        &mut self,
        message: &str,
        limit: Option<Duration>,
        call_off: &CallOff,
    ) -> Result<Option<Commit>, CommitError> {
        let files: Vec<RepoPath> = self
            .uncommitted()
            .filter(|path| self.dirty.contains_key(*path))
            .filter(|path| !self.ground.leaves_out(path.bytes()))
            .filter(|path| !self.became_directory(path))
            .cloned()
            .collect();
        if files.is_empty() {
            return Ok(None);
        }
        if let Some(what) = self.underway() {
            return Err(CommitError::Underway { what });
        }
        let intent = self.intend(&files, call_off)?;
        let committed = self.commit_files(&files, message, limit, call_off);
        match committed {
            Ok(()) => self.committed(&files, call_off).map(Some),
            Err(error) => {
                self.take_back(intent, call_off);
                // A hook may have changed files, and that is the loop's doing. If this fails too, the next survey sees them.
                let looked = self.survey(Whose::Loop, call_off).is_ok();
                let over = looked && !files.iter().any(|path| self.dirty.contains_key(path));
                if over { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Git commits no file by name that became a directory: its end comes with what is in there.
    fn became_directory(&self, path: &RepoPath) -> bool {
        let there = self.ground.repository.top.join(path.as_path());
        let known = self.known.as_ref();
        let known = known.and_then(|known| known.root.at(path.bytes()));
        !matches!(known, Some(What::Submodule(_)))
            && there.symlink_metadata().is_ok_and(|there| there.is_dir())
    }

    fn underway(&self) -> Option<&'static str> {
        let git_dir = &self.ground.repository.git_dir;
        let found = UNDERWAY
            .iter()
            .find(|(file, _)| git_dir.join(file).exists());
        found.map(|(_, what)| *what)
    }

    fn commit_files(
        &self,
        files: &[RepoPath],
        message: &str,
        limit: Option<Duration>,
        call_off: &CallOff,
    ) -> Result<(), CommitError> {
        let specs = specs(files);
        let words = [
            "commit",
            "--only",
            "--pathspec-from-file=-",
            "--pathspec-file-nul",
            "--cleanup=whitespace",
            "-m",
            message,
        ];
        let git = &self.ground.repository.git;
        let order = git.order(&words).stdin(&specs).limit(limit);
        self.locking(&order.in_the_users_name(), call_off)
    }

    /// Runs what locks the user's index. While another git has it, it is tried again for a while.
    pub(super) fn locking(&self, order: &Order<'_>, call_off: &CallOff) -> Result<(), CommitError> {
        let lock = self.ground.repository.index_lock();
        let deadline = clock::monotonic() + LOCK_WAIT;
        loop {
            let answer = order.run(call_off)?;
            if answer.code == Some(0) {
                return Ok(());
            }
            if !is_locked(&answer) {
                return Err(order.failed(&answer).into());
            }
            if clock::monotonic() >= deadline {
                return Err(CommitError::Locked { lock });
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// What is to be known after a commit.
    fn committed(&mut self, files: &[RepoPath], call_off: &CallOff) -> Result<Commit, CommitError> {
        self.forget_intended()?;
        // Its own changes of the user's index are no news.
        self.watched.follow_users_index(&self.ground.repository);
        let surveyed = self.survey(Whose::Loop, call_off);
        if let Ok(survey) = &surveyed {
            self.follow_hook(files, &survey.changed, call_off);
        }
        let id = match (surveyed, &self.head) {
            (Ok(_), Some(id)) => id.clone(),
            // Whoever called off wants to go on, and the commit is there all the same.
            (Ok(_) | Err(_), _) => {
                let git = &self.ground.repository.git;
                verify(git, "HEAD^{commit}", &CallOff::new())?.ok_or(GitError::Odd {
                    what: "commit",
                    answer: "nothing that can be found".to_owned(),
                })?
            }
        };
        Ok(Commit {
            id,
            files: files.len(),
        })
    }

    /// What a hook changes and adds goes into the commit, but git leaves the user's index with what was there before: as if
    /// somebody had staged to undo it.
    fn follow_hook(&mut self, files: &[RepoPath], changed: &[RepoPath], call_off: &CallOff) {
        let clean = changed
            .iter()
            .filter(|path| files.contains(path) && !self.dirty.contains_key(*path));
        let paths = ended_by_nul(clean.map(RepoPath::bytes));
        if paths.is_empty() {
            return;
        }
        let git = &self.ground.repository.git;
        let order = git.order(&["update-index", "--add", "--remove", "-z", "--stdin"]);
        // Of no harm to the work if it fails: the next commit of these files puts it right.
        let _ = order.stdin(&paths).ask(call_off);
        self.watched.follow_users_index(&self.ground.repository);
    }
}

/// Names files so that git takes each for itself. Hooks would inherit a variable that does the same.
pub(super) fn specs(files: &[RepoPath]) -> Vec<u8> {
    let mut specs = Vec::new();
    for path in files {
        specs.extend_from_slice(b":(top,literal)");
        specs.extend_from_slice(path.bytes());
        specs.push(0);
    }
    specs
}

/// Whether git failed because another one works on the index.
fn is_locked(answer: &Answer) -> bool {
    answer.words.contains("index.lock")
}

/// What was made known for a commit that failed is unknown again.
impl Keeper {
    fn take_back(&mut self, intent: Option<Intent>, call_off: &CallOff) {
        let Some(intent) = intent else {
            return;
        };
        // Whoever called off the commit still wants the index to be what it was.
        let done = intent.take_back(&self.ground.repository);
        if done {
            let _ = self.forget_intended();
        } else {
            let _ = self.take_back_intended(call_off);
        }
        self.watched.follow_users_index(&self.ground.repository);
    }
}
