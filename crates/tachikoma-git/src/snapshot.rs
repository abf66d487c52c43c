//! Snapshots of the work tree, one before each iteration, kept as references that nobody but the loop uses.

use std::collections::BTreeSet;

use super::change_owner::ChangeOwner;
use super::head::verify;
use super::loose_refs;
use super::program::{CancelToken, GitError};
use super::snapshots::{self, Moment};
use super::work_record::LastSnapshot;
use super::work_tracker::WorkTracker;

/// How many snapshots of a loop are kept: two nights of iterations that take a minute.
pub const SNAPSHOTS_KEPT: usize = 1000;

/// References that are written without a process: each is synced alone, and git is faster with many.
const BY_HAND_MAX: usize = 4;

/// Whose the commits of snapshots are; they are on no branch.
const NAME: &str = "tachikoma";
const ADDRESS: &str = "tachikoma@localhost";

/// The work tree as it was before an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit that has it.
    pub commit: String,
    /// What somebody should know.
    pub warnings: Vec<String>,
}

/// Keeps the work tree as it is before an iteration; what changed since the last survey is somebody else's. Starts no
/// process if nothing did. A later attempt at the same iteration leaves the snapshot before the first one. Blocks.
///
/// # Errors
/// Git fails or is called off.
pub fn snapshot(
    tracker: &mut WorkTracker,
    iteration: u32,
    cancel: &CancelToken,
) -> Result<Snapshot, GitError> {
    let warnings = tracker.survey(ChangeOwner::Others, cancel)?.warnings;
    if let Some(commit) = equal_snapshot(tracker, cancel)? {
        owe(tracker, iteration);
        return Ok(Snapshot { commit, warnings });
    }
    if let Some(commit) = kept_before(tracker, iteration, cancel)? {
        return Ok(Snapshot { commit, warnings });
    }
    let commit = match &tracker.head {
        // Nothing is uncommitted: the commit that the work tree stands on is the snapshot.
        Some(head) if tracker.equals_head.as_ref() == Some(&tracker.work.tree) => head.clone(),
        Some(_) | None => {
            let message = format!("before iteration {iteration} of {}\n", tracker.loop_id);
            commit_tree(tracker, &message, cancel)?
        }
    };
    reference(tracker, Some((iteration, commit.as_str())), cancel)?;
    tracker.work.snapshot = Some(LastSnapshot {
        tree: tracker.work.tree.clone(),
        commit: commit.clone(),
    });
    tracker.snapshot_checked = true;
    tracker.work.write(&tracker.work_path)?;
    Ok(Snapshot { commit, warnings })
}

/// The commit of the last snapshot, if that has the same work tree. One of an earlier runner may have been removed since.
fn equal_snapshot(
    tracker: &mut WorkTracker,
    cancel: &CancelToken,
) -> Result<Option<String>, GitError> {
    let last = tracker.work.snapshot.as_ref();
    let Some(last) = last.filter(|last| last.tree == tracker.work.tree) else {
        return Ok(None);
    };
    let commit = last.commit.clone();
    if !tracker.snapshot_checked {
        let git = &tracker.loop_index.repository.git;
        let object = format!("{commit}^{{commit}}");
        if verify(git, &object, cancel)?.is_none() {
            tracker.work.snapshot = None;
            return Ok(None);
        }
        tracker.snapshot_checked = true;
    }
    Ok(Some(commit))
}

/// Makes the references that are still owed: at the end of a run. Blocks.
///
/// # Errors
/// Git fails or is called off.
pub fn settle_refs(tracker: &mut WorkTracker, cancel: &CancelToken) -> Result<(), GitError> {
    if tracker.owed.is_empty() {
        return Ok(());
    }
    reference(tracker, None, cancel)
}

/// Removes all references of the loop: nothing of it is to be left. Blocks.
///
/// # Errors
/// Git fails.
pub fn forget_refs(tracker: &mut WorkTracker) -> Result<(), GitError> {
    tracker.owed.clear();
    tracker.referenced = None;
    snapshots::delete_all(&tracker.loop_index.repository.git, tracker.loop_id)
}

/// The last snapshot serves one more iteration, whose reference can wait.
fn owe(tracker: &mut WorkTracker, iteration: u32) {
    tracker.owed.insert(iteration);
    if tracker.owed.len() > SNAPSHOTS_KEPT {
        tracker.owed.pop_first();
    }
}

