//! How hooks change the state.

use super::reboot::with_reboot;
use crate::{HookKind, HookPoint, Hooking, HooksEnd, HooksStart, Phase, RebootStage, State};

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
    state.kept.checked |= point != HookPoint::LoopEnd;
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
