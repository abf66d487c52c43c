//! Rollback of the work tree to a snapshot. HEAD, the user's index, stashes and submodules do not change. Nor do protected,
//! ignored and large files. A rollback that fails is undone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tachikoma_core::LoopId;

use super::differences::{Change, parse_changes};
use super::head::verify;
use super::index::{self, IndexEntry};
use super::index_file::{TemporaryDir, TemporaryIndex};
use super::path::{
    RepoPath, ancestors, at, is_ignore_file, is_there, join_nul, list_first, split_nul,
};
use super::program::{CancelToken, GitError};
use super::repository::Repository;
use super::rollback_backup::RollbackBackup;
use super::rules::Rules;
use super::snapshots::{self, KeptSnapshot, Moment};
use super::worktree_tree::{self, WorktreeTree, size_of};

/// Maximum number of files that a message names.
pub const NAMED_MAX: usize = 10;

/// Timeout of `git read-tree`. Writing a large work tree to a slow disk takes minutes.
const READ_TREE_TIMEOUT: Duration = Duration::from_secs(600);

/// File mode of a submodule.
const SUBMODULE_MODE: u32 = 0o160_000;

/// Why a rollback cannot be planned. The work tree is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// A git command failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The rollback would overwrite these files, which are in no commit or snapshot.
    #[error("the rollback would overwrite these files, which are in no commit or snapshot: {}", some(.0))]
    InTheWay(Vec<String>),
}

/// Why a rollback was not performed.
#[derive(Debug, thiserror::Error)]
pub enum PerformError {
    /// The files could not be backed up. The work tree is unchanged.
    #[error(transparent)]
    NotBegun(GitError),
    /// The rollback failed and was undone.
    #[error("{0}; the rollback was undone, and the work tree is unchanged")]
    Undone(RollbackFailure),
    /// The rollback failed and could not be undone.
    #[error(
        "{why}; the rollback could not be undone ({}), so the work tree has files from before and after it",
        tachikoma_core::error_chain(back)
    )]
    Half {
        /// Why the rollback failed.
        why: RollbackFailure,
        /// Why the rollback could not be undone.
        back: Box<GitError>,
    },
}

/// Cause of a failed rollback.
#[derive(Debug, thiserror::Error)]
pub enum RollbackFailure {
    /// Git failed, for example because of a filter, a full disk or a change after the planning.
    #[error("{}", tachikoma_core::error_chain(.0))]
    Git(#[from] GitError),
    /// Git succeeded, but the files differ from the snapshot.
    #[error("these files differ from the snapshot: {}", some(.0))]
    Differs(Vec<String>),
}

/// Returns the first names as text, and the number of the others.
#[must_use]
pub fn some(names: &[String]) -> String {
    list_first(NAMED_MAX, names)
}

/// A planned rollback.
#[derive(Debug)]
pub struct Rollback {
    present: WorktreeTree,
    loop_dir: PathBuf,
    target: String,
    /// All paths that the rollback changes.
    paths: Vec<Vec<u8>>,
    /// Files that differed from the index before the rollback, because git could not add them.
    not_addable: BTreeSet<Vec<u8>>,
    /// Files that the rollback removes.
    gone: Vec<Vec<u8>>,
    /// Files that differ from the snapshot and are not changed: protected, large and formerly ignored files, submodules, and new
    /// files over the budget.
    pub left: Vec<String>,
}

/// Changes from the work tree to the snapshot.
type Changes = BTreeMap<RepoPath, Change>;

impl Rollback {
    /// Plans the change from the current work tree to a snapshot. Does not change the work tree or the user's index.
    ///
    /// # Errors
    /// Git failed, or files would be overwritten that are in no commit or snapshot.
    pub fn plan(
        repository: Repository,
        loop_dir: &Path,
        rules: &Rules,
        snapshot: &KeptSnapshot,
        cancel: &CancelToken,
    ) -> Result<Self, RollbackError> {
        let present =
            worktree_tree::worktree_tree(repository, loop_dir, rules, &snapshot.commit, cancel)?;
        let command = present
            .command("diff-tree -r -z --no-renames --raw")
            .arg(&present.tree)
            .arg(&snapshot.commit);
        let differences = command.stdout(cancel)?;
        let entries = present.command("ls-files -s -v -z");
        let entries = entries.stdout(cancel)?;
        let sparse: BTreeSet<&[u8]> = index::entries(&entries)
            .filter(IndexEntry::is_sparse)
            .map(|entry| entry.path)
            .collect();
        let differences = parse_changes(&differences)?;
        let ignored = ignored_then(&present, loop_dir, &snapshot.commit, &differences, cancel)?;
        let over_budget = present.over_budget.iter();
        let mut left: Vec<String> = over_budget
            .map(|path| RepoPath::new(path).to_string())
            .collect();
        let mut wanted = Changes::new();
        for (path, change) in differences {
            let top = &present.repository.top;
            if sparse.contains(path.bytes()) {
                // The path is outside of the sparse checkout.
                continue;
            }
            if rules.is_off_limits(top, path.bytes())
                || [change.before.mode, change.after.mode].contains(&SUBMODULE_MODE)
                || ignored.contains(&path)
                || change.is_removal() && rules.is_huge(size_of(&top.join(path.as_path())))
            {
                left.push(path.to_string());
            } else {
                wanted.insert(path, change);
            }
        }
        let in_the_way = in_the_way(&present.repository.top, &wanted);
        if !in_the_way.is_empty() {
            return Err(RollbackError::InTheWay(in_the_way));
        }
        let target = target(&present, loop_dir, &wanted, cancel)?;
        let paths = wanted.keys().map(|path| path.bytes().to_vec()).collect();
        let gone = removed(&wanted).map(<[u8]>::to_vec).collect();
        let not_addable = present.differing(cancel)?;
        let rollback = Self {
            present,
            loop_dir: loop_dir.to_owned(),
            target,
            paths,
            not_addable,
            gone,
            left,
        };
        rollback.read_tree("read-tree -m -u --no-sparse-checkout --dry-run", cancel)?;
        Ok(rollback)
    }

