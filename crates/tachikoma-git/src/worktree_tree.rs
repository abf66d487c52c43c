//! Writes the present work tree as a git tree, with a private index, so that the user's index is unchanged.

use std::collections::BTreeSet;
use std::path::Path;

use super::index_file::TemporaryIndex;
use super::known_tree::NewFileBudget;
use super::loop_files::INDEX;
use super::path::{at, is_ours, is_there, join_nul, split_nul};
use super::program::{CancelToken, GitCommand, GitError};
use super::repository::Repository;
use super::runtime_files::RuntimeFiles;
use tachikoma_config::Settings;
use tachikoma_config::{Protected, ProtectedError};

/// Lists files that may differ from the index.
const CHANGED: [&str; 5] = [
    "diff-files",
    "-z",
    "--name-only",
    "--no-renames",
    "--ignore-submodules=dirty",
];

/// Files that are left out.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Files that are never stored or replaced.
    pub protected: Protected,
    /// Larger new files are not stored; 0 = no limit.
    pub max_file_bytes: u64,
    /// Files that the loop writes.
    pub runtime_files: RuntimeFiles,
}

/// The settings for [`Rules`]. Building the patterns takes time, and most callers do not need them.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    protected: Vec<String>,
    max_file_bytes: u64,
    /// Files that the loop writes.
    pub runtime_files: RuntimeFiles,
}

impl Bounds {
    /// Returns the settings of a working directory.
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
    /// A pattern is invalid.
    pub fn rules(&self) -> Result<Rules, ProtectedError> {
        Ok(Rules {
            protected: Protected::new(&self.protected)?,
            max_file_bytes: self.max_file_bytes,
            runtime_files: self.runtime_files.clone(),
        })
    }
}

impl Rules {
    /// Returns whether a path is never read or changed.
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

/// The present work tree as a git tree, with the index that it was written from.
#[derive(Debug)]
pub struct WorktreeTree {
    /// The id of the tree.
    pub tree: String,
    /// New files that are left out because they exceed the budget together.
    pub crowded: Vec<Vec<u8>>,
    pub(crate) repository: Repository,
    pub(crate) index: TemporaryIndex,
}

impl WorktreeTree {
    /// Builds a command that uses the index.
    pub fn command<'a>(&'a self, args: &[&'a str]) -> GitCommand<'a> {
        self.repository.git.command(args).index(&self.index.0)
    }

    /// Lists the files that differ from the index.
    pub fn differing(&self, cancel: &CancelToken) -> Result<BTreeSet<Vec<u8>>, GitError> {
        // It fails if files differ, which the next command lists.
        let refresh = self.command(&["update-index", "-q", "--refresh"]);
        refresh.run(cancel)?;
        let output = self.command(&CHANGED).stdout(cancel)?;
        Ok(split_nul(&output).map(<[u8]>::to_vec).collect())
    }
}

/// Writes the work tree of a repository as a tree. Files that are in `before` do not count as new. Changes nothing that the user
/// sees; the contents of changed files are added to the object database. Blocks.
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
    let ask = |args: &[&str], stdin: &[u8]| {
        let command = repository.git.command(args).index(&index.0);
        command.stdin(stdin).stdout(cancel)
    };
    let changed = ask(&CHANGED, &[])?;
    let new = ask(&["ls-files", "-z", "--others", "--exclude-standard"], &[])?;
    let known = ask(&["ls-tree", "-r", "-z", "--name-only", before], &[])?;
    let known: BTreeSet<&[u8]> = split_nul(&known).collect();
    let top = &repository.top;
    let changed = split_nul(&changed).filter(|path| !rules.is_off_limits(top, path));
    let (there, gone): (Vec<_>, Vec<_>) = changed.partition(|path| is_there(top, path));
    let new = split_nul(&new).filter(|path| {
        // Git prints a nested repository with a slash.
        !path.ends_with(b"/")
            && !rules.is_off_limits(top, path)
            && (known.contains(path) || !rules.is_huge(&at(top, path)))
    });
    let mut room = NewFileBudget::new(rules.max_file_bytes);
    let own = ask(&["ls-files", "-z"], &[])?;
    let users = repository.git.command(&["ls-files", "-z"]).stdout(cancel)?;
    let users: BTreeSet<&[u8]> = split_nul(&users).collect();
    for path in split_nul(&own).filter(|path| !users.contains(path)) {
        room.take(size_of(&at(top, path)));
    }
    let (new, crowded): (Vec<_>, Vec<_>) =
        new.partition(|path| known.contains(path) || room.take(size_of(&at(top, path))));
    let there = there.into_iter().filter(|path| can_be_kept(top, path));
    let args = ["update-index", "-z", "--force-remove", "--stdin"];
    ask(&args, &join_nul(gone.into_iter()))?;
    let args = [
        "update-index",
        "-z",
        "--add",
        "--remove",
        "--replace",
        "--stdin",
    ];
    ask(&args, &join_nul(there.chain(new)))?;
    let tree = repository.git.command(&["write-tree"]).index(&index.0);
    Ok(WorktreeTree {
        tree: tree.stdout_line(cancel)?,
        crowded: crowded.into_iter().map(<[u8]>::to_vec).collect(),
        repository,
        index,
    })
}

/// Returns whether git can store a path: files, links and submodules, but not pipes.
fn can_be_kept(top: &Path, path: &[u8]) -> bool {
    std::fs::symlink_metadata(at(top, path)).map_or(true, |there| {
        there.is_file() || there.is_symlink() || there.is_dir()
    })
}
