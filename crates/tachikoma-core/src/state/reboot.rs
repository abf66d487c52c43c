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
        self.work(|work| work.postpone(duration));
    }

    pub(super) fn rebooting(&self) -> Option<&Reboot> {
        match &self.phase {
            Phase::Rebooting { reboot } => Some(reboot),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Keeping { .. }
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
