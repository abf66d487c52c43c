//! What is known of a supervised server: the sum of its records.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::end::{Purpose, ServerEnd};
use super::event::{ServerEvent, ServerRecord};
use super::policy::{CRASH_WINDOW, HEALTHY_UPTIME};
use super::verdict::{History, StayReason};
use crate::effect::Rung;
use crate::id::{Generation, Seq};
use crate::time::Timestamp;

/// Without a delay and a limit a server can crash a thousand times in a minute; so many tell enough.
const CRASHES_KEPT_MAX: usize = 64;

/// What is known of a server. Changed by [`ServerState::apply`] alone, but for the pulse.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// The number of the last record.
    pub seq: Seq,
    /// The time of it.
    pub time: Timestamp,
    /// What is going on.
    pub phase: ServerPhase,
    /// The number of the last start.
    pub generation: Generation,
    /// Restarts since the last healthy uptime.
    pub attempts: u32,
    /// Whether the last one to end had been well for long enough.
    #[serde(default)]
    pub was_healthy: bool,
    /// Crashes since the last healthy uptime.
    pub crashes_in_a_row: u32,
    /// The latest crashes; those in the window count for a crash loop.
    pub crashes: VecDeque<Timestamp>,
    /// All crashes that were ever seen here.
    pub crashes_total: u64,
    /// All restarts, wanted ones included.
    pub restarts_total: u64,
    /// How the last one ended.
    pub last_end: Option<ServerEnd>,
    /// What is asked and not worth a record.
    #[serde(skip)]
    pub pulse: Pulse,
}

/// What is going on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ServerPhase {
    /// No supervisor has been here, or it ended in order.
    #[default]
    Idle,
    /// It is being started.
    Starting {
        /// When it has to be ready.
        until: Timestamp,
        /// Its process, once it runs.
        pid: Option<i32>,
    },
    /// It answers.
    Ready {
        /// Since when.
        since: Timestamp,
        /// Its process.
        pid: Option<i32>,
        /// Where.
        url: String,
        /// Its version, if it told.
        version: Option<String>,
        /// Its memory, when it had grown too large.
        too_large: Option<u64>,
    },
    /// It is being ended.
    Ending {
        /// What for.
        purpose: Purpose,
        /// The rung that it stands on.
        rung: Rung,
        /// How long that is waited for.
        until: Timestamp,
        /// Its process.
        pid: Option<i32>,
        /// Since when it was ready, if it was.
        ready_since: Option<Timestamp>,
    },
    /// It is gone, and what to do about it is not decided.
    Gone,
    /// It will be started again.
    Waiting {
        /// When.
        until: Timestamp,
    },
    /// It is left down.
    Down {
        /// Why.
        reason: StayReason,
    },
    /// It is left down, because restarts do not help.
    GaveUp {
        /// What it died of last.
        why: String,
    },
}

impl ServerPhase {
    /// Returns what the server is being ended for, if it is.
    #[must_use]
    pub fn purpose(&self) -> Option<&Purpose> {
        match self {
            Self::Ending { purpose, .. } => Some(purpose),
            Self::Idle
            | Self::Starting { .. }
            | Self::Ready { .. }
            | Self::Gone
            | Self::Waiting { .. }
            | Self::Down { .. }
            | Self::GaveUp { .. } => None,
        }
    }

    /// Returns whether there is a process, or may be.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match self {
            Self::Starting { .. } | Self::Ready { .. } | Self::Ending { .. } => true,
            Self::Idle
            | Self::Gone
            | Self::Waiting { .. }
            | Self::Down { .. }
            | Self::GaveUp { .. } => false,
        }
    }

    /// Returns the process, if there is one.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Starting { pid, .. } | Self::Ready { pid, .. } | Self::Ending { pid, .. } => *pid,
            Self::Idle
            | Self::Gone
            | Self::Waiting { .. }
            | Self::Down { .. }
            | Self::GaveUp { .. } => None,
        }
    }

    fn ready_since(&self) -> Option<Timestamp> {
        match self {
            Self::Ready { since, .. } => Some(*since),
            Self::Ending { ready_since, .. } => *ready_since,
            Self::Idle
            | Self::Starting { .. }
            | Self::Gone
            | Self::Waiting { .. }
            | Self::Down { .. }
            | Self::GaveUp { .. } => None,
        }
    }

    fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Starting { until, .. } | Self::Ending { until, .. } | Self::Waiting { until } => {
                Some(*until)
            }
            Self::Idle
            | Self::Ready { .. }
            | Self::Gone
            | Self::Down { .. }
            | Self::GaveUp { .. } => None,
        }
    }
}

/// Questions and misses. Not recorded: a server does not outlive its supervisor, and there would be one every few seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// When to ask next.
    pub next: Option<Timestamp>,
    /// Whether a question is out.
    pub asking: bool,
    /// Questions in a row that were not answered well.
    pub misses: u32,
    /// What was seen instead, the last time.
    pub last: Option<String>,
}

