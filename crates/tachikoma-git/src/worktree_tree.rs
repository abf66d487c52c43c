//! The work tree as it is now, as a tree that git can compare: made in an index of our own, so that the user's index stays as it is.

use std::collections::BTreeSet;
use std::path::Path;

use super::index_file::TemporaryIndex;
use super::loop_files::INDEX;
use super::path::{at, ended_by_nul, is_ours, is_there, parts};
use super::program::{CancelToken, GitError, Order};
use super::repository::Repository;
use super::runtime_files::RuntimeFiles;
use super::walk_result::NewFileBudget;
use tachikoma_config::Settings;
use tachikoma_config::{Protected, ProtectedError};

/// Lists files that are not, or may not be, what the index says.
const CHANGED: [&str; 5] = [
    "diff-files",
    "-z",
    "--name-only",
    "--no-renames",
    "--ignore-submodules=dirty",
];

/// What is left alone.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Files that are neither kept nor replaced.
    pub protected: Protected,
    /// New files above this size are not kept. 0 = no limit.
    pub max_file_bytes: u64,
    /// What else the loop writes.
    pub runtime_files: RuntimeFiles,
}

/// What is left alone, in the words of the settings: patterns take their time to be built, and few need them.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    protected: Vec<String>,
    max_file_bytes: u64,
    /// What the loop itself writes.
    pub runtime_files: RuntimeFiles,
}

impl Bounds {
    /// Returns what the settings of a working directory leave alone.
    #[must_use]
    pub fn of(settings: &Settings, working_dir: &Path) -> Self {
        let (git, state) = (&settings.git, &settings.state);
        Self {
            protected: git.protected.clone(),
            max_file_bytes: git.max_file_bytes,
            runtime_files: RuntimeFiles::new(
                &working_dir.join(&state.state_path),
                &working_dir.join(&settings.session.state_dir),
                &working_dir.join(&state.backup_dir),
            ),
        }
    }

    /// Builds the rules.
    ///
    /// # Errors
    /// A pattern cannot be used.
    pub fn rules(&self) -> Result<Rules, ProtectedError> {
        Ok(Rules {
            protected: Protected::new(&self.protected)?,
            max_file_bytes: self.max_file_bytes,
            runtime_files: self.runtime_files.clone(),
        })
    }
}

impl Rules {
    /// Returns whether a path, from the top, is never looked at nor touched.
    pub fn is_off_limits(&self, top: &Path, path: &[u8]) -> bool {
        is_ours(path) || self.protected.has(path) || self.runtime_files.has(top, path)
    }

    pub(crate) fn is_huge(&self, path: &Path) -> bool {
        self.max_file_bytes > 0 && size_of(path) > self.max_file_bytes
    }
}

fn size_of(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).map_or(0, |there| there.len())
}

/// The work tree as it is, with the index that it was made in.
#[derive(Debug)]
pub struct WorktreeTree {
    /// The tree.
    pub tree: String,
    /// New files that it does not have, because there is no room for so much.
    pub crowded: Vec<Vec<u8>>,
    pub(crate) repository: Repository,
    pub(crate) index: TemporaryIndex,
}

impl WorktreeTree {
    /// Begins an order on the index that the tree was made in.
    pub fn order<'a>(&'a self, words: &[&'a str]) -> Order<'a> {
        self.repository.git.order(words).index(&self.index.0)
    }

    /// Names the files that are not what the index says.
    pub fn differing(&self, cancel: &CancelToken) -> Result<BTreeSet<Vec<u8>>, GitError> {
        // It fails where there is something to say, which is asked next.
        let refresh = self.order(&["update-index", "-q", "--refresh"]);
        refresh.run(cancel)?;
        let answer = self.order(&CHANGED).ask(cancel)?;
        Ok(parts(&answer).map(<[u8]>::to_vec).collect())
    }
}

/// Looks at the work tree of a repository. `before` is what it will be compared with: what that has is not new, whatever its
/// size. Nothing that the user sees changes; the contents of changed files go to git's store. Blocks.
///
/// # Errors
/// Git fails, or the index cannot be copied.
pub fn worktree_tree(
    repository: Repository,
    loop_dir: &Path,
    rules: &Rules,
    before: &str,
    cancel: &CancelToken,
) -> Result<WorktreeTree, GitError> {
    let surveyed = loop_dir.join(INDEX);
    let base = if surveyed.is_file() {
        &surveyed
    } else {
        &repository.index
    };
    let index = TemporaryIndex::of(base.is_file().then_some(base), loop_dir)?;
    let ask = |words: &[&str], stdin: &[u8]| {
        let order = repository.git.order(words).index(&index.0);
        order.stdin(stdin).ask(cancel)
    };
    let changed = ask(&CHANGED, &[])?;
    let new = ask(&["ls-files", "-z", "--others", "--exclude-standard"], &[])?;
    let known = ask(&["ls-tree", "-r", "-z", "--name-only", before], &[])?;
    let known: BTreeSet<&[u8]> = parts(&known).collect();
    let top = &repository.top;
    let changed = parts(&changed).filter(|path| !rules.is_off_limits(top, path));
    let (there, gone): (Vec<_>, Vec<_>) = changed.partition(|path| is_there(top, path));
    let new = parts(&new).filter(|path| {
        // A repository of its own ends with a slash.
        !path.ends_with(b"/")
            && !rules.is_off_limits(top, path)
            && (known.contains(path) || !rules.is_huge(&at(top, path)))
    });
    let mut room = NewFileBudget::new(rules.max_file_bytes);
    let own = ask(&["ls-files", "-z"], &[])?;
    let users = repository.git.order(&["ls-files", "-z"]).ask(cancel)?;
    let users: BTreeSet<&[u8]> = parts(&users).collect();
    for path in parts(&own).filter(|path| !users.contains(path)) {
        room.take(size_of(&at(top, path)));
    }
    let (new, crowded): (Vec<_>, Vec<_>) =
        new.partition(|path| known.contains(path) || room.take(size_of(&at(top, path))));
    let there = there.into_iter().filter(|path| can_be_kept(top, path));
    let words = ["update-index", "-z", "--force-remove", "--stdin"];
    ask(&words, &ended_by_nul(gone.into_iter()))?;
    let words = [
        "update-index",
        "-z",
        "--add",
        "--remove",
        "--replace",
        "--stdin",
    ];
    ask(&words, &ended_by_nul(there.chain(new)))?;
    let tree = repository.git.order(&["write-tree"]).index(&index.0);
    Ok(WorktreeTree {
        tree: tree.ask_line(cancel)?,
        crowded: crowded.into_iter().map(<[u8]>::to_vec).collect(),
        repository,
        index,
    })
}

/// Git keeps files, links and submodules; a pipe in the place of one is passed over.
fn can_be_kept(top: &Path, path: &[u8]) -> bool {
    std::fs::symlink_metadata(at(top, path)).map_or(true, |there| {
        there.is_file() || there.is_symlink() || there.is_dir()
    })
}
