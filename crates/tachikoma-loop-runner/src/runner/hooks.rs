//! Hooks of a reboot.

use tachikoma_core::{HookPoint, Input, RebootReason};

use super::LoopRunner;

impl LoopRunner {
    /// Runs the hooks of one point.
    pub(super) fn run_hooks(&mut self, point: HookPoint, _reason: &RebootReason) {
        let results = Vec::new();
        self.queue.push_back(Input::HooksRan { point, results });
    }
}