impl ServerState {
    /// Returns when [`super::ServerInput::Wake`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        [self.phase.until(), self.pulse.next]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns what a verdict has to know of the deaths before.
    #[must_use]
    pub fn history(&self) -> History {
        History {
            attempts: self.attempts,
            healthy: self.was_healthy,
        }
    }

    /// Returns how many crashes there were in the window that ends at `now`.
    #[must_use]
    pub fn crashes_in_window(&self, now: Timestamp) -> usize {
        let recent = |crash: &&Timestamp| now.since(**crash) < CRASH_WINDOW;
        self.crashes.iter().filter(recent).count()
    }

    /// Returns how long the server has been ready at `now`.
    #[must_use]
    pub fn uptime(&self, now: Timestamp) -> Duration {
        let since = self.phase.ready_since();
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Takes a fact in.
    pub fn apply(&mut self, record: &ServerRecord) {
        self.seq = record.seq;
        self.time = record.time;
        match &record.event {
            ServerEvent::JournalOpened { state } => {
                let (seq, time) = (self.seq, self.time);
                *self = (**state).clone();
                (self.seq, self.time) = (seq, time);
            }
            ServerEvent::Supervising { .. } | ServerEvent::CrashLoop { .. } => {}
            ServerEvent::Started { generation, until } => {
                self.generation = *generation;
                self.phase = ServerPhase::Starting {
                    until: *until,
                    pid: None,
                };
            }
            ServerEvent::Spawned { pid, .. } => self.spawned(*pid),
            ServerEvent::Ready { url, version, .. } => {
                self.phase = ServerPhase::Ready {
                    since: record.time,
                    pid: self.phase.pid(),
                    url: url.clone(),
                    version: version.clone(),
                    too_large: None,
                };
            }
            ServerEvent::TooLarge { rss_bytes, .. } => {
                if let ServerPhase::Ready { too_large, .. } = &mut self.phase {
                    *too_large = Some(*rss_bytes);
                }
            }
            ServerEvent::Ending {
                purpose,
                rung,
                until,
                ..
            } => {
                self.phase = ServerPhase::Ending {
                    purpose: purpose.clone(),
                    rung: *rung,
                    until: *until,
                    pid: self.phase.pid(),
                    ready_since: self.phase.ready_since(),
                };
            }
            ServerEvent::Hurried { rung, until, .. } => self.hurried(*rung, *until),
            ServerEvent::Stopped { end, uptime_ms, .. } => {
                self.stopped(end, Duration::from_millis(*uptime_ms), record.time);
            }
            ServerEvent::Restarting { attempt, until, .. } => {
                self.attempts = self.attempts.max(*attempt);
                self.restarts_total = self.restarts_total.saturating_add(1);
                self.phase = ServerPhase::Waiting { until: *until };
            }
            ServerEvent::Stayed { reason } => self.phase = ServerPhase::Down { reason: *reason },
            ServerEvent::GaveUp { why, .. } => {
                self.phase = ServerPhase::GaveUp { why: why.clone() };
            }
            ServerEvent::Cleared => {
                self.attempts = 0;
                self.crashes_in_a_row = 0;
                self.crashes.clear();
            }
            ServerEvent::StoodStill { duration_ms } => {
                self.stood_still(Duration::from_millis(*duration_ms));
            }
            ServerEvent::Closed => self.phase = ServerPhase::Idle,
        }
    }

    fn spawned(&mut self, new: i32) {
        match &mut self.phase {
            ServerPhase::Starting { pid, .. } | ServerPhase::Ending { pid, .. } => *pid = Some(new),
            ServerPhase::Idle
            | ServerPhase::Ready { .. }
            | ServerPhase::Gone
            | ServerPhase::Waiting { .. }
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => {}
        }
    }

    fn hurried(&mut self, next: Rung, later: Timestamp) {
        if let ServerPhase::Ending { rung, until, .. } = &mut self.phase {
            (*rung, *until) = (next, later);
        }
    }

    fn stopped(&mut self, end: &ServerEnd, uptime: Duration, now: Timestamp) {
        // Measured at the end: only then is it known how long it was well.
        self.was_healthy = uptime >= HEALTHY_UPTIME;
        if self.was_healthy {
            self.attempts = 0;
            self.crashes_in_a_row = 0;
        }
        if end.is_crash() {
            self.crashes_in_a_row = self.crashes_in_a_row.saturating_add(1);
            self.crashes_total = self.crashes_total.saturating_add(1);
            self.crashes
                .retain(|crash| now.since(*crash) < CRASH_WINDOW);
            if self.crashes.len() == CRASHES_KEPT_MAX {
                self.crashes.pop_front();
            }
            self.crashes.push_back(now);
        }
        self.last_end = Some(end.clone());
        self.phase = ServerPhase::Gone;
    }

    fn stood_still(&mut self, duration: Duration) {
        match &mut self.phase {
            ServerPhase::Starting { until, .. } | ServerPhase::Ending { until, .. } => {
                *until = until.after(duration);
            }
            // A wait ends when it was said to end, and the others have no deadline.
            ServerPhase::Idle
            | ServerPhase::Ready { .. }
            | ServerPhase::Gone
            | ServerPhase::Waiting { .. }
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => {}
        }
    }
}
