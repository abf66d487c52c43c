//! The work of a bundle, brought back: into the repository that is there, or into a new one.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{BundleSource, TIMEOUT, copied, copied_ref, restored_head};
use crate::head::verify;
use crate::path::{RepoPath, ancestors, at, ended_by_nul, parts};
use crate::program::{CancelToken, Git, GitError};
use crate::repository::{Found, Repository};
use crate::snapshots::{self, Kept, Moment};
use tachikoma_core::error_chain as chain;

/// A file in the repository, as long as the work tree is not made.
pub const MARK: &str = "tachikoma-restoring";

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
        /// What is to be done before the loop goes on, if its commits are not in what HEAD stands on.
        merge: Option<Merge>,
        /// Whether there was work that was not committed.
        uncommitted: bool,
    },
}

/// Commits of the loop that are in the repository, and not yet in its branch.
#[derive(Debug, PartialEq, Eq)]
pub struct Merge {
    /// What HEAD stood on in the backup: a branch, or a commit.
    pub on: String,
    /// Whether the branch here has nothing that they do not have.
    pub is_ahead: bool,
}

/// Files that were there, where the backup has others.
#[derive(Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// Their names.
    pub paths: Vec<String>,
    /// The commit that has those of the backup.
    pub commit: String,
}

/// What a bundle had.
pub struct Had {
    head: Option<String>,
    /// The branch that HEAD stood on.
    branch: Option<String>,
    /// The commit of the work tree as it was.
    tree: Option<String>,
}

/// Brings the work of a bundle back: into the repository that is there, or into a new one, or one that is empty. Blocks.
///
/// # Errors
/// Git cannot do it. What was there is as it was then, and a new repository is gone.
pub fn unpack(
    source: &BundleSource,
    bundle: &Path,
    loop_dir: &Path,
    iteration: u32,
) -> Result<Unpacked, String> {
    let cancel = CancelToken::new();
    let told = |error: GitError| chain(&error);
    match Repository::find(&source.working_dir, source.search_path.as_deref(), &cancel) {
        Found::Repository(repository) if !source.is_top(&repository) => Err(format!(
            "it lies in another repository, {}; restore into a directory of its own",
            repository.top.display()
        )),
        Found::Repository(_) if is_to_be_made(source, &cancel).map_err(told)? => {
            let git = Git::new(&source.working_dir, source.search_path.as_deref());
            let head = git.order(&["symbolic-ref", "HEAD"]);
            let head = head.ask_line(&cancel).map_err(told)?;
            make(source, &git, bundle, loop_dir, iteration).map_err(|error| {
                // It stands where it stood.
                let back = git.order(&["symbolic-ref", "HEAD", &head]);
                let _ = back.ask(&cancel);
                told(error)
            })
        }
        Found::Repository(repository) => {
            let git = &repository.git;
            let had = fetch(source, git, bundle, iteration).map_err(told)?;
            let Had { head, branch, tree } = had;
            let merge = match &head {
                Some(head) => {
                    let on = branch.as_deref().unwrap_or(head);
                    to_merge(git, head, on, &cancel).map_err(told)?
                }
                None => None,
            };
            let uncommitted = tree.is_some() && tree != head;
            Ok(Unpacked::Fetched { merge, uncommitted })
        }
        Found::Unusable { reason } => Err(reason),
        Found::NoRepository => {
            let git = Git::new(&source.working_dir, source.search_path.as_deref());
            let init = git.order(&["init", "--quiet"]);
            init.ask(&cancel).map_err(told)?;
            make(source, &git, bundle, loop_dir, iteration).map_err(|error| {
                // It was not there before.
                let _ = std::fs::remove_dir_all(source.working_dir.join(".git"));
                told(error)
            })
        }
    }
}