/// Makes a commit of the work tree as it was last surveyed, on no branch.
pub fn commit_tree(
    tracker: &WorkTracker,
    message: &str,
    cancel: &CancelToken,
) -> Result<String, GitError> {
    let git = &tracker.loop_index.repository.git;
    let mut order = git.order(&["commit-tree", &tracker.work.tree, "-F", "-"]);
    if let Some(head) = &tracker.head {
        order = order.word("-p").word(head);
    }
    order
        .stdin(message.as_bytes())
        .config("i18n.commitEncoding=UTF-8")
        .env("GIT_AUTHOR_NAME", NAME)
        .env("GIT_AUTHOR_EMAIL", ADDRESS)
        .env("GIT_COMMITTER_NAME", NAME)
        .env("GIT_COMMITTER_EMAIL", ADDRESS)
        .ask_line(cancel)
}

/// The snapshot that an iteration has already.
fn kept_before(
    tracker: &mut WorkTracker,
    iteration: u32,
    cancel: &CancelToken,
) -> Result<Option<String>, GitError> {
    let referenced = take_referenced(tracker, cancel)?;
    let known = referenced.contains(&iteration);
    tracker.referenced = Some(referenced);
    if !known {
        return Ok(None);
    }
    let name = snapshots::name(tracker.loop_id, iteration);
    verify(&tracker.loop_index.repository.git, &name, cancel)
}

fn take_referenced(
    tracker: &mut WorkTracker,
    cancel: &CancelToken,
) -> Result<BTreeSet<u32>, GitError> {
    if let Some(referenced) = tracker.referenced.take() {
        return Ok(referenced);
    }
    let kept = snapshots::list(&tracker.loop_index.repository.git, tracker.loop_id, cancel)?;
    let iterations = kept.into_iter().filter_map(|kept| match kept.moment {
        Moment::Iteration(iteration) => Some(iteration),
        Moment::Rollback(_) => None,
    });
    Ok(iterations.collect())
}

/// Makes the references that are owed and a new one, and removes those that are too old.
fn reference(
    tracker: &mut WorkTracker,
    new: Option<(u32, &str)>,
    cancel: &CancelToken,
) -> Result<(), GitError> {
    let mut referenced = take_referenced(tracker, cancel)?;
    let git = &tracker.loop_index.repository.git;
    let mut made: Vec<(u32, &str)> = Vec::new();
    if let Some(last) = &tracker.work.snapshot {
        let owed = tracker.owed.iter();
        made.extend(owed.map(|iteration| (*iteration, last.commit.as_str())));
    }
    made.extend(new);
    referenced.extend(made.iter().map(|(iteration, _)| *iteration));
    let too_old = too_old(&mut referenced);
    made.retain(|(iteration, _)| !too_old.contains(iteration));
    let made: Vec<(String, &str)> = made
        .into_iter()
        .map(|(iteration, commit)| (snapshots::name(tracker.loop_id, iteration), commit))
        .collect();
    let common_dir = &tracker.loop_index.repository.common_dir;
    let by_hand = tracker.refs_are_files
        && too_old.is_empty()
        && made.len() <= BY_HAND_MAX
        && made
            .iter()
            .all(|(name, commit)| loose_refs::write(common_dir, name, commit).is_ok());
    if !by_hand {
        let mut orders = String::new();
        for (name, commit) in &made {
            orders.push_str(&format!("update {name} {commit}\n"));
        }
        for iteration in too_old {
            let name = snapshots::name(tracker.loop_id, iteration);
            orders.push_str(&format!("delete {name}\n"));
        }
        let order = git.order(&["update-ref", "--stdin"]);
        order.stdin(orders.as_bytes()).ask(cancel)?;
        let last = made.last();
        tracker.refs_are_files =
            last.is_some_and(|(name, commit)| loose_refs::is_loose(common_dir, name, commit));
    }
    tracker.owed.clear();
    tracker.referenced = Some(referenced);
    Ok(())
}

/// Takes out the oldest of more snapshots than are kept.
fn too_old(referenced: &mut BTreeSet<u32>) -> BTreeSet<u32> {
    let mut old = BTreeSet::new();
    while referenced.len() > SNAPSHOTS_KEPT {
        old.extend(referenced.pop_first());
    }
    old
}
