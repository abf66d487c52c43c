//! The work of a bundle, brought back: into the repository that is there, or into a new one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::{RESTORED, TIMEOUT, Work};
use crate::chain;
use crate::git::head::verify;
use crate::git::path::printable;
use crate::git::program::{CallOff, Git, GitError};
use crate::git::repository::{Found, Repository};
use crate::git::snapshots::{self, Kept, Moment};

/// What came of bringing the work back.
#[derive(Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// A repository was made, and the work tree in it.
    Made {
        /// What HEAD stands on: a branch, or a commit.
        on: String,
        /// Whether the work tree is a snapshot's, with what was not committed.
        from_snapshot: bool,
        /// What was there and is not what the backup has; it was not touched.
        in_the_way: Option<InTheWay>,
    },
    /// A repository was there: it has the commits now, and its work tree is as it was.
    Fetched {
        /// What HEAD stood on in the backup, unless it stands there.
        check_out: Option<String>,
    },
}

/// Files that were there, where the backup has others.
#[derive(Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// Their names.
    pub paths: Vec<String>,
    /// The commit that has those of the backup.
    pub commit: String,
}

impl Work {
    /// Brings the work of a bundle back: into the repository that is there, or into a new one, or one that is empty. Blocks.
    ///
    /// # Errors
    /// Git cannot do it. What was there is as it was then, and a new repository is gone.
    pub fn unpack(&self, bundle: &Path) -> Result<Unpacked, String> {
        let call_off = CallOff::new();
        let told = |error: GitError| chain(&error);
        match Repository::find(&self.working_dir, self.search_path.as_deref(), &call_off) {
            Found::Repository(_) if self.is_empty(&call_off).map_err(told)? => {
                let git = Git::new(&self.working_dir, self.search_path.as_deref());
                let head = git.order(&["symbolic-ref", "HEAD"]);
                let head = head.ask(&call_off).map_err(told)?;
                self.make(&git, bundle).map_err(|error| {
                    // It stands where it stood.
                    let head = String::from_utf8_lossy(&head);
                    let back = git.order(&["symbolic-ref", "HEAD", head.trim()]);
                    let _ = back.ask(&call_off);
                    told(error)
                })
            }
            Found::Repository(repository) => {
                let (head, branch) = self.fetch(&repository.git, bundle).map_err(told)?;
                let here = verify(&repository.git, "HEAD", &call_off).map_err(told)?;
                let there = branch.as_deref().or(head.as_deref());
                let check_out = there.filter(|_| head != here).map(short);
                Ok(Unpacked::Fetched { check_out })
            }
            Found::Unusable { reason } => Err(reason),
            Found::NoRepository => {
                let git = Git::new(&self.working_dir, self.search_path.as_deref());
                let init = git.order(&["init", "--quiet"]);
                init.ask(&call_off).map_err(told)?;
                self.make(&git, bundle).map_err(|error| {
                    // It was not there before.
                    let _ = std::fs::remove_dir_all(self.working_dir.join(".git"));
                    told(error)
                })
            }
        }
    }

    /// Returns whether the working directory is the top of a repository that has nothing yet, as `git init` leaves it.
    fn is_empty(&self, call_off: &CallOff) -> Result<bool, GitError> {
        let git = Git::new(&self.working_dir, self.search_path.as_deref());
        let nothing = |words: &[&str]| {
            let said = git.order(words).ask(call_off)?;
            Ok::<_, GitError>(said.trim_ascii().is_empty())
        };
        Ok(nothing(&["rev-parse", "--show-prefix"])?
            && nothing(&["for-each-ref", "--count=1"])?
            && nothing(&["ls-files"])?
            && verify(&git, "HEAD", call_off)?.is_none())
    }

