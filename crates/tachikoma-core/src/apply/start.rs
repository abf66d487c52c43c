//! How the start of a runner changes the state.

use super::operator;
use crate::{Launch, Phase, Runner, State, Timestamp};

pub(super) fn runner_started(state: &mut State, launch: &Launch, runner: &Runner, time: Timestamp) {
    if state.needs_survey() {
        // The survey at the start finds the changes of the attempt that was cut, but does not measure its progress.
        state.progress.missed();
        // Those changes are committed when the loop ends, also if no iteration follows.
        state.kept.checked = true;
    }
    state.launch = launch.clone();
    state.runner = Some(runner.clone());
    state.agent = None;
    state.started_at.get_or_insert(time);
    // The operator started the loop again, so an earlier request to stop no longer applies.
    state.stop = None;
    state.stop_urgent = false;
    operator::restart_rollback_timeout(state, time);
    if matches!(state.phase, Phase::Ended { .. }) {
        state.failure_streak = 0;
        // These counters may have ended the loop. The operator who runs it again wants it to continue.
        state.stats.test_failure_streak = 0;
        state.stats.no_progress_count = 0;
        state.stop_pattern = None;
        state.reboots.failures = 0;
        state.reboots.futile = 0;
        state.pause_requested = false;
        operator::reset_for_new_run(state);
        state.phase = Phase::Idle;
    }
}
