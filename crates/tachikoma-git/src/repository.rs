//! Finds the repository of a directory.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::program::{CancelToken, Git, GitCommand, GitError};
use tachikoma_store::layout::with_suffix;

/// Start of git's message if there is no repository. Other messages mean that the repository cannot be used.
const NOT_A_REPOSITORY: &str = "fatal: not a git repository (or any";

/// A repository with a work tree.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Runs git at the top of the work tree.
    pub git: Git,
    /// The top of the work tree.
    pub top: PathBuf,
    /// The git directory of this work tree, with `HEAD` and the index.
    pub git_dir: PathBuf,
    /// The git directory that all work trees of the repository share, with branches and `info/exclude`.
    pub common_dir: PathBuf,
    /// The user's index.
    pub index: PathBuf,
}

/// Returns whether there is a `.git` in the directory or above it: a directory or, in linked work trees, a file. If not, git does
/// not have to be started.
#[must_use]
pub fn may_be_in_a_repository(dir: &Path) -> bool {
    dir.ancestors().any(|above| above.join(".git").exists())
}

impl Repository {
    /// Finds the repository of a directory; `None` if there is no repository, or it ignores the directory. Starts no process if
    /// there is no `.git`. Blocks for a bounded time.
    ///
    /// # Errors
    /// The repository cannot be used, or `git` is not installed. The error is the cause, in one line.
    pub fn find(
        dir: &Path,
        search_path: Option<&OsStr>,
        cancel: &CancelToken,
    ) -> Result<Option<Self>, String> {
        if !may_be_in_a_repository(dir) {
            return Ok(None);
        }
        match find_with(&Git::new(dir, search_path), dir, cancel) {
            Ok(Some(found)) if !found.top.join(".git").exists() => Err(format!(
                // A configuration value names the work tree, so git would not find the repository from the top of the work tree.
                "the git directory {} is outside of its work tree {}, which is not supported",
                found.git_dir.display(),
                found.top.display()
            )),
            Ok(found) => Ok(found),
            Err(GitError::Failed { stderr, .. }) if stderr.starts_with(NOT_A_REPOSITORY) => {
                Ok(None)
            }
            Err(GitError::Failed { stderr, .. }) => Err(first_line(&stderr)),
            Err(error) => Err(tachikoma_core::error_chain(&error)),
        }
    }

    /// Returns the same repository. Its git processes are marked as processes of a loop, without the variables `hidden`.
    #[must_use]
    pub fn of_loop(mut self, loop_id: tachikoma_core::LoopId, hidden: Vec<OsString>) -> Self {
        self.git = self.git.of_loop(loop_id, hidden);
        self
    }

    /// Returns the path of git's lock on the user's index.
    #[must_use]
    pub fn index_lock(&self) -> PathBuf {
        with_suffix(&self.index, ".lock")
    }
}

/// Finds the repository of a directory with git; `None` if there is no work tree, or it ignores the directory.
fn find_with(git: &Git, dir: &Path, cancel: &CancelToken) -> Result<Option<Repository>, GitError> {
    let paths = match paths_at_once(git, cancel)? {
        Some(paths) => Some(paths),
        None => paths_one_by_one(git, cancel)?,
    };
    let Some([top, git_dir, common_dir]) = paths else {
        return Ok(None);
    };
    let git = git.clone().in_dir(&top);
    if top.join(".git").exists() && is_ignored(&git, &top, dir, cancel)? {
        return Ok(None);
    }
    Ok(Some(Repository {
        index: git_dir.join("index"),
        git,
        top,
        git_dir,
        common_dir,
    }))
}

/// Returns the top of the work tree, the git directory and the common directory, with one process. `None` if a path contains a
/// line end, or the directory is not in a work tree.
fn paths_at_once(git: &Git, cancel: &CancelToken) -> Result<Option<[PathBuf; 3]>, GitError> {
    let output = git
        .command("rev-parse --path-format=absolute --is-inside-work-tree --show-toplevel --git-dir --git-common-dir")
        .run(cancel)?;
    let lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').collect();
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    Ok(match lines[..] {
        [b"true", top, git_dir, common_dir, b""] if output.code == Some(0) => {
            Some([top, git_dir, common_dir].map(path))
        }
        _ => None,
    })
}

/// Returns the same three directories with one process each. `None` if the directory is not in a work tree.
fn paths_one_by_one(git: &Git, cancel: &CancelToken) -> Result<Option<[PathBuf; 3]>, GitError> {
    let inside = git.command("rev-parse --is-inside-work-tree");
    if inside.stdout_line(cancel)? != "true" {
        return Ok(None);
    }
    let place = |what| {
        let command = git.command("rev-parse --path-format=absolute").arg(what);
        path_of(&command, cancel)
    };
    Ok(Some([
        place("--show-toplevel")?,
        place("--git-dir")?,
        place("--git-common-dir")?,
    ]))
}

/// Returns whether the repository ignores the directory.
fn is_ignored(git: &Git, top: &Path, dir: &Path, cancel: &CancelToken) -> Result<bool, GitError> {
    let dir = dir
        .canonicalize()
        .map_err(GitError::io("read directory", dir))?;
    let top = top
        .canonicalize()
        .map_err(GitError::io("read directory", top))?;
    let below = match dir.strip_prefix(&top) {
        Ok(below) if !below.as_os_str().is_empty() => below,
        Ok(_) | Err(_) => return Ok(false),
    };
    // The command has no `--literal-pathspecs`, but a path that starts with `./` is never a pattern.
    let below = Path::new(".").join(below);
    let command = git.command("check-ignore --quiet --").arg(&below);
    command.is_true(cancel)
}

/// Returns the output of a command as one path, which may contain line ends.
fn path_of(command: &GitCommand<'_>, cancel: &CancelToken) -> Result<PathBuf, GitError> {
    let mut bytes = command.stdout(cancel)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if !bytes.starts_with(b"/") {
        return Err(GitError::unexpected(
            "rev-parse",
            String::from_utf8_lossy(&bytes),
        ));
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

/// Returns the first line of git's message. The other lines are advice.
fn first_line(stderr: &str) -> String {
    let line = stderr.lines().next().unwrap_or_default();
    line.strip_prefix("fatal: ").unwrap_or(line).to_owned()
}
