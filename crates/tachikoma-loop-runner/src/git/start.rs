//! What would stand in the way of commits: looked at before a loop starts, not hours later.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::path::{RepoPath, is_ours, parts};
use super::program::{CallOff, Git, GitError};
use super::repository::{Found, Repository};
use crate::chain;
use crate::store::lock;

/// How the repository of a working directory stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The top of its work tree.
    pub top: PathBuf,
    /// Tracked files with changes that are not committed, from the top. Contents of submodules are not looked at.
    pub dirty: Vec<String>,
    /// Why git would refuse to commit for want of an identity, in its words.
    pub no_identity: Option<String>,
}

/// Looks at the repository of a working directory. Blocks, for a while that is bounded.
///
/// # Errors
/// There is none that git could use, in one line.
pub fn standing(dir: &Path, search_path: Option<&OsStr>) -> Result<Standing, String> {
    let call_off = CallOff::new();
    let repository = match Repository::find(dir, search_path, &call_off) {
        Found::Repository(repository) => repository,
        Found::NoRepository => return Err("no repository here".to_owned()),
        Found::Unusable { reason } => return Err(reason),
    };
    let order = repository.git.order(&[
        "status",
        "--porcelain=v1",
        "-z",
        "--untracked-files=no",
        "--no-renames",
        "--ignore-submodules=dirty",
    ]);
    let answer = order.ask(&call_off).map_err(|error| chain(&error))?;
    // Two letters and a space before each name.
    let names = parts(&answer).filter_map(|entry| entry.get(3..));
    let dirty = names.filter(|name| !is_ours(name)).map(RepoPath::new);
    Ok(Standing {
        dirty: dirty.map(|path| path.to_string()).collect(),
        no_identity: no_identity(&repository.git, &call_off),
        top: repository.top,
    })
}

/// Asks for both names that a commit has, as strictly as the commit would.
fn no_identity(git: &Git, call_off: &CallOff) -> Option<String> {
    ["GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"]
        .iter()
        .find_map(|name| match git.order(&["var", name]).ask(call_off) {
            Err(GitError::Failed { words, .. }) => {
                let last = words.lines().last().unwrap_or_default();
                Some(last.trim_start_matches("fatal: ").to_owned())
            }
            Ok(_) | Err(_) => None,
        })
}

/// Finds a directory around `working_dir`, up to the top of the same repository, in which a loop is live: each of the two would
/// take the other's changes for its own.
#[must_use]
pub fn live_around(working_dir: &Path, top: &Path) -> Option<PathBuf> {
    let above = working_dir.ancestors().skip(1);
    above
        .take_while(|dir| dir.starts_with(top))
        .find(|dir| lock::is_held(dir))
        .map(Path::to_owned)
}
