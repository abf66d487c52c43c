//! Applies records to the state of a supervised server.

use std::time::Duration;

use super::{
    CRASH_WINDOW, HEALTHY_UPTIME, ServerEnd, ServerEvent, ServerPhase, ServerRecord, ServerState,
};
use crate::Timestamp;

/// Maximum number of crash times that are kept. Without a delay and a limit a server can crash a thousand times in a minute.
const CRASHES_KEPT_MAX: usize = 64;

/// Applies one record. Nothing else changes the state, except for the health checks in `pulse`.
pub fn apply(state: &mut ServerState, record: &ServerRecord) {
    state.seq = record.seq;
    state.time = record.time;
    match &record.event {
        ServerEvent::JournalOpened { state: opened } => {
            let (seq, time) = (state.seq, state.time);
            *state = (**opened).clone();
            (state.seq, state.time) = (seq, time);
        }
        ServerEvent::Supervising { .. }
        | ServerEvent::CrashLoop { .. }
        | ServerEvent::AccessRefused { .. } => {}
        ServerEvent::Started { generation, until } => {
            state.generation = *generation;
            state.phase = ServerPhase::Starting {
                until: *until,
                pid: None,
            };
        }
        ServerEvent::Spawned { pid: new, .. } => {
            if let ServerPhase::Starting { pid, .. } | ServerPhase::Ending { pid, .. } =
                &mut state.phase
            {
                *pid = Some(*new);
            }
        }
        ServerEvent::Ready { url, version, .. } => {
            state.phase = ServerPhase::Ready {
                since: record.time,
                pid: state.phase.pid(),
                url: url.clone(),
                version: version.clone(),
                too_large: None,
            };
        }
        ServerEvent::TooLarge { rss_bytes, .. } => {
            if let ServerPhase::Ready { too_large, .. } = &mut state.phase {
                *too_large = Some(*rss_bytes);
            }
        }
        ServerEvent::Ending {
            purpose,
            signal,
            until,
            ..
        } => {
            state.phase = ServerPhase::Ending {
                purpose: purpose.clone(),
                signal: *signal,
                until: *until,
                pid: state.phase.pid(),
                ready_since: state.phase.ready_since(),
            };
        }
        ServerEvent::Hurried {
            signal: next,
            until: later,
            ..
        } => {
            if let ServerPhase::Ending { signal, until, .. } = &mut state.phase {
                (*signal, *until) = (*next, *later);
            }
        }
        ServerEvent::Stopped { end, uptime_ms, .. } => {
            stopped(state, end, Duration::from_millis(*uptime_ms), record.time);
        }
        ServerEvent::Restarting { attempt, until, .. } => {
            state.attempts = state.attempts.max(*attempt);
            state.restarts_total = state.restarts_total.saturating_add(1);
            state.phase = ServerPhase::Waiting { until: *until };
        }
        ServerEvent::Rescheduled { until } => {
            state.phase = ServerPhase::Waiting { until: *until };
        }
        ServerEvent::Stayed { reason } => state.phase = ServerPhase::Down { reason: *reason },
        ServerEvent::GaveUp { why, .. } => {
            state.phase = ServerPhase::GaveUp { why: why.clone() };
        }
        ServerEvent::Cleared => {
            state.attempts = 0;
            state.crashes_in_a_row = 0;
            state.crashes.clear();
        }
        ServerEvent::Suspended { duration_ms } => {
            if let ServerPhase::Starting { until, .. } | ServerPhase::Ending { until, .. } =
                &mut state.phase
            {
                *until = until.after(Duration::from_millis(*duration_ms));
            }
        }
        ServerEvent::Closed => state.phase = ServerPhase::Idle,
    }
}

fn stopped(state: &mut ServerState, end: &ServerEnd, uptime: Duration, now: Timestamp) {
    // The uptime is measured when the server ends, because its length is known only then.
    state.was_healthy = uptime >= HEALTHY_UPTIME;
    if state.was_healthy {
        state.attempts = 0;
        state.crashes_in_a_row = 0;
    }
    if end.is_crash() {
        state.crashes_in_a_row = state.crashes_in_a_row.saturating_add(1);
        state.crashes_total = state.crashes_total.saturating_add(1);
        state
            .crashes
            .retain(|crash| now.since(*crash) < CRASH_WINDOW);
        if state.crashes.len() == CRASHES_KEPT_MAX {
            state.crashes.pop_front();
        }
        state.crashes.push_back(now);
    }
    state.last_end = Some(end.clone());
    state.phase = ServerPhase::Gone;
}
