//! Restores the work in a bundle into the existing repository or a new one.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{BundleSource, TIMEOUT, copied, copied_ref, restored_head};
use crate::head::verify;
use crate::path::{RepoPath, ancestors, at, join_nul, split_nul};
use crate::program::{CancelToken, Git, GitCommand, GitError};
use crate::repository::Repository;
use crate::snapshots::{self, KeptSnapshot, Moment};
use tachikoma_core::error_chain as chain;

/// Name of a file in the git directory that exists while a restore is incomplete.
pub const MARK: &str = "tachikoma-restoring";

/// Result of restoring a bundle.
#[derive(Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// A repository was created, with its work tree.
    Made {
        /// Name of the branch or commit that HEAD points to.
        on: String,
        /// Whether uncommitted changes were restored, too.
        from_snapshot: bool,
        /// Existing files that differ from the backup and were not changed; `None` if there are none.
        in_the_way: Option<InTheWay>,
    },
    /// A repository existed. It has the commits of the bundle now, and its work tree is unchanged.
    Fetched {
        /// Commits that the user has to merge before the loop continues; `None` if HEAD contains all commits.
        merge: Option<Merge>,
        /// Whether the backup has uncommitted changes.
        uncommitted: bool,
    },
}

/// Commits of the loop that are in the repository, but not in its branch.
#[derive(Debug, PartialEq, Eq)]
pub struct Merge {
    /// Name of the branch or commit that HEAD pointed to in the backup.
    pub on: String,
    /// Whether the current branch can be fast-forwarded to these commits.
    pub is_ahead: bool,
}

/// Existing files that differ from the backup.
#[derive(Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// Paths of the files that differ.
    pub paths: Vec<String>,
    /// The commit with the versions of the backup.
    pub commit: String,
}

/// References in a bundle.
pub struct BundleContent {
    head: Option<String>,
    /// The branch that HEAD named in the backup; `None` if HEAD was detached.
    branch: Option<String>,
    /// The commit of the work tree; `None` if the bundle has no uncommitted changes.
    tree: Option<String>,
}

/// Restores the content of a bundle into the existing repository, or into a new or empty one. Blocks.
///
/// # Errors
/// Git fails. Existing files are unchanged, and a new repository is removed.
pub fn unpack(
    source: &BundleSource,
    bundle: &Path,
    loop_dir: &Path,
    iteration: u32,
) -> Result<Unpacked, String> {
    let cancel = CancelToken::new();
    let describe = |error: GitError| chain(&error);
    match Repository::find(&source.working_dir, source.search_path.as_deref(), &cancel)? {
        Some(repository) if !source.is_top(&repository) => Err(format!(
            "the directory is inside another repository, {}; restore into a directory outside of it",
            repository.top.display()
        )),
        Some(_) if is_to_be_made(source, &cancel).map_err(describe)? => {
            let git = Git::new(&source.working_dir, source.search_path.as_deref());
            let head = git.command("symbolic-ref HEAD");
            let head = head.stdout_line(&cancel).map_err(describe)?;
            make(source, &git, bundle, loop_dir, iteration).map_err(|error| {
                // HEAD points to the same branch as before again.
                let back = git.command("symbolic-ref HEAD").arg(&head);
                let _ = back.stdout(&cancel);
                describe(error)
            })
        }
        Some(repository) => {
            let git = &repository.git;
            let content = fetch(source, git, bundle, iteration).map_err(describe)?;
            let BundleContent { head, branch, tree } = content;
            let merge = match &head {
                Some(head) => {
                    let on = branch.as_deref().unwrap_or(head);
                    to_merge(git, head, on, &cancel).map_err(describe)?
                }
                None => None,
            };
            let uncommitted = tree.is_some() && tree != head;
            Ok(Unpacked::Fetched { merge, uncommitted })
        }
        None => {
            let git = Git::new(&source.working_dir, source.search_path.as_deref());
            let init = git.command("init --quiet");
            init.stdout(&cancel).map_err(describe)?;
            make(source, &git, bundle, loop_dir, iteration).map_err(|error| {
                // The git directory is new: `git init` just created it.
                let _ = std::fs::remove_dir_all(source.working_dir.join(".git"));
                describe(error)
            })
        }
    }
}

/// Returns whether a repository has to be filled: it is empty, or a restore that died left it incomplete.
fn is_to_be_made(source: &BundleSource, cancel: &CancelToken) -> Result<bool, GitError> {
    let git = Git::new(&source.working_dir, source.search_path.as_deref());
    if verify(&git, "HEAD", cancel)?.is_some() {
        return Ok(false);
    }
    // In an incomplete repository, the commands below may fail.
    if mark(&git, &source.working_dir, cancel)?.exists() {
        return Ok(true);
    }
    let refs = git.command("for-each-ref --count=1").stdout(cancel)?;
    Ok(refs.is_empty() && git.command("ls-files").stdout(cancel)?.is_empty())
}

