//! How a reboot changes the state, and the entry that remains of it.

use super::work;
use crate::{
    HandOff, Phase, Problem, Reboot, RebootEntry, RebootReason, RebootResult, RebootStage, State,
    Timestamp,
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
            if let RebootStage::HandOff { said, .. } = &mut reboot.stage {
                said.push(text.to_owned());
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
        Some(Problem::Limited { .. }) => work::service_refused(state, streak, false, time),
        Some(Problem::Unreachable) => work::service_refused(state, streak, true, time),
        None if success => work::service_answered(state),
        Some(_) | None => {}
    }
}

/// Changes the current reboot, if there is one.
pub(super) fn with_reboot(state: &mut State, change: impl FnOnce(&mut Reboot)) {
    if let Phase::Rebooting { reboot } = &mut state.phase {
        change(reboot);
    }
}