    /// Returns the ids of the current tree and of the tree after the rollback.
    #[must_use]
    pub fn trees(&self) -> (&str, &str) {
        (&self.present.tree, &self.target)
    }

    /// Returns whether the rollback changes nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.present.tree == self.target
    }

    /// Stores the current work tree in a new reference, and returns its name.
    ///
    /// # Errors
    /// A git command failed.
    pub fn keep(
        &self,
        loop_id: LoopId,
        moment: Moment,
        cancel: &CancelToken,
    ) -> Result<String, GitError> {
        let git = &self.present.repository.git;
        let message = format!("tachikoma: {moment} of {loop_id}\n");
        let head = verify(git, "HEAD^{commit}", cancel)?;
        let tree = &self.present.tree;
        let commit = snapshots::commit_tree(git, tree, head.as_deref(), &message, cancel)?;
        let name = snapshots::name(loop_id, moment);
        // An existing reference is not replaced.
        let none = "0".repeat(commit.len());
        let command = git.command("update-ref").arg(&name).arg(&commit).arg(&none);
        command.stdout(cancel)?;
        Ok(name)
    }

    /// Performs the rollback and verifies it. If it fails or is canceled, it is undone.
    ///
    /// # Errors
    /// The rollback failed.
    pub fn perform(self, to: Moment, cancel: &CancelToken) -> Result<(), PerformError> {
        let top = &self.present.repository.top;
        let paths = self.paths.iter().map(Vec::as_slice);
        let backup =
            RollbackBackup::make(&self.loop_dir, top, to, paths).map_err(PerformError::NotBegun)?;
        let why = match self.apply_and_verify(cancel) {
            Ok(()) => {
                backup.remove();
                return Ok(());
            }
            Err(why) => why,
        };
        match backup.put_back() {
            Ok(()) => {
                backup.remove();
                Err(PerformError::Undone(why))
            }
            Err(back) => Err(PerformError::Half {
                why,
                back: Box::new(back),
            }),
        }
    }

    fn apply_and_verify(&self, cancel: &CancelToken) -> Result<(), RollbackFailure> {
        self.read_tree("read-tree -m -u --no-sparse-checkout", cancel)?;
        let mut differs = self.present.differing(cancel)?;
        differs.retain(|path| !self.not_addable.contains(path));
        let top = &self.present.repository.top;
        let still_there = |path: &&Vec<u8>| {
            // A directory may have replaced the file, or a file the directory.
            let there = std::fs::symlink_metadata(at(top, path));
            is_there(top, path) && there.is_ok_and(|there| !there.is_dir())
        };
        differs.extend(self.gone.iter().filter(still_there).cloned());
        if differs.is_empty() {
            return Ok(());
        }
        let names = differs.iter().map(|path| RepoPath::new(path).to_string());
        Err(RollbackFailure::Differs(names.collect()))
    }

    /// Runs `git read-tree` with a configuration in which git does not remove files outside of a sparse checkout.
    fn read_tree(&self, args: &'static str, cancel: &CancelToken) -> Result<(), GitError> {
        let command = self.present.command(args).timeout(Some(READ_TREE_TIMEOUT));
        let command = command.arg(&self.present.tree).arg(&self.target);
        // The backup hard-links the files, which changes their ctime, so git must not compare it.
        let command = command.config("core.trustctime=false").ends_with_caller();
        command.stdout(cancel).map(drop)
    }
}