/// Fetches all references of the loop. Existing references with another commit are renamed first. Snapshots of later iterations
/// are renamed, too, because the restored loop repeats those iterations.
pub fn fetch(
    source: &BundleSource,
    git: &Git,
    bundle: &Path,
    iteration: u32,
) -> Result<BundleContent, GitError> {
    let cancel = CancelToken::new();
    let heads = git.command("bundle list-heads").arg(bundle);
    let heads = heads.stdout(&cancel)?;
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
    let mut command = git.command("fetch --quiet --no-tags --no-write-fetch-head");
    command = command.arg(bundle).arg(&all).timeout(Some(TIMEOUT));
    if head.is_some() {
        command = command.arg(&restored);
    }
    snapshots::keep_replaced(git, source.loop_id, &heads)?;
    command.stdout(&cancel)?;
    snapshots::rename_later(git, source.loop_id, iteration)?;
    Ok(BundleContent { head, branch, tree })
}

/// Creates branch, index and work tree in an empty repository. Uncommitted changes are restored as uncommitted changes.
fn make(
    source: &BundleSource,
    git: &Git,
    bundle: &Path,
    loop_dir: &Path,
    iteration: u32,
) -> Result<Unpacked, GitError> {
    let cancel = CancelToken::new();
    let run = |command: GitCommand<'_>| command.timeout(Some(TIMEOUT)).stdout(&cancel);
    let mark = mark(git, &source.working_dir, &cancel)?;
    std::fs::write(&mark, "").map_err(GitError::io("create", &mark))?;
    let BundleContent { head, branch, tree } = fetch(source, git, bundle, iteration)?;
    if let Some(branch) = &branch {
        run(git.command("symbolic-ref HEAD").arg(branch))?;
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
            run(git.command("update-ref").arg(branch).arg(head))?;
            short(branch)
        }
        (Some(head), None) => {
            run(git.command("update-ref --no-deref HEAD").arg(head))?;
            head.clone()
        }
        (None, _) => "a branch without commits".to_owned(),
    };
    match &head {
        Some(head) => run(git.command("read-tree").arg(head))?,
        None => run(git.command("read-tree --empty"))?,
    };
    // A refreshed index saves git from reading every file again.
    let _ = git.command("update-index -q --refresh").run(&cancel);
    let _ = std::fs::remove_file(&mark);
    if let Some(present) = present {
        // Without this record, all changes belong to others, and the loop warns about that.
        let _ = copied::write_restored_record(source, git, &present, head.as_deref(), loop_dir);
    }
    Ok(Unpacked::Made {
        on,
        from_snapshot,
        in_the_way,
    })
}

/// Writes the files of a commit. Existing files are not changed. Returns the existing files that differ from the commit.
fn check_out(source: &BundleSource, git: &Git, commit: &str) -> Result<Vec<String>, GitError> {
    let cancel = CancelToken::new();
    let run = |command: GitCommand<'_>| command.timeout(Some(TIMEOUT)).stdout(&cancel);
    run(git.command("read-tree").arg(commit))?;
    let listed = run(git.command("ls-files -z"))?;
    let (taken, free): (BTreeSet<&[u8]>, BTreeSet<&[u8]>) =
        split_nul(&listed).partition(|path| is_taken(source, path));
    if !free.is_empty() {
        let command = git.command("checkout-index --quiet -u -z --stdin");
        let free = join_nul(free.into_iter());
        // The repository has no remote yet, so LFS objects cannot be fetched.
        run(command.env("GIT_LFS_SKIP_SMUDGE", "1").stdin(&free))?;
    }
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    // Existing files with the same content are not reported as different.
    let refresh = git.command("update-index -q --really-refresh");
    refresh.timeout(Some(TIMEOUT)).run(&cancel)?;
    let changed = run(git.command("diff-files -z --name-only"))?;
    let changed = split_nul(&changed).filter(|path| taken.contains(path));
    Ok(changed
        .map(|path| RepoPath::new(path).to_string())
        .collect())
}

/// Returns whether something exists at a path or in place of one of its directories. Symbolic links are not followed.
fn is_taken(source: &BundleSource, path: &[u8]) -> bool {
    let there = |path: &[u8]| std::fs::symlink_metadata(at(&source.working_dir, path));
    let is_no_dir = |above: &[u8]| match there(above) {
        Ok(there) => !there.is_dir(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    let is_free = |error: std::io::Error| error.kind() == ErrorKind::NotFound;
    ancestors(path).any(is_no_dir) || !there(path).is_err_and(is_free)
}

/// Returns the path of the file that marks an incomplete restore. `dir` is the top of the repository.
fn mark(git: &Git, dir: &Path, cancel: &CancelToken) -> Result<PathBuf, GitError> {
    let command = git.command("rev-parse --git-path").arg(MARK);
    Ok(dir.join(command.stdout_line(cancel)?))
}

fn is_iteration(kept: &KeptSnapshot) -> bool {
    matches!(kept.moment, Moment::Iteration(_))
}

/// Returns the commit of a work tree if its parent is HEAD. Otherwise the work tree does not match HEAD.
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

/// Returns the commits that have to be merged so that the branch contains `commit`; `None` if it already does.
fn to_merge(
    git: &Git,
    commit: &str,
    on: &str,
    cancel: &CancelToken,
) -> Result<Option<Merge>, GitError> {
    let is_in = |one: &str, other: &str| {
        let command = git.command("merge-base --is-ancestor").arg(one).arg(other);
        command.is_true(cancel)
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
