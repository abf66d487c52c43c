//! Which repository a directory belongs to, and where its parts are.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::program::{CancelToken, Git, GitError, Order};

/// How git begins when there is no repository; with anything else something is wrong with the one there is.
const NOT_A_REPOSITORY: &str = "fatal: not a git repository (or any";

/// A repository with a work tree.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Git at the top of the work tree.
    pub git: Git,
    /// The top of the work tree.
    pub top: PathBuf,
    /// The directory of this work tree's own things: `HEAD`, the index, what is under way.
    pub git_dir: PathBuf,
    /// The directory of what all work trees of the repository share: branches, `info/exclude`.
    pub common_dir: PathBuf,
    /// The user's index.
    pub index: PathBuf,
}

/// What was found around a directory.
#[derive(Debug)]
pub enum Found {
    /// A repository that can be worked with.
    Repository(Box<Repository>),
    /// None, or one that has nothing to do with the directory because it ignores it.
    NoRepository,
    /// One that cannot be used, or no `git` to use it.
    Unusable {
        /// Why, in one line.
        reason: String,
    },
}

/// Returns whether asking `git` about a directory is worth a process: somewhere above it there is a `.git`, a directory or,
/// in linked work trees, a file.
#[must_use]
pub fn may_be_in_a_repository(dir: &Path) -> bool {
    dir.ancestors().any(|above| above.join(".git").exists())
}

impl Repository {
    /// Looks for the repository of a directory. Starts no process where there cannot be one. Blocks, for a while that is
    /// bounded.
    #[must_use]
    pub fn find(dir: &Path, search_path: Option<&OsStr>, cancel: &CancelToken) -> Found {
        if !may_be_in_a_repository(dir) {
            return Found::NoRepository;
        }
        match look(&Git::new(dir, search_path), dir, cancel) {
            Ok(found) => found,
            Err(GitError::Failed { words, .. }) if words.starts_with(NOT_A_REPOSITORY) => {
                Found::NoRepository
            }
            Err(GitError::Failed { words, .. }) => Found::Unusable {
                reason: first_line(&words),
            },
            Err(error) => Found::Unusable {
                reason: tachikoma_core::error_chain(&error),
            },
        }
    }

    /// The same repository, with processes that are known to be a loop's.
    #[must_use]
    pub fn of_loop(mut self, loop_id: tachikoma_core::LoopId, hidden: Vec<OsString>) -> Self {
        self.git = self.git.of_loop(loop_id, hidden);
        self
    }

    /// Where git keeps its lock on the user's index.
    #[must_use]
    pub fn index_lock(&self) -> PathBuf {
        with_suffix(&self.index, ".lock")
    }
}

fn look(git: &Git, dir: &Path, cancel: &CancelToken) -> Result<Found, GitError> {
    let places = match places_at_once(git, cancel)? {
        Some(places) => Some(places),
        None => places_one_by_one(git, cancel)?,
    };
    let Some([top, git_dir, common_dir]) = places else {
        return Ok(Found::NoRepository);
    };
    if !top.join(".git").exists() {
        // Git found it by a setting; at the top of its work tree nobody would.
        return Ok(Found::Unusable {
            reason: format!(
                "the repository {} lies apart from its work tree {}",
                git_dir.display(),
                top.display()
            ),
        });
    }
    let git = git.clone().in_dir(&top);
    if is_ignored(&git, &top, dir, cancel)? {
        return Ok(Found::NoRepository);
    }
    Ok(Found::Repository(Box::new(Repository {
        index: git_dir.join("index"),
        git,
        top,
        git_dir,
        common_dir,
    })))
}

/// Returns the top of the work tree, the git directory and the common directory, by one process. `None` if that is not possible: a
/// path contains a line end, or the directory is not in a work tree.
fn places_at_once(git: &Git, cancel: &CancelToken) -> Result<Option<[PathBuf; 3]>, GitError> {
    let answer = git
        .order(&[
            "rev-parse",
            "--path-format=absolute",
            "--is-inside-work-tree",
            "--show-toplevel",
            "--git-dir",
            "--git-common-dir",
        ])
        .run(cancel)?;
    let lines: Vec<&[u8]> = answer.bytes.split(|byte| *byte == b'\n').collect();
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    Ok(match lines[..] {
        [b"true", top, git_dir, common_dir, b""] if answer.code == Some(0) => {
            Some([top, git_dir, common_dir].map(path))
        }
        _ => None,
    })
}

/// Returns the same by one process each; `None` if the directory is not in a work tree.
fn places_one_by_one(git: &Git, cancel: &CancelToken) -> Result<Option<[PathBuf; 3]>, GitError> {
    let inside = git.order(&["rev-parse", "--is-inside-work-tree"]);
    if inside.ask_line(cancel)? != "true" {
        return Ok(None);
    }
    let place = |what| {
        let order = git.order(&["rev-parse", "--path-format=absolute", what]);
        path_of(&order, cancel)
    };
    Ok(Some([
        place("--show-toplevel")?,
        place("--git-dir")?,
        place("--git-common-dir")?,
    ]))
}

/// Whether the repository ignores the directory, and so nothing in it is the repository's business.
fn is_ignored(git: &Git, top: &Path, dir: &Path, cancel: &CancelToken) -> Result<bool, GitError> {
    let dir = dir
        .canonicalize()
        .map_err(GitError::io("look at directory", dir))?;
    let top = top
        .canonicalize()
        .map_err(GitError::io("look at directory", top))?;
    let below = match dir.strip_prefix(&top) {
        Ok(below) if !below.as_os_str().is_empty() => below,
        Ok(_) | Err(_) => return Ok(false),
    };
    // It takes no `--literal-pathspecs`; behind a dot nothing is magic.
    let below = Path::new(".").join(below);
    let order = git.order(&["check-ignore", "--quiet", "--"]).word(&below);
    let answer = order.run(cancel)?;
    match answer.code {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        Some(_) | None => Err(order.failed(&answer)),
    }
}

/// An answer that is a path, with whatever is in it but the last line end.
fn path_of(order: &Order<'_>, cancel: &CancelToken) -> Result<PathBuf, GitError> {
    let mut bytes = order.ask(cancel)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if !bytes.starts_with(b"/") {
        return Err(GitError::Odd {
            what: "rev-parse",
            answer: OsStr::from_bytes(&bytes).to_string_lossy().into_owned(),
        });
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Git's advice takes many lines; the first says what is wrong.
fn first_line(words: &str) -> String {
    let line = words.lines().next().unwrap_or_default();
    line.strip_prefix("fatal: ").unwrap_or(line).to_owned()
}
