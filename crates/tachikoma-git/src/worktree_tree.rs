//! Writes the current work tree as a git tree, with a temporary index, so that the user's index is unchanged.

use std::collections::BTreeSet;
use std::path::Path;

use super::index_file::TemporaryIndex;
use super::known_tree::NewFileBudget;
use super::loop_files::INDEX;
use super::path::{at, is_there, join_nul, split_nul};
use super::program::{CancelToken, GitCommand, GitError};
use super::repository::Repository;
pub use super::rules::{Bounds, Rules};

/// Git command that lists files that may differ from the index.
const CHANGED: &str = "diff-files -z --name-only --no-renames --ignore-submodules=dirty";

/// The current work tree as a git tree, with the index that it was written from.
#[derive(Debug)]
pub struct WorktreeTree {
    /// The id of the tree.
    pub tree: String,
    /// New files that are left out because they exceed the limit for all new files together.
    pub over_budget: Vec<Vec<u8>>,
    pub(crate) repository: Repository,
    pub(crate) index: TemporaryIndex,
}

impl WorktreeTree {
    /// Builds a git command that uses the temporary index.
    pub fn command(&self, args: &'static str) -> GitCommand<'_> {
        self.repository.git.command(args).index(&self.index.0)
    }

    /// Lists the files that differ from the temporary index.
    pub fn differing(&self, cancel: &CancelToken) -> Result<BTreeSet<Vec<u8>>, GitError> {
        // `update-index` fails if files differ, which is expected. The next command lists these files.
        let refresh = self.command("update-index -q --refresh");
        refresh.run(cancel)?;
        let output = self.command(CHANGED).stdout(cancel)?;
        Ok(split_nul(&output).map(<[u8]>::to_vec).collect())
    }
}

/// Writes the work tree of a repository as a tree. Files in `before` do not count as new. The contents of changed files are added
/// to the object database; nothing that the user sees changes. Blocks.
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
    let command = |args| repository.git.command(args).index(&index.0);
    let changed = command(CHANGED).stdout(cancel)?;
    let new = command("ls-files -z --others --exclude-standard").stdout(cancel)?;
    let known = command("ls-tree -r -z --name-only")
        .arg(before)
        .stdout(cancel)?;
    let known: BTreeSet<&[u8]> = split_nul(&known).collect();
    let top = &repository.top;
    let changed = split_nul(&changed).filter(|path| !rules.is_off_limits(top, path));
    let (there, gone): (Vec<_>, Vec<_>) = changed.partition(|path| is_there(top, path));
    let new = split_nul(&new).filter(|path| {
        // Git prints a nested repository with a slash at its end.
        !path.ends_with(b"/")
            && !rules.is_off_limits(top, path)
            && (known.contains(path) || !rules.is_huge(size_of(&at(top, path))))
    });
    let mut room = NewFileBudget::new(rules.max_file_bytes);
    let own = command("ls-files -z").stdout(cancel)?;
    let users = repository.git.command("ls-files -z").stdout(cancel)?;
    let users: BTreeSet<&[u8]> = split_nul(&users).collect();
    for path in split_nul(&own).filter(|path| !users.contains(path)) {
        room.take(size_of(&at(top, path)));
    }
    let (new, over_budget): (Vec<_>, Vec<_>) =
        new.partition(|path| known.contains(path) || room.take(size_of(&at(top, path))));
    let there = there.into_iter().filter(|path| can_be_kept(top, path));
    let gone = join_nul(gone.into_iter());
    let remove = command("update-index -z --force-remove --stdin").stdin(&gone);
    remove.stdout(cancel)?;
    let changed = join_nul(there.chain(new));
    let add = command("update-index -z --add --remove --replace --stdin").stdin(&changed);
    add.stdout(cancel)?;
    Ok(WorktreeTree {
        tree: command("write-tree").stdout_line(cancel)?,
        over_budget: over_budget.into_iter().map(<[u8]>::to_vec).collect(),
        repository,
        index,
    })
}

pub(crate) fn size_of(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).map_or(0, |there| there.len())
}

/// Returns whether git can store a path: files, links and submodules, but not pipes.
fn can_be_kept(top: &Path, path: &[u8]) -> bool {
    std::fs::symlink_metadata(at(top, path)).map_or(true, |there| {
        there.is_file() || there.is_symlink() || there.is_dir()
    })
}
