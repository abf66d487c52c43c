//! The uncommitted changes in a bundle, with a record of the owner of each change, which the restored loop needs.

use std::path::Path;

use tachikoma_core::LoopId;

use super::{ATTEMPTS, BundleSource};
use crate::change_owner::ChangeOwner;
use crate::head::verify;
use crate::index_file::TemporaryDir;
use crate::loop_files::WORK;
use crate::open::{self, TrackerOptions};
use crate::program::{CancelToken, Git, GitError};
use crate::repository::Repository;
use crate::rules::Rules;
use crate::snapshot::commit_tree;
use crate::snapshots;
use crate::work_record::WorkRecord;
use crate::work_tracker::WorkTracker;
use tachikoma_core::error_chain as chain;

/// Last component of the name that [`copied_ref`] returns.
pub const COPIED: &str = "copied";

/// Returns the name of the reference to the commit of the work tree in the last bundle.
#[must_use]
pub fn copied_ref(loop_id: LoopId) -> String {
    format!("{}/{COPIED}", snapshots::below(loop_id))
}

/// Commits the work tree, with HEAD as its parent, and sets the reference to it. `owner` is the owner of changes since the last survey.
pub fn save_work_tree(
    source: &BundleSource,
    repository: &Repository,
    loop_dir: &Path,
    owner: &dyn Fn() -> ChangeOwner,
    cancel: &CancelToken,
) -> Result<(), String> {
    let rules = source.bounds.rules().map_err(|error| error.to_string())?;
    for _ in 0..ATTEMPTS {
        let saved = try_to_save(source, repository, loop_dir, &rules, owner, cancel);
        if saved.map_err(|error| chain(&error))? {
            return Ok(());
        }
    }
    Err("the work tree changes faster than it can be read".to_owned())
}

/// Makes one attempt to commit the work tree. Returns whether the repository stayed unchanged meanwhile.
fn try_to_save(
    source: &BundleSource,
    repository: &Repository,
    loop_dir: &Path,
    rules: &Rules,
    owner: &dyn Fn() -> ChangeOwner,
    cancel: &CancelToken,
) -> Result<bool, GitError> {
    let git = &repository.git;
    let (head, changes) = (verify(git, "HEAD", cancel)?, owner());
    // A copy of the loop's index and record is used, because the loop may survey the same files at the same time.
    let scratch = TemporaryDir::new()?;
    if let Ok(Some(known)) = WorkRecord::read(&loop_dir.join(WORK)) {
        let known = WorkRecord {
            // The copied record must not undo a running commit of the loop.
            intended: Default::default(),
            displaced: Default::default(),
            ..known
        };
        known.write(&scratch.0.join(WORK))?;
    }
    let options = options(source, &scratch.0, rules.clone());
    let (tracker, _) = open::begin(repository.clone(), options, changes, cancel)?;
    let begun = owner() == ChangeOwner::Loop && changes != ChangeOwner::Loop;
    if tracker.head.commit != head || begun {
        return Ok(false);
    }
    let name = copied_ref(source.loop_id);
    let before = verify(git, &name, cancel)?;
    let commit = commit_of(source, &tracker, before.as_deref(), cancel)?;
    if before.as_ref() != Some(&commit) {
        git.command("update-ref")
            .arg(&name)
            .arg(&commit)
            .stdout(cancel)?;
    }
    Ok(true)
}

/// Commits the tree that the tracker found, or returns the existing commit if it has the same content.
fn commit_of(
    source: &BundleSource,
    tracker: &WorkTracker,
    before: Option<&str>,
    cancel: &CancelToken,
) -> Result<String, GitError> {
    let tree = &tracker.work.tree;
    if let Some(head) = tracker.head.commit.as_ref()
        && tracker.head.equal_tree.as_ref() == Some(tree)
    {
        return Ok(head.clone());
    }
    let known = WorkRecord {
        surveyed: None,
        snapshot: None,
        ..tracker.work.clone()
    };
    let known = serde_json::to_string(&known)
        .map_err(|error| GitError::unexpected("commit-tree", error.to_string()))?;
    let message = format!(
        "the work tree as copied, of {}\n\n{known}\n",
        source.loop_id
    );
    if let Some(before) = before {
        let there = read_commit(&tracker.loop_index.repository.git, before, cancel)?;
        let parent = tracker.head.commit.as_ref();
        let parent = parent.map_or_else(String::new, |head| format!("parent {head}\n"));
        let is_same = there.starts_with(&format!("tree {tree}\n{parent}author "))
            && there.ends_with(&format!("\n\n{message}"));
        if is_same {
            return Ok(before.to_owned());
        }
    }
    commit_tree(tracker, &message, cancel)
}

fn options(source: &BundleSource, loop_dir: &Path, rules: Rules) -> TrackerOptions {
    TrackerOptions {
        working_dir: source.working_dir.clone(),
        loop_dir: loop_dir.to_owned(),
        loop_id: source.loop_id,
        search_path: source.search_path.clone(),
        hidden: source.hidden.clone(),
        rules,
    }
}

/// Surveys the work tree for the loop, which updates its work record. Blocks.
///
/// # Errors
/// The survey failed.
pub fn update_work_record(
    source: &BundleSource,
    loop_dir: &Path,
    owner: ChangeOwner,
) -> Result<(), String> {
    let rules = source.bounds.rules().map_err(|error| error.to_string())?;
    open::open(options(source, loop_dir, rules), owner, &CancelToken::new()).map(drop)
}

/// Writes the work record of a restored work tree. Files that are not in the record of the bundle belong to others.
pub fn write_restored_record(
    source: &BundleSource,
    git: &Git,
    commit: &str,
    head: Option<&str>,
    loop_dir: &Path,
) -> Result<(), String> {
    let cancel = CancelToken::new();
    let describe = |error: GitError| chain(&error);
    let tree = verify(git, &format!("{commit}^{{tree}}"), &cancel).map_err(describe)?;
    let known = match Some(commit) == head {
        true => WorkRecord::default(),
        false => {
            let text = read_commit(git, commit, &cancel).map_err(describe)?;
            let known = text.trim_end().rsplit('\n').next().unwrap_or_default();
            serde_json::from_str(known).map_err(|error| error.to_string())?
        }
    };
    let known = WorkRecord {
        tree: tree.unwrap_or_default(),
        surveyed: Some(tachikoma_runtime::clock::file_time()),
        ..known
    };
    known.write(&loop_dir.join(WORK)).map_err(describe)?;
    update_work_record(source, loop_dir, ChangeOwner::Others)
}

/// Reads a commit object.
fn read_commit(git: &Git, commit: &str, cancel: &CancelToken) -> Result<String, GitError> {
    let bytes = git.command("cat-file commit").arg(commit).stdout(cancel)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
