//! Checks, before a loop starts, whether its commits would fail.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use tachikoma_fs::RALPH_DIR;

use super::bundle;
use super::path::{RepoPath, is_ours, split_nul};
use super::program::{CancelToken, Git, GitError};
use super::repository::Repository;
use tachikoma_core::error_chain as chain;
use tachikoma_store::lock;

/// Maximum number of directories that are searched. Searching that many takes a tenth of a second.
const DIRS_MAX: usize = 4000;

/// First entry of `git status --branch` when no branch is checked out. A branch cannot have such a name.
const DETACHED: &[u8] = b"## HEAD (no branch)";

/// State of the git repository that contains a working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryState {
    /// The top of the work tree.
    pub top: PathBuf,
    /// Tracked files with uncommitted changes, relative to the top. Submodules are not examined.
    pub dirty: Vec<String>,
    /// Whether HEAD is detached.
    pub detached: bool,
    /// Git's message if the user has no identity for commits; `None` if there is one or the loop does not commit.
    pub no_identity: Option<String>,
    /// Path of the file that marks an incomplete restore; `None` if no restore is incomplete.
    pub half_restored: Option<PathBuf>,
}

/// Examines the repository of a working directory. `commits` is whether the loop commits. Blocks for a bounded time.
///
/// # Errors
/// There is no usable repository. The error is the cause, in one line.
pub fn repository_state(
    dir: &Path,
    search_path: Option<&OsStr>,
    commits: bool,
) -> Result<RepositoryState, String> {
    let cancel = CancelToken::new();
    let found = Repository::find(dir, search_path, &cancel)?;
    let repository = found.ok_or("no repository here")?;
    let command = repository.git.command("status --porcelain=v1 --branch --no-ahead-behind -z --untracked-files=no --no-renames --ignore-submodules=dirty");
    let output = command.stdout(&cancel).map_err(|error| chain(&error))?;
    // In each entry, two letters and a space precede the path.
    let mut entries = split_nul(&output);
    let detached = entries.next() == Some(DETACHED);
    let names = entries.filter_map(|entry| entry.get(3..));
    let dirty = names.filter(|name| !is_ours(name)).map(RepoPath::new);
    Ok(RepositoryState {
        detached,
        dirty: dirty.map(|path| path.to_string()).collect(),
        no_identity: commits
            .then(|| no_identity(&repository.git, &cancel))
            .flatten(),
        half_restored: Some(repository.git_dir.join(bundle::MARK)).filter(|mark| mark.exists()),
        top: repository.top,
    })
}

/// Checks the author and the committer as strictly as `git commit`. Returns git's message if one is missing.
fn no_identity(git: &Git, cancel: &CancelToken) -> Option<String> {
    ["GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"]
        .iter()
        .find_map(|name| match git.command("var").arg(name).stdout(cancel) {
            Err(GitError::Failed { stderr, .. }) => {
                let last = stderr.lines().last().unwrap_or_default();
                Some(last.trim_start_matches("fatal: ").to_owned())
            }
            Ok(_) | Err(_) => None,
        })
}

/// Finds a directory of the same repository in which another loop runs. Each of the two would attribute the other's changes to itself.
#[must_use]
pub fn live_around(working_dir: &Path, top: &Path) -> Option<PathBuf> {
    let above = working_dir.ancestors().skip(1);
    let above = above
        .take_while(|dir| dir.starts_with(top))
        .find(|dir| lock::is_held(dir));
    match above {
        Some(above) => Some(above.to_owned()),
        None => live_below(top, working_dir),
    }
}

/// Searches the directories of a repository for a running loop, those near the top first, up to a limit.
fn live_below(top: &Path, except: &Path) -> Option<PathBuf> {
    let mut waiting = VecDeque::from([top.to_owned()]);
    let mut searched = 0;
    while let Some(dir) = waiting.pop_front() {
        searched += 1;
        if searched > DIRS_MAX {
            return None;
        }
        // A directory that cannot be read is treated as one without a loop.
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            if name == RALPH_DIR {
                if dir != except && lock::is_held(&dir) {
                    return Some(dir);
                }
            } else if name != ".git" && waiting.len() < DIRS_MAX {
                waiting.push_back(entry.path());
            }
        }
    }
    None
}
