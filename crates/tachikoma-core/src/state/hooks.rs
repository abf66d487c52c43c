//! How hooks change the state.

use super::State;
use crate::hooking::{Frames, HookKind, HookPoint, Hooking, HooksEnd, HooksStart};
use crate::outcome::IterationOutcome;
use crate::phase::{Phase, RebootStage};

impl State {
    /// Returns the hooks that the loop waits for.
    #[must_use]
    pub fn hooking(&self) -> Option<&Hooking> {
        match &self.phase {
            Phase::Hooking { hooking } => Some(hooking),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Keeping { .. }
            | Phase::Checking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => None,
        }
    }

    pub(super) fn hooks_started(&mut self, start: &HooksStart) {
        let (point, until) = (start.point, start.until);
        if point.kind() != HookKind::Framing {
            return self.reboot(|reboot| reboot.stage = RebootStage::Hooks { point, until });
        }
        let found = std::mem::replace(&mut self.phase, Phase::Idle);
        let over = match (point, found) {
            // A runner died over the same hooks.
            (
                HookPoint::LoopStart,
                Phase::Hooking {
                    hooking:
                        Hooking {
                            over: Some(over), ..
                        },
                },
            ) => Some(over),
            (HookPoint::LoopStart, found) => Some(Box::new(found)),
            (_, _) => None,
        };
        // As gates do, they may change the work tree.
        self.kept.checked |= point != HookPoint::LoopEnd;
        self.phase = Phase::Hooking {
            hooking: Hooking {
                point,
                until,
                then: start.then,
                outcome: start.outcome.clone(),
                over,
            },
        };
    }

    pub(super) fn hooks_ended(&mut self, end: &HooksEnd) {
        match end.point.kind() {
            HookKind::Reboot => {
                self.reboots.hooks.extend(end.results.iter().cloned());
                self.reboot(|reboot| reboot.stage = RebootStage::Begun);
            }
            HookKind::Framing => {
                self.frames.heard(end.point);
                let found = std::mem::replace(&mut self.phase, Phase::Idle);
                if let Phase::Hooking { hooking } = found {
                    self.phase = hooking.over.map_or(Phase::Idle, |over| *over);
                } else {
                    self.phase = found;
                }
            }
            HookKind::Beside => {}
        }
    }
}

impl Frames {
    /// An attempt has ended.
    pub(super) fn ended(&mut self, outcome: Option<IterationOutcome>) {
        self.iteration_end = true;
        self.outcome = outcome;
    }

    /// Hooks of a point have run, or were called off.
    fn heard(&mut self, point: HookPoint) {
        match point {
            HookPoint::IterationStart => self.ready = true,
            HookPoint::IterationEnd => self.iteration_end = false,
            HookPoint::SessionStart => self.session_start = false,
            HookPoint::SessionEnd => self.session_end = false,
            HookPoint::LoopStart
            | HookPoint::LoopEnd
            | HookPoint::BeforeReboot
            | HookPoint::AfterReboot
            | HookPoint::TestsChanged
            | HookPoint::NoProgress
            | HookPoint::Error
            | HookPoint::Question
            | HookPoint::LimitWait => {}
        }
    }
}
