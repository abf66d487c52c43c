//! Replacing a session by a fresh one, as planned.

use super::Turn;
use crate::effect::Effect;
use crate::event::LoopEvent;
use crate::id::SessionNo;
use crate::outcome::RebootReason;
use crate::phase::{Phase, Reboot, Wait, WaitReason};

impl Turn<'_> {
    pub(super) fn begin_reboot(&mut self, reason: RebootReason, then: Option<Wait>) {
        let from = self.state.session.number;
        let iteration = self.state.iteration;
        self.record(LoopEvent::RebootStarted {
            reason,
            iteration,
            from,
            then,
        });
        self.wish(Effect::Renew {
            session: from.next(),
        });
    }

    pub(super) fn renewed(&mut self, session: SessionNo, result: Result<Option<String>, String>) {
        let Some(reboot) = self.reboot().filter(|reboot| reboot.to == session) else {
            return;
        };
        match result {
            Ok(agent_id) => self.replace_session(reboot, agent_id),
            Err(error) => self.reboot_failed(error),
        }
    }

    /// Takes up a reboot that the death of a runner cut: one whose fresh session is recorded is over.
    pub(super) fn resume_reboot(&mut self, reboot: Reboot) {
        if self.state.session.number == reboot.to {
            self.reboot_completed(reboot);
        } else {
            self.begin_reboot(reboot.reason, reboot.then);
        }
    }

    fn replace_session(&mut self, reboot: Reboot, agent_id: Option<String>) {
        self.record(LoopEvent::SessionEnded {
            session: self.state.session.number,
            iterations: self.state.session.iterations,
            reason: reboot.reason.to_string(),
        });
        self.record(LoopEvent::SessionStarted {
            session: reboot.to,
            agent_id,
        });
        self.reboot_completed(reboot);
    }

    fn reboot_completed(&mut self, reboot: Reboot) {
        let Reboot {
            reason,
            started,
            to,
            then,
        } = reboot;
        let duration_ms = u64::try_from(self.now.since(started).as_millis()).unwrap_or(u64::MAX);
        self.record(LoopEvent::RebootCompleted {
            reason,
            iteration: self.state.iteration,
            from: SessionNo(to.0.saturating_sub(1)),
            to,
            duration_ms,
        });
        self.proceed(then);
    }

    /// The old session goes on: a reboot that fails costs nothing but the time it took.
    pub(super) fn reboot_failed(&mut self, error: String) {
        let Some(Reboot { reason, .. }) = self.reboot() else {
            return;
        };
        let iteration = self.state.iteration;
        self.record(LoopEvent::RebootFailed {
            reason,
            iteration,
            error,
        });
        // The cause of the reboot may still hold; do not ask for the next one at once.
        let until = self.now.after(self.policy.backoff.cap);
        self.proceed(Some(Wait {
            reason: WaitReason::Backoff,
            until,
        }));
    }

    fn reboot(&self) -> Option<Reboot> {
        match &self.state.phase {
            Phase::Rebooting { reboot } => Some(reboot.clone()),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => None,
        }
    }
}
