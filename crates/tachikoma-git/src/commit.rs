//! Commits of what the loop changed, by the user's own git with its hooks, and of nothing else.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::differences::Side;
use super::fingerprint::What;
use super::head::verify;
use super::index::{ended_by_nul, entries};
use super::keeper::Keeper;
use super::path::{RepoPath, parts};
use super::present::{ancestors, at};
use super::program::{Answer, CallOff, GitError, Order};
use super::survey::Survey;
use super::walk::is_nested;
use super::whose::{Whose, list};
use tachikoma_runtime::clock;

/// Whoever else works on the index is done in a moment; an editor's plugin looks every few seconds.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How often it is tried meanwhile.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// What git says where there is nothing to commit, by what else there is.
const NOTHING: [&str; 3] = [
    "nothing to commit",
    "nothing added to commit",
    "no changes added to commit",
];

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
    /// How many files it changed.
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
    /// Git sees no difference where there was one.
    #[error("git finds nothing to commit; the next commit looks again")]
    Nothing,
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
        let mut files: Vec<RepoPath> = self
            .uncommitted()
            .filter(|path| self.dirty.contains_key(*path))
            .filter(|path| !self.ground.leaves_out(path.bytes()))
            .filter(|path| !self.became_directory(path) && !self.is_behind_file(path))
            .cloned()
            .collect();
        if files.is_empty() {
            return Ok(None);
        }
        if let Some(what) = self.underway() {
            return Err(CommitError::Underway { what });
        }
        self.drop_refused(&mut files, call_off)?;
        if files.is_empty() {
            return Ok(None);
        }
        self.intend(&files, call_off)?;
        let committed = self.commit_files(&files, message, limit, call_off);
        match committed {
            Ok(()) => self.committed(&files, call_off).map(Some),
            // What was cut was a hook behind it. If this cannot be found out, the next survey sees the commit.
            Err(_) if self.was_made(&files).unwrap_or(false) => {
                self.committed(&files, call_off).map(Some)
            }
            Err(error) => {
                // Whoever called off the commit still wants the index to be what it was. If this fails, the next runner tries it.
                let _ = self.take_back_intended(&CallOff::new());
                self.watched.follow_users_index(&self.ground.repository);
                // A hook may have changed files, and that is the loop's doing. If this fails too, the next survey sees them.
                let looked = self.look_again(call_off).is_ok();
                let over = looked
                    && (self.are_clean(&files)
                        || matches!(error, CommitError::Nothing)
                            && self.are_clean_anew(&files, call_off));
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

    /// What was in a directory that became a link or a file goes with what comes in its place. By name git would look for it
    /// behind the link.
    fn is_behind_file(&self, path: &RepoPath) -> bool {
        let top = &self.ground.repository.top;
        ancestors(path.bytes()).any(|above| {
            let there = at(top, above).symlink_metadata();
            there.is_ok_and(|there| !there.is_dir())
                && self.work.mine.contains(above)
                && !self.work.theirs.contains(above)
        })
    }

    /// Takes out what git will not take, so that it does not keep the rest from being committed: new files that are ignored by
    /// now, or in a directory that became a repository of its own.
    fn drop_refused(
        &mut self,
        files: &mut Vec<RepoPath>,
        call_off: &CallOff,
    ) -> Result<(), CommitError> {
        let came = |path: &&RepoPath| self.dirty.get(*path).is_some_and(Side::is_nothing);
        let new: Vec<&RepoPath> = files.iter().filter(came).collect();
        let new_bytes = new.iter().map(|path| path.bytes());
        let mut refused = self.ground.ignored(new_bytes, true, call_off)?;
        let top = &self.ground.repository.top;
        let in_another = |path: &&&RepoPath| {
            ancestors(path.bytes())
                .any(|dir| is_nested(rustix::fs::CWD, at(top, dir).as_os_str().as_encoded_bytes()))
        };
        refused.extend(new.iter().filter(in_another).map(|path| (*path).clone()));
        if !refused.is_empty() {
            // Who has added an ignored file means it.
            let users = self.ground.users_entries(call_off)?;
            for entry in entries(&users) {
                refused.remove(entry.path);
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        files.retain(|path| !refused.contains(path));
        let names: Vec<&RepoPath> = refused.iter().collect();
        self.unsaid.push(format!(
            "not committed, because git does not take it any more (ignored, or in a repository of its own): {}",
            list(&names)
        ));
        self.forget_work_tree()?;
        self.look_again(call_off)?;
        Ok(())
    }

    fn are_clean(&self, files: &[RepoPath]) -> bool {
        !files.iter().any(|path| self.dirty.contains_key(path))
    }

    /// The same as git sees it now: attributes may have changed since a file was taken in, and with them what it comes to.
    fn are_clean_anew(&mut self, files: &[RepoPath], call_off: &CallOff) -> bool {
        let looked = self
            .forget_work_tree()
            .and_then(|()| self.look_again(call_off));
        looked.is_ok() && self.are_clean(files)
    }

    /// Makes the next survey look at everything anew, as the user's index has it.
    fn forget_work_tree(&mut self) -> Result<(), GitError> {
        self.known = None;
        self.index_mark = None;
        self.ground.drop_index()
    }

    /// Surveys for itself; what there is to say is left to the next one.
    fn look_again(&mut self, call_off: &CallOff) -> Result<Survey, GitError> {
        let mut survey = self.survey(Whose::Loop, call_off)?;
        self.unsaid.append(&mut survey.warnings);
        Ok(survey)
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
            "--quiet",
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
    pub fn locking(&self, order: &Order<'_>, call_off: &CallOff) -> Result<(), CommitError> {
        let lock = self.ground.repository.index_lock();
        let deadline = clock::monotonic() + LOCK_WAIT;
        loop {
            let answer = order.run(call_off)?;
            if answer.code == Some(0) {
                return Ok(());
            }
            if is_nothing(&answer) {
                return Err(CommitError::Nothing);
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

    /// Whether the work tree stands on a commit of these files that was not there before.
    fn was_made(&self, files: &[RepoPath]) -> Result<bool, GitError> {
        let call_off = CallOff::new();
        let git = &self.ground.repository.git;
        let head = verify(git, "HEAD^{commit}", &call_off)?;
        if head.is_none() || head == self.head {
            return Ok(false);
        }
        if verify(git, "HEAD^1^{commit}", &call_off)? != self.head {
            return Ok(false);
        }
        let committed = self.files_of("HEAD", &call_off)?;
        Ok(files.iter().any(|path| committed.contains(path)))
    }

    /// The files that a commit changed.
    fn files_of(&self, commit: &str, call_off: &CallOff) -> Result<BTreeSet<RepoPath>, GitError> {
        let words = [
            "diff-tree",
            "--root",
            "--no-commit-id",
            "--name-only",
            "--no-renames",
            "-r",
            "-z",
            commit,
        ];
        let answer = self.ground.repository.git.order(&words).ask(call_off)?;
        Ok(parts(&answer).map(RepoPath::new).collect())
    }

    /// What is to be known after a commit.
    fn committed(&mut self, files: &[RepoPath], call_off: &CallOff) -> Result<Commit, CommitError> {
        self.forget_intended()?;
        // Its own changes of the user's index are no news.
        self.watched.follow_users_index(&self.ground.repository);
        let uncommitted = self.dirty.len();
        let surveyed = self.look_again(call_off);
        // Then the commit has them and nothing else.
        let is_plain = surveyed
            .as_ref()
            .is_ok_and(|survey| survey.changed.is_empty())
            && self.are_clean(files)
            && uncommitted == self.dirty.len() + files.len();
        if surveyed.is_ok() && !self.are_clean(files) {
            // A hook changed them, or they were taken in by other attributes than the commit. If this fails, so will the next.
            let _ = self.are_clean_anew(files, call_off);
        }
        if let Ok(survey) = &surveyed {
            self.follow_hook(files, &survey.changed, call_off);
        }
        let id = match (&surveyed, &self.head) {
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
        let mut count = files.len();
        if !is_plain && let Ok(changed) = self.files_of(&id, &CallOff::new()) {
            count = changed.len();
        }
        Ok(Commit { id, files: count })
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
pub fn specs(files: &[RepoPath]) -> Vec<u8> {
    let mut specs = Vec::new();
    for path in files {
        specs.extend_from_slice(b":(top,literal)");
        specs.extend_from_slice(path.bytes());
        specs.push(0);
    }
    specs
}

/// Whether git found nothing that differs. It says so in its answer; complaints are about other things.
fn is_nothing(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.bytes);
    NOTHING.iter().any(|nothing| text.contains(nothing))
}

/// Whether git failed because another one works on the index.
fn is_locked(answer: &Answer) -> bool {
    answer.words.contains("index.lock")
}
