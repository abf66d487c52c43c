//! State of a supervised server: the result of its records.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CRASH_WINDOW, History, Purpose, ServerEnd, StayReason};
use crate::{Generation, Seq, StopSignal, Timestamp};

/// State of a supervised server. Only [`apply`](super::apply()) changes it, except for the time of the last health check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// Number of the last record.
    pub seq: Seq,
    /// Time of the last record.
    pub time: Timestamp,
    /// Current phase.
    pub phase: ServerPhase,
    /// Number of the last start of the server.
    pub generation: Generation,
    /// Restarts of the server since its last healthy uptime.
    pub attempts: u32,
    /// Whether the last server was ready for [`HEALTHY_UPTIME`](super::HEALTHY_UPTIME).
    #[serde(default)]
    pub was_healthy: bool,
    /// Crashes of the server since its last healthy uptime.
    pub crashes_in_a_row: u32,
    /// Times of the latest crashes. Crashes within the window can form a crash loop.
    pub crashes: VecDeque<Timestamp>,
    /// Number of all crashes of the server.
    pub crashes_total: u64,
    /// Number of all restarts of the server, including those that the operator asked for.
    pub restarts_total: u64,
    /// How the last server ended; `None` before the first end.
    pub last_end: Option<ServerEnd>,
    /// State of the health checks, which is not recorded.
    #[serde(skip)]
    pub pulse: Pulse,
}

/// Phase of a supervised server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ServerPhase {
    /// No supervisor runs the server.
    #[default]
    Idle,
    /// The server is being started.
    Starting {
        /// When the server has to be ready.
        until: Timestamp,
        /// Process id of the server; `None` until its process runs.
        pid: Option<i32>,
    },
    /// The server answers health checks.
    Ready {
        /// When the server became ready.
        since: Timestamp,
        /// Process id of the server.
        pid: Option<i32>,
        /// Address of the server.
        url: String,
        /// Version that the server reported; `None` if it reported none.
        version: Option<String>,
        /// Memory of the server in bytes when it became too large; `None` if it is not too large.
        too_large: Option<u64>,
    },
    /// The supervisor is shutting the server down.
    Ending {
        /// Why the server is ended.
        purpose: Purpose,
        /// The last signal that was sent.
        #[serde(rename = "rung")]
        signal: StopSignal,
        /// When the next signal is sent.
        until: Timestamp,
        /// Process id of the server.
        pid: Option<i32>,
        /// When the server became ready; `None` if it was not.
        ready_since: Option<Timestamp>,
    },
    /// The server has ended. The supervisor has not decided yet whether to restart it.
    Gone,
    /// The server is restarted after a delay.
    Waiting {
        /// When the server is started.
        until: Timestamp,
    },
    /// The server is not restarted.
    Down {
        /// Why the server is not restarted.
        reason: StayReason,
    },
    /// The server is not restarted, because restarts did not help.
    GaveUp {
        /// How the server ended the last time.
        why: String,
    },
}

impl ServerPhase {
    /// Returns why the server is being ended; `None` if it is not being ended.
    #[must_use]
    pub fn purpose(&self) -> Option<&Purpose> {
        match self {
            Self::Ending { purpose, .. } => Some(purpose),
            _ => None,
        }
    }

    /// Returns whether a process of the server runs or may run.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(
            self,
            Self::Starting { .. } | Self::Ready { .. } | Self::Ending { .. }
        )
    }

    /// Returns the process id of the server; `None` without a process.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Starting { pid, .. } | Self::Ready { pid, .. } | Self::Ending { pid, .. } => *pid,
            _ => None,
        }
    }

    pub(super) fn ready_since(&self) -> Option<Timestamp> {
        match self {
            Self::Ready { since, .. } => Some(*since),
            Self::Ending { ready_since, .. } => *ready_since,
            _ => None,
        }
    }

    fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Starting { until, .. } | Self::Ending { until, .. } | Self::Waiting { until } => {
                Some(*until)
            }
            _ => None,
        }
    }
}

/// State of the health checks. It is not recorded, because a server does not outlive its supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Time of the next health check; `None` if none is planned.
    pub next: Option<Timestamp>,
    /// Whether a health check is running.
    pub asking: bool,
    /// Number of failed health checks in a row.
    pub misses: u32,
    /// Error of the last failed health check; `None` without one.
    pub last: Option<String>,
}

impl ServerState {
    /// Returns when the supervisor has to send [`super::ServerInput::Wake`]; `None` = no deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        [self.phase.until(), self.pulse.next]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the part of the state that a verdict depends on.
    #[must_use]
    pub fn history(&self) -> History {
        History {
            attempts: self.attempts,
            healthy: self.was_healthy,
        }
    }

    /// Returns the number of crashes in the window that ends at `now`.
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
}