/// Returns whether a repository has nothing yet, as `git init` leaves it, or what somebody left who died while he made it.
fn is_to_be_made(source: &BundleSource, cancel: &CancelToken) -> Result<bool, GitError> {
    let git = Git::new(&source.working_dir, source.search_path.as_deref());
    let nothing = |words: &[&str]| {
        let said = git.order(words).ask(cancel)?;
        Ok::<_, GitError>(said.trim_ascii().is_empty())
    };
    let is_half_made = || Ok::<_, GitError>(mark(&git, &source.working_dir, cancel)?.exists());
    let is_empty = || Ok(nothing(&["for-each-ref", "--count=1"])? && nothing(&["ls-files"])?);
    Ok(verify(&git, "HEAD", cancel)?.is_none() && (is_half_made()? || is_empty()?))
}

/// Fetches all that a bundle has of the loop. What is called the same here and is another keeps another name. Snapshots of iterations
/// behind one do, too: the work may be later than the loop, which comes to them again.
pub fn fetch(
    source: &BundleSource,
    git: &Git,
    bundle: &Path,
    iteration: u32,
) -> Result<Had, GitError> {
    let cancel = CancelToken::new();
    let heads = git.order(&["bundle", "list-heads"]).word(bundle);
    let heads = heads.ask(&cancel)?;
    let heads = String::from_utf8_lossy(&heads).into_owned();
    let named = |wanted: &dyn Fn(&str) -> bool| {
        let mut lines = heads.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(_, name)| wanted(name));
        found.map(|(commit, name)| (commit.to_owned(), name.to_owned()))
    };
    let head = named(&|name| name == "HEAD").map(|(commit, _)| commit);
    let branch = named(&|name| name.starts_with("refs/heads/")).map(|(_, name)| name);
    let copied = copied_ref(source.loop_id);
    let tree = named(&|name| name == copied).map(|(commit, _)| commit);
    let below = snapshots::below(source.loop_id);
    let all = format!("+{below}/*:{below}/*");
    let restored = format!("+HEAD:{}", restored_head(source.loop_id));
    let mut order = git.order(&["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"]);
    order = order.word(bundle).word(&all).limit(Some(TIMEOUT));
    if head.is_some() {
        order = order.word(&restored);
    }
    snapshots::keep_others(git, source.loop_id, &heads)?;
    order.ask(&cancel)?;
    snapshots::set_aside(git, source.loop_id, iteration)?;
    Ok(Had { head, branch, tree })
}

