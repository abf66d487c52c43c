//! A runner takes up the loop.

use super::State;
use crate::launch::{Launch, Runner};
use crate::phase::Phase;
use crate::time::Timestamp;

impl State {
    pub(super) fn take_up(&mut self, launch: &Launch, runner: &Runner, time: Timestamp) {
        if self.owes_a_look() {
            // The opening look takes in what was done, and nobody asks it how much that was.
            self.progress.missed();
        }
        self.launch = launch.clone();
        self.runner = Some(runner.clone());
        self.agent = None;
        self.started_at.get_or_insert(time);
        // A new run is the operator's wish to go on: an earlier wish to stop has been granted, or died with its runner.
        self.stop = None;
        self.stop_urgent = false;
        self.take_up_rollback(time);
        if matches!(self.phase, Phase::Ended { .. }) {
            self.failure_streak = 0;
            // Whoever runs a loop again that was stopped for these wants it to go on.
            self.stats.test_failure_streak = 0;
            self.stats.no_progress_count = 0;
            self.stop_pattern = None;
            self.reboots.failures = 0;
            self.reboots.futile = 0;
            self.pause_requested = false;
            self.taken_up_anew();
            self.phase = Phase::Idle;
        }
    }
}
