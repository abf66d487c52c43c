//! How an attempt at an iteration changes the state, from its launch to its end.

use crate::{Generation, LiveAgent, Phase, State, Timestamp, Work};

pub(super) fn service_answered(state: &mut State) {
    state.limit_streak = 0;
    state.outage_since = None;
}

/// The model's service refused an attempt, or could not be reached.
pub(super) fn service_refused(state: &mut State, streak: u32, outage: bool, time: Timestamp) {
    state.limit_streak = streak;
    // If no request ever succeeded, the outage began with the attempt.
    let mut attempt_began = time;
    if let Phase::Working { work } = &state.phase
        && !state.reached_service()
    {
        attempt_began = work.started;
    }
    state.outage_since = outage.then(|| state.outage_since.unwrap_or(attempt_began));
}

/// The attempt ended without a result. Its iteration is repeated.
pub(super) fn attempt_cut(state: &mut State, agent_lives: bool) {
    state.cut = true;
    if !agent_lives {
        state.agent = None;
    }
    state.phase = Phase::Idle;
}

pub(super) fn begin_work(state: &mut State, generation: Generation, time: Timestamp) {
    let mut work = Work::new(generation, time);
    match state.agent.filter(|agent| agent.generation == generation) {
        // The process of the session runs, and gets its next prompt.
        Some(agent) => {
            work.pid = agent.pid;
            work.launched = Some(time);
            work.reused = true;
        }
        None => launching(state, generation),
    }
    let work = Box::new(work);
    state.phase = Phase::Working { work };
}

pub(super) fn launching(state: &mut State, generation: Generation) {
    state.generation = generation;
    state.agent = Some(LiveAgent {
        generation,
        pid: None,
    });
}

/// Changes the current attempt, if there is one.
pub(super) fn with_work(state: &mut State, change: impl FnOnce(&mut Work)) {
    if let Phase::Working { work } = &mut state.phase {
        change(work);
    }
}
