//! How time that passes changes the state.

use std::time::Duration;

use super::reboot::with_reboot;
use super::work::with_work;
use crate::{LoopEvent, Phase, RebootStage, State, Timestamp};

/// Counts the time that the loop ran up to a record.
pub(super) fn pass_time(state: &mut State, event: &LoopEvent, time: Timestamp) {
    if let LoopEvent::Started { runner, .. } = event {
        if let Some(until) = runner.follows_until {
            state.accounting.count(&state.phase, until.min(time));
        }
        state.accounting.runner_started(time);
    } else if let LoopEvent::Suspended { duration_ms } = event {
        let duration = Duration::from_millis(*duration_ms);
        state.accounting.suspended(duration);
    } else if !event.may_come_without_runner() {
        // Events that may come without a runner do not count time. The next other record counts it.
        state.accounting.count(&state.phase, time);
    }
}

/// Extends all deadlines by the time of a suspension.
pub(super) fn postpone_deadlines(state: &mut State, duration: Duration) {
    with_reboot(state, |reboot| match &mut reboot.stage {
        RebootStage::Begun => {}
        RebootStage::HandOff { until, .. } | RebootStage::Hooks { until, .. } => {
            *until = until.after(duration);
        }
        RebootStage::Autocommitting { autocommit } => autocommit.postpone(duration),
        RebootStage::Closing { escalation, .. } => {
            escalation.until = escalation.until.after(duration);
        }
        RebootStage::Opening { since, .. } => *since = since.after(duration),
    });
    if let Phase::Autocommitting { autocommit } = &mut state.phase {
        autocommit.postpone(duration);
    }
    if let Phase::Hooking { hooking } = &mut state.phase {
        hooking.until = hooking.until.after(duration);
    }
    if let Phase::Checking { check } = &mut state.phase {
        check.until = check.until.map(|until| until.after(duration));
    }
    with_work(state, |work| work.postpone(duration));
}
