//! How keeping the work changes the state.

use super::reboot::with_reboot;
use crate::keep::{Keep, KeepPurpose, Kept, PastCommit, Snapshot};
use crate::phase::{Phase, RebootStage};
use crate::state::State;
use crate::time::Timestamp;
use crate::wait::Wait;

pub(super) fn snapshot_taken(state: &mut State, iteration: u32, commit: &str, uncommitted: u32) {
    state.kept.uncommitted = uncommitted;
    if state
        .kept
        .snapshot
        .as_ref()
        .is_none_or(|s| s.commit != commit)
    {
        state.kept.snapshot = Some(Snapshot {
            iteration,
            commit: commit.to_owned(),
        });
    }
}

pub(super) fn keep_started(state: &mut State, keep: Keep) {
    state.kept.number += 1;
    state.kept.unseen = false;
    state.kept.outside = false;
    // A runner that dies before the last look is made leaves it to the next one.
    state.kept.checked = keep.purpose == KeepPurpose::End;
    match keep.purpose {
        KeepPurpose::Iteration => {
            state.kept.files_changed = Some(0);
            state.progress.looked = true;
            state.phase = Phase::Keeping { keep };
        }
        KeepPurpose::End => state.phase = Phase::Keeping { keep },
        KeepPurpose::Checkpoint => {
            with_reboot(state, |reboot| reboot.stage = RebootStage::Keeping { keep });
        }
    }
}

pub(super) fn keep_called_off(state: &mut State, until: Timestamp, then: Option<Wait>) {
    let hurry = |keep: &mut Keep| {
        keep.until = Some(until);
        keep.called_off = true;
        keep.then = then;
    };
    if let Phase::Keeping { keep } = &mut state.phase {
        hurry(keep);
    }
    with_reboot(state, |reboot| {
        if let RebootStage::Keeping { keep } = &mut reboot.stage {
            hurry(keep);
        }
    });
}

pub(super) fn work_kept(
    state: &mut State,
    purpose: KeepPurpose,
    iteration: u32,
    kept: &Kept,
    time: Timestamp,
) {
    state.completion.seen_in_the_tree(kept);
    state.kept.uncommitted = kept.uncommitted;
    state.kept.checked = false;
    state.kept.withheld = kept.withheld;
    let called_off = state.keep().is_some_and(|keep| keep.called_off);
    state.kept.refused = kept.error.clone().filter(|_| !called_off);
    if purpose == KeepPurpose::Iteration {
        state.kept.files_changed = Some(kept.changed);
        state.progress.seen_in_the_tree(kept);
    }
    if let Some(commit) = &kept.commit {
        state.kept.commits = state.kept.commits.saturating_add(1);
        state.kept.last_commit = Some(PastCommit {
            time,
            iteration,
            commit: commit.clone(),
        });
    }
    keep_over(state, purpose);
}

pub(super) fn keep_given_up(state: &mut State, purpose: KeepPurpose) {
    state.kept.unseen = true;
    // The work tree was not examined, so the iteration may have changed files.
    state.completion.idle = false;
    if purpose == KeepPurpose::Iteration {
        state.kept.files_changed = None;
        state.progress.missed();
    }
    keep_over(state, purpose);
}

/// What follows is recorded right behind it.
fn keep_over(state: &mut State, purpose: KeepPurpose) {
    match purpose {
        KeepPurpose::Iteration | KeepPurpose::End => state.phase = Phase::Idle,
        KeepPurpose::Checkpoint => with_reboot(state, |reboot| reboot.stage = RebootStage::Begun),
    }
}