/// Finds files that would be removed only because the snapshot was made with other ignore rules. They may have existed then and
/// been ignored.
fn ignored_then(
    present: &WorktreeTree,
    loop_dir: &Path,
    then: &str,
    differences: &Changes,
    cancel: &CancelToken,
) -> Result<BTreeSet<RepoPath>, GitError> {
    let rules_changed = differences.keys().any(|path| is_ignore_file(path.bytes()));
    if removed(differences).next().is_none() || !rules_changed {
        return Ok(BTreeSet::new());
    }
    let git = &present.repository.git;
    let index = TemporaryIndex::of(None, loop_dir)?;
    let command = git.command("read-tree").arg(then).index(&index.0);
    command.stdout(cancel)?;
    let listed = git.command("ls-files -z").index(&index.0);
    let listed = listed.stdout(cancel)?;
    let rules = join_nul(split_nul(&listed).filter(|path| is_ignore_file(path)));
    // The temporary work tree contains only the ignore files of the snapshot.
    let dir = TemporaryDir::new()?;
    if !rules.is_empty() {
        let command = git.command("checkout-index -z --stdin");
        let command = command.index(&index.0).env("GIT_WORK_TREE", &dir.0);
        command.stdin(&rules).stdout(cancel)?;
    }
    let check = git.command("check-ignore -z --stdin");
    let check = check.env("GIT_WORK_TREE", &dir.0);
    index::ignored(&check, removed(differences), cancel)
}

/// Writes the git tree that the work tree has after the rollback.
fn target(
    present: &WorktreeTree,
    loop_dir: &Path,
    wanted: &Changes,
    cancel: &CancelToken,
) -> Result<String, GitError> {
    let index = TemporaryIndex::of(Some(&present.index.0), loop_dir)?;
    let git = &present.repository.git;
    let mut input = Vec::new();
    // Removals come first, because an added file may be below a removed one.
    let (gone, come): (Vec<_>, Vec<_>) = wanted.iter().partition(|(_, change)| change.is_removal());
    for (path, Change { after, .. }) in gone.into_iter().chain(come) {
        input.extend_from_slice(format!("{:06o} {}\t", after.mode, after.object).as_bytes());
        input.extend_from_slice(path.bytes());
        input.push(0);
    }
    let command = git.command("update-index -z --index-info");
    command.index(&index.0).stdin(&input).stdout(cancel)?;
    let command = git.command("write-tree").index(&index.0);
    command.stdout_line(cancel)
}

/// Returns the paths that the changes remove.
fn removed(changes: &Changes) -> impl Iterator<Item = &[u8]> {
    let removed = changes.iter().filter(|(_, change)| change.is_removal());
    removed.map(|(path, _)| path.bytes())
}

/// Finds files that would be overwritten and are in no tree. Git overwrites ignored files without asking.
fn in_the_way(top: &Path, wanted: &Changes) -> Vec<String> {
    let gone: BTreeSet<&[u8]> = removed(wanted).collect();
    let mut found = BTreeSet::new();
    let new = wanted.iter().filter(|(_, change)| change.is_new());
    for path in new.map(|(path, _)| path.bytes()) {
        for above in ancestors(path) {
            let is_dir = std::fs::symlink_metadata(at(top, above)).map_or(true, |is| is.is_dir());
            if !is_dir && !gone.contains(above) {
                found.insert(above.to_vec());
            }
        }
        if std::fs::symlink_metadata(at(top, path)).is_ok() {
            // A directory that cannot be read cannot be removed.
            if collect(top, path, &gone, &mut found).is_err() {
                found.insert(path.to_vec());
            }
        }
    }
    let names = found.iter().map(|name| RepoPath::new(name));
    names.map(|name| name.to_string()).collect()
}

/// Collects the files at and below a path, except those that the rollback removes.
fn collect(
    top: &Path,
    path: &[u8],
    gone: &BTreeSet<&[u8]>,
    found: &mut BTreeSet<Vec<u8>>,
) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    // One file is enough to refuse, and the directory may be large.
    if found.len() > 10 * NAMED_MAX {
        return Ok(());
    }
    let here = at(top, path);
    if !std::fs::symlink_metadata(&here)?.is_dir() {
        if !gone.contains(path) {
            found.insert(path.to_vec());
        }
        return Ok(());
    }
    for entry in std::fs::read_dir(here)? {
        let mut below = path.to_vec();
        below.push(b'/');
        below.extend_from_slice(entry?.file_name().as_bytes());
        collect(top, &below, gone, found)?;
    }
    Ok(())
}
