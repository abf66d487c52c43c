//! How reboots, autocommits and hooks change the phase of the loop.

use super::{service_answered, service_refused};
use crate::{
    Autocommit, AutocommitPurpose, AutocommitResult, HandOff, HookKind, HookPoint, Hooking,
    HooksEnd, HooksStart, PastCommit, Phase, Problem, Reboot, RebootEntry, RebootReason,
    RebootResult, RebootStage, State, Timestamp, Wait,
};

/// Returns the history entry of a reboot that has ended.
pub(super) fn entry(
    state: &State,
    time: Timestamp,
    reason: &RebootReason,
    iteration: u32,
    duration_ms: u64,
    result: RebootResult,
) -> RebootEntry {
    let past = state
        .history
        .last()
        .filter(|_| result == RebootResult::Done);
    RebootEntry {
        time,
        iteration,
        reason: reason.clone(),
        result,
        duration_ms,
        from: state.session.number,
        from_agent_id: past
            .map_or(&state.session.agent_id, |past| &past.agent_id)
            .clone(),
        to_agent_id: past.and_then(|_| state.session.agent_id.clone()),
        hooks: state.reboots.hooks.clone(),
    }
}

/// Records a request for a reboot. During a reboot it postpones that reboot.
pub(super) fn reboot_requested(
    state: &mut State,
    reason: &RebootReason,
    not_before: Option<Timestamp>,
) {
    if state.rebooting().is_some() {
        state.reboots.attempts = state.reboots.attempts.saturating_sub(1);
        state.phase = Phase::Idle;
        if not_before.is_some() && state.session.hand_off == HandOff::NotAsked {
            state.session.hand_off = HandOff::Missing;
        }
    }
    state.reboot_pending = Some(reason.clone());
    state.reboot_not_before = not_before;
    if *reason == RebootReason::Manual {
        state.operator.put_off = None;
    }
}

pub(super) fn hand_off_written(state: &mut State, text: &str, partial: bool) {
    if partial {
        return with_reboot(state, |reboot| {
            if let RebootStage::HandOff { parts, .. } = &mut reboot.stage {
                parts.push(text.to_owned());
            }
        });
    }
    state.checkpoint.words = Some(text.to_owned());
    state.checkpoint.words_of = state.session.number;
    state.session.hand_off = HandOff::Written;
    with_reboot(state, |reboot| reboot.stage = RebootStage::Begun);
}

/// The turn of the hand-off is over. Limits of the model's service count as for an attempt.
pub(super) fn hand_off_resulted(
    state: &mut State,
    success: bool,
    problem: Option<&Problem>,
    time: Timestamp,
) {
    if state.rebooting().is_none() {
        return;
    }
    let streak = state.limit_streak.saturating_add(1);
    match problem {
        Some(Problem::Limited { .. }) => service_refused(state, streak, false, time),
        Some(Problem::Unreachable) => service_refused(state, streak, true, time),
        None if success => service_answered(state),
        Some(_) | None => {}
    }
}

/// Changes the current reboot, if there is one.
pub(super) fn with_reboot(state: &mut State, change: impl FnOnce(&mut Reboot)) {
    if let Phase::Rebooting { reboot } = &mut state.phase {
        change(reboot);
    }
}

pub(super) fn autocommit_started(state: &mut State, autocommit: Autocommit) {
    state.tracked_work.number += 1;
    state.tracked_work.unsurveyed = false;
    state.tracked_work.outside = false;
    // If the runner dies before the last survey, the next one repeats it.
    state.tracked_work.checked = autocommit.purpose == AutocommitPurpose::End;
    match autocommit.purpose {
        AutocommitPurpose::Iteration => {
            state.tracked_work.files_changed = Some(0);
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
    let cancel = |autocommit: &mut Autocommit| {
        autocommit.until = Some(until);
        autocommit.canceled = true;
        autocommit.then = then;
    };
    if let Phase::Autocommitting { autocommit } = &mut state.phase {
        cancel(autocommit);
    }
    with_reboot(state, |reboot| {
        if let RebootStage::Autocommitting { autocommit } = &mut reboot.stage {
            cancel(autocommit);
        }
    });
}

pub(super) fn autocommit_finished(
    state: &mut State,
    purpose: AutocommitPurpose,
    iteration: u32,
    result: &AutocommitResult,
    time: Timestamp,
) {
    state.completion.seen_in_the_tree(result);
    state.tracked_work.uncommitted = result.uncommitted;
    state.tracked_work.checked = false;
    state.tracked_work.withheld = result.withheld;
    let canceled = state
        .autocommit()
        .is_some_and(|autocommit| autocommit.canceled);
    state.tracked_work.refused = result.error.clone().filter(|_| !canceled);
    if purpose == AutocommitPurpose::Iteration {
        state.tracked_work.files_changed = Some(result.changed);
        state.progress.seen_in_the_tree(result);
    }
    if let Some(commit) = &result.commit {
        state.tracked_work.commits = state.tracked_work.commits.saturating_add(1);
        state.tracked_work.last_commit = Some(PastCommit {
            time,
            iteration,
            commit: commit.clone(),
        });
    }
    autocommit_over(state, purpose);
}

pub(super) fn autocommit_given_up(state: &mut State, purpose: AutocommitPurpose) {
    state.tracked_work.unsurveyed = true;
    // The work tree was not examined, so the iteration may have changed files.
    state.completion.idle = false;
    if purpose == AutocommitPurpose::Iteration {
        state.tracked_work.files_changed = None;
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

pub(super) fn hooks_started(state: &mut State, start: &HooksStart) {
    let (point, until) = (start.point, start.until);
    if point.kind() != HookKind::Blocking {
        return with_reboot(state, |reboot| {
            reboot.stage = RebootStage::Hooks { point, until }
        });
    }
    let found = std::mem::replace(&mut state.phase, Phase::Idle);
    let over = match (point, found) {
        // An earlier runner died during the same hooks. The phase before those hooks is kept.
        (
            HookPoint::LoopStart,
            Phase::Hooking {
                hooking: Hooking {
                    over: Some(over), ..
                },
            },
        ) => Some(over),
        (HookPoint::LoopStart, found) => Some(Box::new(found)),
        (_, _) => None,
    };
    // Hooks may change the work tree, like gates.
    state.tracked_work.checked |= point != HookPoint::LoopEnd;
    state.phase = Phase::Hooking {
        hooking: Hooking {
            point,
            until,
            then: start.then,
            outcome: start.outcome.clone(),
            over,
        },
    };
}

pub(super) fn hooks_ended(state: &mut State, end: &HooksEnd) {
    match end.point.kind() {
        HookKind::Reboot => {
            state.reboots.hooks.extend(end.results.iter().cloned());
            with_reboot(state, |reboot| reboot.stage = RebootStage::Begun);
        }
        HookKind::Blocking => {
            state.pending_hooks.heard(end.point);
            let found = std::mem::replace(&mut state.phase, Phase::Idle);
            if let Phase::Hooking { hooking } = found {
                state.phase = hooking.over.map_or(Phase::Idle, |over| *over);
            } else {
                state.phase = found;
            }
        }
        HookKind::Background => {}
    }
}
