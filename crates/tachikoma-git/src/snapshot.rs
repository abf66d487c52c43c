//! Snapshots of the work tree, one before each iteration. Each is a commit with a reference of the loop.

use std::collections::BTreeSet;

use super::change_owner::ChangeOwner;
use super::head::verify;
use super::program::{CancelToken, GitError};
use super::snapshots::{self, Moment};
use super::work_record::LastSnapshot;
use super::work_tracker::WorkTracker;

/// Number of snapshots to keep. It is enough for two nights of iterations of one minute.
pub const SNAPSHOTS_KEPT: usize = 1000;

/// The work tree as it was before an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit with the work tree.
    pub commit: String,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Makes a snapshot before an iteration. Changes since the last survey belong to others. Starts no process if nothing changed. If
/// the iteration already has a snapshot of an earlier attempt, that one is used. Blocks.
///
/// # Errors
/// A git command fails or is canceled.
pub fn snapshot(
    tracker: &mut WorkTracker,
    iteration: u32,
    cancel: &CancelToken,
) -> Result<Snapshot, GitError> {
    let warnings = tracker.survey(ChangeOwner::Others, cancel)?.warnings;
    if let Some(commit) = equal_snapshot(tracker, cancel)? {
        defer_ref(tracker, iteration);
        return Ok(Snapshot { commit, warnings });
    }
    if let Some(commit) = existing_snapshot(tracker, iteration, cancel)? {
        return Ok(Snapshot { commit, warnings });
    }
    let commit = match &tracker.head.commit {
        // There are no uncommitted changes, so HEAD is the snapshot.
        Some(head) if tracker.head.equal_tree.as_ref() == Some(&tracker.work.tree) => head.clone(),
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
    tracker.refs.commit_verified = true;
    tracker.work.write(&tracker.work_path)?;
    Ok(Snapshot { commit, warnings })
}

/// Returns the commit of the last snapshot if it has the same work tree and still exists.
fn equal_snapshot(
    tracker: &mut WorkTracker,
    cancel: &CancelToken,
) -> Result<Option<String>, GitError> {
    let last = tracker.work.snapshot.as_ref();
    let Some(last) = last.filter(|last| last.tree == tracker.work.tree) else {
        return Ok(None);
    };
    let commit = last.commit.clone();
    if !tracker.refs.commit_verified {
        let git = &tracker.loop_index.repository.git;
        let object = format!("{commit}^{{commit}}");
        if verify(git, &object, cancel)?.is_none() {
            tracker.work.snapshot = None;
            return Ok(None);
        }
        tracker.refs.commit_verified = true;
    }
    Ok(Some(commit))
}

/// Writes the references that are still pending, at the end of a run. Blocks.
///
/// # Errors
/// A git command fails or is canceled.
pub fn write_pending_refs(tracker: &mut WorkTracker, cancel: &CancelToken) -> Result<(), GitError> {
    if tracker.refs.pending.is_empty() {
        return Ok(());
    }
    reference(tracker, None, cancel)
}

/// Removes all references of the loop. Blocks.
///
/// # Errors
/// A git command fails.
pub fn delete_refs(tracker: &mut WorkTracker) -> Result<(), GitError> {
    tracker.refs.pending.clear();
    tracker.refs.existing = None;
    snapshots::delete_all(&tracker.loop_index.repository.git, tracker.loop_id)
}

/// Uses the last snapshot for another iteration. Its reference is written later.
fn defer_ref(tracker: &mut WorkTracker, iteration: u32) {
    tracker.refs.pending.insert(iteration);
    if tracker.refs.pending.len() > SNAPSHOTS_KEPT {
        tracker.refs.pending.pop_first();
    }
}

/// Creates a commit of the tree of the last survey. No branch points to the commit.
pub fn commit_tree(
    tracker: &WorkTracker,
    message: &str,
    cancel: &CancelToken,
) -> Result<String, GitError> {
    let git = &tracker.loop_index.repository.git;
    let parent = tracker.head.commit.as_deref();
    snapshots::commit_tree(git, &tracker.work.tree, parent, message, cancel)
}

/// Returns the snapshot that an iteration already has.
fn existing_snapshot(
    tracker: &mut WorkTracker,
    iteration: u32,
    cancel: &CancelToken,
) -> Result<Option<String>, GitError> {
    let referenced = take_referenced(tracker, cancel)?;
    let known = referenced.contains(&iteration);
    tracker.refs.existing = Some(referenced);
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
    if let Some(referenced) = tracker.refs.existing.take() {
        return Ok(referenced);
    }
    let kept = snapshots::list(&tracker.loop_index.repository.git, tracker.loop_id, cancel)?;
    let iterations = kept.into_iter().filter_map(|kept| match kept.moment {
        Moment::Iteration(iteration) => Some(iteration),
        Moment::Rollback(_) => None,
    });
    Ok(iterations.collect())
}

/// Writes the pending references and a new one, and deletes the oldest references.
fn reference(
    tracker: &mut WorkTracker,
    new: Option<(u32, &str)>,
    cancel: &CancelToken,
) -> Result<(), GitError> {
    let mut referenced = take_referenced(tracker, cancel)?;
    let git = &tracker.loop_index.repository.git;
    let mut made: Vec<(u32, &str)> = Vec::new();
    if let Some(last) = &tracker.work.snapshot {
        let owed = tracker.refs.pending.iter();
        made.extend(owed.map(|iteration| (*iteration, last.commit.as_str())));
    }
    made.extend(new);
    referenced.extend(made.iter().map(|(iteration, _)| *iteration));
    let too_old = too_old(&mut referenced);
    made.retain(|(iteration, _)| !too_old.contains(iteration));
    let mut commands = String::new();
    for (iteration, commit) in made {
        let name = snapshots::name(tracker.loop_id, iteration);
        commands.push_str(&format!("update {name} {commit}\n"));
    }
    for iteration in too_old {
        let name = snapshots::name(tracker.loop_id, iteration);
        commands.push_str(&format!("delete {name}\n"));
    }
    snapshots::update_refs(git, &commands, cancel)?;
    tracker.refs.pending.clear();
    tracker.refs.existing = Some(referenced);
    Ok(())
}

/// Removes the oldest iterations over the limit from the set, and returns them.
fn too_old(referenced: &mut BTreeSet<u32>) -> BTreeSet<u32> {
    let mut old = BTreeSet::new();
    while referenced.len() > SNAPSHOTS_KEPT {
        old.extend(referenced.pop_first());
    }
    old
}