    /// Fetches all that a bundle has of the loop. Returns what HEAD was, and its branch.
    fn fetch(
        &self,
        git: &Git,
        bundle: &Path,
    ) -> Result<(Option<String>, Option<String>), GitError> {
        let call_off = CallOff::new();
        let heads = git.order(&["bundle", "list-heads"]).word(bundle);
        let heads = heads.ask(&call_off)?;
        let heads = String::from_utf8_lossy(&heads).into_owned();
        let named = |wanted: &dyn Fn(&str) -> bool| {
            let mut lines = heads.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(_, name)| wanted(name));
            found.map(|(commit, name)| (commit.to_owned(), name.to_owned()))
        };
        let head = named(&|name| name == "HEAD").map(|(commit, _)| commit);
        let branch = named(&|name| name.starts_with("refs/heads/")).map(|(_, name)| name);
        let below = snapshots::below(self.loop_id);
        let all = format!("+{below}/*:{below}/*");
        let restored = format!("+HEAD:{below}/{RESTORED}");
        // One after the other: a bundle of an earlier version may have a reference of that name in it.
        for wanted in [Some(&all), head.as_ref().map(|_| &restored)]
            .into_iter()
            .flatten()
        {
            let words = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"];
            let order = git.order(&words).word(bundle).word(wanted);
            order.limit(Some(TIMEOUT)).ask(&call_off)?;
        }
        Ok((head, branch))
    }

    /// Makes branch, index and work tree in a repository that has nothing yet. What was not committed when the last snapshot was made is there
    /// again, and is not committed.
    fn make(&self, git: &Git, bundle: &Path) -> Result<Unpacked, GitError> {
        let call_off = CallOff::new();
        let ask = |words: &[&str]| git.order(words).limit(Some(TIMEOUT)).ask(&call_off);
        let (head, branch) = self.fetch(git, bundle)?;
        if let Some(branch) = &branch {
            ask(&["symbolic-ref", "HEAD", branch])?;
        }
        let kept = snapshots::list(git, self.loop_id, &call_off)?;
        let last = kept.iter().rev().find(|kept| is_iteration(kept));
        let fits = match (last, &head) {
            (Some(last), Some(head)) => {
                let parent = verify(git, &format!("{}^", last.commit), &call_off)?;
                last.commit == *head || parent.as_ref() == Some(head)
            }
            (last, None) => last.is_some(),
            (None, Some(_)) => false,
        };
        let snapshot = last.filter(|_| fits).map(|last| last.commit.clone());
        let from_snapshot = snapshot.is_some() && snapshot != head;
        let in_the_way = match snapshot.or_else(|| head.clone()) {
            Some(commit) => {
                let paths = self.check_out(git, &commit)?;
                (!paths.is_empty()).then_some(InTheWay { paths, commit })
            }
            None => None,
        };
        let on = match (&head, &branch) {
            (Some(head), Some(branch)) => {
                ask(&["update-ref", branch, head])?;
                short(branch)
            }
            (Some(head), None) => {
                ask(&["update-ref", "--no-deref", "HEAD", head])?;
                head.clone()
            }
            (None, _) => "a branch without commits".to_owned(),
        };
        match &head {
            Some(head) => ask(&["read-tree", head])?,
            None => ask(&["read-tree", "--empty"])?,
        };
        // So that git need not look at every file again.
        let _ = git
            .order(&["update-index", "-q", "--refresh"])
            .run(&call_off);
        Ok(Unpacked::Made {
            on,
            from_snapshot,
            in_the_way,
        })
    }

    /// Makes the files of a commit. What is there stays, whether git ignores it or not; returns what of that is not what the commit has.
    fn check_out(&self, git: &Git, commit: &str) -> Result<Vec<String>, GitError> {
        let call_off = CallOff::new();
        let ask = |words: &[&str]| git.order(words).limit(Some(TIMEOUT)).ask(&call_off);
        ask(&["read-tree", commit])?;
        let listed = ask(&["ls-files", "-z"])?;
        let mut free = Vec::new();
        let mut taken = BTreeSet::new();
        for name in listed
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            if self.is_taken(name) {
                taken.insert(name);
            } else {
                free.extend_from_slice(name);
                free.push(0);
            }
        }
        if !free.is_empty() {
            let order = git.order(&["checkout-index", "--quiet", "-u", "-z", "--stdin"]);
            order.stdin(&free).limit(Some(TIMEOUT)).ask(&call_off)?;
        }
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        // What is the same is in nobody's way.
        let refresh = git.order(&["update-index", "-q", "--really-refresh"]);
        refresh.limit(Some(TIMEOUT)).run(&call_off)?;
        let changed = ask(&["diff-files", "-z", "--name-only"])?;
        let changed = changed.split(|byte| *byte == 0);
        let changed = changed.filter(|name| taken.contains(name));
        Ok(changed
            .map(|name| printable(&String::from_utf8_lossy(name)).into_owned())
            .collect())
    }

    /// Whether something is where a file is to be made, or where one of its directories is. A link is something, wherever it leads.
    fn is_taken(&self, name: &[u8]) -> bool {
        let name = Path::new(OsStr::from_bytes(name));
        let mut path = self.working_dir.clone();
        let mut parts = name.components().peekable();
        while let Some(part) = parts.next() {
            path.push(part);
            match std::fs::symlink_metadata(&path) {
                Ok(there) if there.is_dir() && parts.peek().is_some() => {}
                Err(error) if error.kind() == ErrorKind::NotFound => return false,
                Ok(_) | Err(_) => return true,
            }
        }
        true
    }
}

fn is_iteration(kept: &Kept) -> bool {
    matches!(kept.moment, Moment::Iteration(_))
}

fn short(branch: &str) -> String {
    branch
        .strip_prefix("refs/heads/")
        .unwrap_or(branch)
        .to_owned()
}
