//! How autocommits change the state.

use super::reboot::with_reboot;
use crate::{
    Autocommit, AutocommitPurpose, AutocommitResult, PastCommit, Phase, RebootStage, State,
    Timestamp, Wait,
};

pub(super) fn autocommit_started(state: &mut State, autocommit: Autocommit) {
    state.kept.number += 1;
    state.kept.unsurveyed = false;
    state.kept.outside = false;
    // If the runner dies before the last survey, the next one repeats it.
    state.kept.checked = autocommit.purpose == AutocommitPurpose::End;
    match autocommit.purpose {
        AutocommitPurpose::Iteration => {
            state.kept.files_changed = Some(0);
            state.progress.surveyed = true;
            state.phase = Phase::Autocommitting { autocommit };
        }
        AutocommitPurpose::End => state.phase = Phase::Autocommitting { autocommit },
        AutocommitPurpose::Checkpoint => {
            with_reboot(state, |reboot| {
                reboot.stage = RebootStage::Autocommitting { autocommit }
            });
        }
    }
}

pub(super) fn autocommit_canceled(state: &mut State, until: Timestamp, then: Option<Wait>) {
    let hurry = |autocommit: &mut Autocommit| {
        autocommit.until = Some(until);
        autocommit.called_off = true;
        autocommit.then = then;
    };
    if let Phase::Autocommitting { autocommit } = &mut state.phase {
        hurry(autocommit);
    }
    with_reboot(state, |reboot| {
        if let RebootStage::Autocommitting { autocommit } = &mut reboot.stage {
            hurry(autocommit);
        }
    });
}

pub(super) fn autocommit_finished(
    state: &mut State,
    purpose: AutocommitPurpose,
    iteration: u32,
    kept: &AutocommitResult,
    time: Timestamp,
) {
    state.completion.seen_in_the_tree(kept);
    state.kept.uncommitted = kept.uncommitted;
    state.kept.checked = false;
    state.kept.withheld = kept.withheld;
    let called_off = state
        .autocommit()
        .is_some_and(|autocommit| autocommit.called_off);
    state.kept.refused = kept.error.clone().filter(|_| !called_off);
    if purpose == AutocommitPurpose::Iteration {
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
    autocommit_over(state, purpose);
}

pub(super) fn autocommit_given_up(state: &mut State, purpose: AutocommitPurpose) {
    state.kept.unsurveyed = true;
    // The work tree was not examined, so the iteration may have changed files.
    state.completion.idle = false;
    if purpose == AutocommitPurpose::Iteration {
        state.kept.files_changed = None;
        state.progress.missed();
    }
    autocommit_over(state, purpose);
}

/// Ends the phase. The next record states what follows.
fn autocommit_over(state: &mut State, purpose: AutocommitPurpose) {
    match purpose {
        AutocommitPurpose::Iteration | AutocommitPurpose::End => state.phase = Phase::Idle,
        AutocommitPurpose::Checkpoint => {
            with_reboot(state, |reboot| reboot.stage = RebootStage::Begun);
        }
    }
}