/// Makes branch, index and work tree in a repository that has nothing yet. What was not committed when the bundle was made is there
/// again, and is not committed.
fn make(
    source: &BundleSource,
    git: &Git,
    bundle: &Path,
    loop_dir: &Path,
    iteration: u32,
) -> Result<Unpacked, GitError> {
    let cancel = CancelToken::new();
    let ask = |words: &[&str]| git.order(words).limit(Some(TIMEOUT)).ask(&cancel);
    let mark = mark(git, &source.working_dir, &cancel)?;
    std::fs::write(&mark, "").map_err(GitError::io("create", &mark))?;
    let Had { head, branch, tree } = fetch(source, git, bundle, iteration)?;
    if let Some(branch) = &branch {
        ask(&["symbolic-ref", "HEAD", branch])?;
    }
    let present = fitting(git, tree, head.as_deref())?;
    let snapshot = match &present {
        Some(present) => Some(present.clone()),
        None => {
            let kept = snapshots::list(git, source.loop_id, &cancel)?;
            let last = kept.into_iter().rev().find(is_iteration);
            fitting(git, last.map(|last| last.commit), head.as_deref())?
        }
    };
    let from_snapshot = snapshot.is_some() && snapshot != head;
    let in_the_way = match snapshot.or_else(|| head.clone()) {
        Some(commit) => {
            let paths = check_out(source, git, &commit)?;
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
    let _ = git.order(&["update-index", "-q", "--refresh"]).run(&cancel);
    let _ = std::fs::remove_file(&mark);
    if let Some(present) = present {
        // Else all of it is somebody else's, and the loop says so.
        let _ = copied::take_over(source, git, &present, head.as_deref(), loop_dir);
    }
    Ok(Unpacked::Made {
        on,
        from_snapshot,
        in_the_way,
    })
}

/// Makes the files of a commit. What is there stays, whether git ignores it or not; returns what of that is not what the commit has.
fn check_out(source: &BundleSource, git: &Git, commit: &str) -> Result<Vec<String>, GitError> {
    let cancel = CancelToken::new();
    let ask = |words: &[&str]| git.order(words).limit(Some(TIMEOUT)).ask(&cancel);
    ask(&["read-tree", commit])?;
    let listed = ask(&["ls-files", "-z"])?;
    let (taken, free): (BTreeSet<&[u8]>, BTreeSet<&[u8]>) =
        parts(&listed).partition(|path| is_taken(source, path));
    if !free.is_empty() {
        let order = git.order(&["checkout-index", "--quiet", "-u", "-z", "--stdin"]);
        let free = ended_by_nul(free.into_iter());
        // There is no remote yet to ask for what LFS has: pointers stay pointers.
        let order = order.env("GIT_LFS_SKIP_SMUDGE", "1");
        order.stdin(&free).limit(Some(TIMEOUT)).ask(&cancel)?;
    }
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    // What is the same is in nobody's way.
    let refresh = git.order(&["update-index", "-q", "--really-refresh"]);
    refresh.limit(Some(TIMEOUT)).run(&cancel)?;
    let changed = ask(&["diff-files", "-z", "--name-only"])?;
    let changed = parts(&changed).filter(|path| taken.contains(path));
    Ok(changed
        .map(|path| RepoPath::new(path).to_string())
        .collect())
}

/// Whether something is where a file is to be made, or where one of its directories is. A link is something, wherever it leads.
fn is_taken(source: &BundleSource, path: &[u8]) -> bool {
    let there = |path: &[u8]| std::fs::symlink_metadata(at(&source.working_dir, path));
    let is_no_dir = |above: &[u8]| match there(above) {
        Ok(there) => !there.is_dir(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    let is_free = |error: std::io::Error| error.kind() == ErrorKind::NotFound;
    ancestors(path).any(is_no_dir) || !there(path).is_err_and(is_free)
}

/// What says that branch, index and work tree are being made. `dir` is where git works.
fn mark(git: &Git, dir: &Path, cancel: &CancelToken) -> Result<PathBuf, GitError> {
    let order = git.order(&["rev-parse", "--git-path", MARK]);
    Ok(dir.join(order.ask_line(cancel)?))
}

fn is_iteration(kept: &Kept) -> bool {
    matches!(kept.moment, Moment::Iteration(_))
}

/// Returns a commit of a work tree if that stood on HEAD: else what it has is older than that, or newer.
fn fitting(
    git: &Git,
    commit: Option<String>,
    head: Option<&str>,
) -> Result<Option<String>, GitError> {
    let Some((commit, head)) = commit.as_deref().zip(head) else {
        return Ok(commit);
    };
    let parent = verify(git, &format!("{commit}^"), &CancelToken::new())?;
    let fits = commit == head || parent.as_deref() == Some(head);
    Ok(fits.then(|| commit.to_owned()))
}

/// Returns what is to be merged for a branch to have a commit.
fn to_merge(
    git: &Git,
    commit: &str,
    on: &str,
    cancel: &CancelToken,
) -> Result<Option<Merge>, GitError> {
    let is_in = |one: &str, other: &str| {
        let order = git.order(&["merge-base", "--is-ancestor", one, other]);
        let answer = order.run(cancel)?;
        match answer.code {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            Some(_) | None => Err(order.failed(&answer)),
        }
    };
    let is_ahead = match verify(git, "HEAD", cancel)? {
        Some(here) if is_in(commit, &here)? => return Ok(None),
        Some(here) => is_in(&here, commit)?,
        None => true,
    };
    let on = short(on);
    Ok(Some(Merge { on, is_ahead }))
}

fn short(branch: &str) -> String {
    branch
        .strip_prefix("refs/heads/")
        .unwrap_or(branch)
        .to_owned()
}
