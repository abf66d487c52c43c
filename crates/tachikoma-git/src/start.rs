//! What would stand in the way of commits: looked at before a loop starts, not hours later.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use tachikoma_fs::RALPH_DIR;

use super::bundle;
use super::path::{RepoPath, is_ours, parts};
use super::program::{CancelToken, Git, GitError};
use super::repository::{Found, Repository};
use tachikoma_core::error_chain as chain;
use tachikoma_store::lock;

/// A look into so many directories takes a tenth of a second; whoever starts a loop should not have to wait longer for a warning.
const LOOKED_AT_MAX: usize = 4000;

/// First entry of `git status --branch` when no branch is checked out. A branch cannot have such a name.
const DETACHED: &[u8] = b"## HEAD (no branch)";

/// How the repository of a working directory stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The top of its work tree.
    pub top: PathBuf,
    /// Tracked files with changes that are not committed, from the top. Contents of submodules are not looked at.
    pub dirty: Vec<String>,
    /// Whether it stands on no branch.
    pub detached: bool,
    /// Why git would refuse to commit for want of an identity, in its words; `None` also if the loop does not commit.
    pub no_identity: Option<String>,
    /// What says that a restoration died while it made the work tree, if one did.
    pub half_restored: Option<PathBuf>,
}

/// Looks at the repository of a working directory. `commits` says whether the loop is to commit there. Blocks, for a while that is
/// bounded.
///
/// # Errors
/// There is none that git could use, in one line.
pub fn standing(
    dir: &Path,
    search_path: Option<&OsStr>,
    commits: bool,
) -> Result<Standing, String> {
    let cancel = CancelToken::new();
    let repository = match Repository::find(dir, search_path, &cancel) {
        Found::Repository(repository) => repository,
        Found::NoRepository => return Err("no repository here".to_owned()),
        Found::Unusable { reason } => return Err(reason),
    };
    let order = repository.git.order(&[
        "status",
        "--porcelain=v1",
        "--branch",
        "--no-ahead-behind",
        "-z",
        "--untracked-files=no",
        "--no-renames",
        "--ignore-submodules=dirty",
    ]);
    let answer = order.ask(&cancel).map_err(|error| chain(&error))?;
    // Two letters and a space before each name.
    let mut entries = parts(&answer);
    let detached = entries.next() == Some(DETACHED);
    let names = entries.filter_map(|entry| entry.get(3..));
    let dirty = names.filter(|name| !is_ours(name)).map(RepoPath::new);
    Ok(Standing {
        detached,
        dirty: dirty.map(|path| path.to_string()).collect(),
        no_identity: commits
            .then(|| no_identity(&repository.git, &cancel))
            .flatten(),
        half_restored: Some(repository.git_dir.join(bundle::MARK)).filter(|mark| mark.exists()),
        top: repository.top,
    })
}

/// Asks for both names that a commit has, as strictly as the commit would.
fn no_identity(git: &Git, cancel: &CancelToken) -> Option<String> {
    ["GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"]
        .iter()
        .find_map(|name| match git.order(&["var", name]).ask(cancel) {
            Err(GitError::Failed { words, .. }) => {
                let last = words.lines().last().unwrap_or_default();
                Some(last.trim_start_matches("fatal: ").to_owned())
            }
            Ok(_) | Err(_) => None,
        })
}

/// Finds a directory of the same repository in which another loop is live, above `working_dir` or anywhere else: each of the two
/// would take the other's changes for its own.
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

/// Looks through the directories of a repository, those near the top first, and not through all of a large one.
fn live_below(top: &Path, but_for: &Path) -> Option<PathBuf> {
    let mut waiting = VecDeque::from([top.to_owned()]);
    let mut looked_at = 0;
    while let Some(dir) = waiting.pop_front() {
        looked_at += 1;
        if looked_at > LOOKED_AT_MAX {
            return None;
        }
        // What cannot be looked into has no loop of ours.
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            if name == RALPH_DIR {
                if dir != but_for && lock::is_held(&dir) {
                    return Some(dir);
                }
            } else if name != ".git" && waiting.len() < LOOKED_AT_MAX {
                waiting.push_back(entry.path());
            }
        }
    }
    None
}
