//! A reboot under way, and what is written down of one that is over.

use std::time::Duration;

use super::State;
use crate::outcome::RebootReason;
use crate::phase::{Phase, Reboot, RebootStage};
use crate::reboots::{RebootEntry, RebootResult};
use crate::time::Timestamp;

impl State {
    pub(super) fn entry(
        &self,
        time: Timestamp,
        reason: &RebootReason,
        iteration: u32,
        duration_ms: u64,
        result: RebootResult,
    ) -> RebootEntry {
        let past = self.history.last().filter(|_| result == RebootResult::Done);
        RebootEntry {
            time,
            iteration,
            reason: reason.clone(),
            result,
            duration_ms,
            from: self.session.number,
            from_agent_id: past
                .map_or(&self.session.agent_id, |past| &past.agent_id)
                .clone(),
            to_agent_id: past.and_then(|_| self.session.agent_id.clone()),
            hooks: self.reboots.hooks.clone(),
        }
    }

    pub(super) fn reboot_failed(
        &mut self,
        time: Timestamp,
        reason: &RebootReason,
        iteration: u32,
        result: RebootResult,
    ) {
        let started = self.rebooting().map_or(time, |reboot| reboot.started);
        let duration_ms = u64::try_from(time.since(started).as_millis()).unwrap_or(u64::MAX);
        let entry = self.entry(time, reason, iteration, duration_ms, result);
        self.reboots.failed(entry);
        self.phase = Phase::Idle;
    }

    pub(super) fn stand_still(&mut self, duration: Duration) {
        self.reboot(|reboot| match &mut reboot.stage {
            RebootStage::Begun => {}
            RebootStage::HandOff { until } | RebootStage::Hooks { until, .. } => {
                *until = until.after(duration);
            }
            RebootStage::Keeping { keep } => keep.postpone(duration),
            RebootStage::Closing { ladder, .. } => ladder.until = ladder.until.after(duration),
            RebootStage::Opening { since, .. } => *since = since.after(duration),
        });
        if let Phase::Keeping { keep } = &mut self.phase {
            keep.postpone(duration);
        }
        if let Phase::Hooking { hooking } = &mut self.phase {
            hooking.until = hooking.until.after(duration);
        }
        if let Phase::Checking { check } = &mut self.phase {
            check.until = check.until.map(|until| until.after(duration));
        }
        self.work(|work| work.postpone(duration));
    }

    /// Returns the reboot that is under way.
    pub fn rebooting(&self) -> Option<&Reboot> {
        match &self.phase {
            Phase::Rebooting { reboot } => Some(reboot),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Keeping { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => None,
        }
    }

    pub(super) fn reboot(&mut self, change: impl FnOnce(&mut Reboot)) {
        if let Phase::Rebooting { reboot } = &mut self.phase {
            change(reboot);
        }
    }
}
