//! Events of a supervised server.

use serde::{Deserialize, Serialize};

use super::{Purpose, ServerEnd, ServerState, StayReason};
use crate::{Generation, Leftover, Seq, StopSignal, Timestamp};

/// One event in the supervisor's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Number of the record, from 1, without gaps.
    pub seq: Seq,
    /// When the event was recorded.
    pub time: Timestamp,
    /// The event.
    pub event: ServerEvent,
}

/// What happened to a supervised server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ServerEvent {
    /// A new journal file begins.
    JournalOpened {
        /// State of the server before this record.
        state: Box<ServerState>,
    },
    /// A supervisor process began to supervise the server.
    Supervising {
        /// Process id of the supervisor.
        pid: u32,
    },
    /// The supervisor is starting the server.
    Started {
        /// Number of the server's start.
        generation: Generation,
        /// Time by which the server must be ready.
        until: Timestamp,
    },
    /// The process of the server runs.
    Spawned {
        /// Number of the server's start.
        generation: Generation,
        /// Process id of the server.
        pid: i32,
    },
    /// The server answers health checks.
    Ready {
        /// Number of the server's start.
        generation: Generation,
        /// Address of the server.
        url: String,
        /// Version that the server reported; `None` if it reported none.
        version: Option<String>,
    },
    /// The server uses too much memory. It is replaced as soon as no session is busy.
    TooLarge {
        /// Number of the server's start.
        generation: Generation,
        /// Memory of the server in bytes.
        rss_bytes: u64,
        /// Value of `opencode.max_rss_bytes`.
        max_rss_bytes: u64,
    },
    /// The server is being ended. Recorded before the first signal.
    Ending {
        /// Number of the server's start.
        generation: Generation,
        /// Why the server is ended.
        purpose: Purpose,
        /// The first step: ask the server to end its tools, SIGTERM, or SIGKILL.
        #[serde(rename = "rung")]
        signal: StopSignal,
        /// When the next signal is sent.
        until: Timestamp,
    },
    /// The server did not end in time, or has ended its tools. The next signal follows.
    Hurried {
        /// Number of the server's start.
        generation: Generation,
        /// The signal that is sent now.
        #[serde(rename = "rung")]
        signal: StopSignal,
        /// When the next signal is sent.
        until: Timestamp,
    },
    /// The server and all processes that it had started have ended.
    Stopped {
        /// Number of the server's start.
        generation: Generation,
        /// How the server ended.
        end: ServerEnd,
        /// How long the server was ready, in milliseconds.
        uptime_ms: u64,
        /// Processes that the server left running, and that were ended.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        leftovers: Vec<Leftover>,
    },
    /// The server crashed too often in a short time.
    CrashLoop {
        /// Number of crashes within the window.
        crashes: usize,
    },
    /// The server will be started again. Recorded before every restart.
    Restarting {
        /// Number of this restart since the last healthy uptime; 0 = the operator asked for it.
        attempt: u32,
        /// Delay before the start in milliseconds, including jitter.
        delay_ms: u64,
        /// When the server is started.
        until: Timestamp,
        /// How the previous server process ended.
        end: ServerEnd,
    },
    /// The delay before a restart was shortened, because the settings were reloaded.
    Rescheduled {
        /// When the server is started.
        until: Timestamp,
    },
    /// The server is not restarted.
    Stayed {
        /// Why the server is not restarted.
        reason: StayReason,
    },
    /// Restarts do not help. The server stays down until the operator starts it.
    GaveUp {
        /// Number of restarts that were tried.
        attempts: u32,
        /// How the server ended the last time.
        why: String,
    },
    /// The operator restarted the server. Earlier failures no longer count.
    Cleared,
    /// The machine was suspended.
    #[serde(rename = "stood_still")]
    Suspended {
        /// Length of the suspension, in milliseconds.
        duration_ms: u64,
    },
    /// A caller without permission asked for something that only the operator may do. The caller was an agent, a tool or another user.
    AccessRefused {
        /// The request that was refused.
        request: String,
        /// Process id of the caller; `None` if it is unknown.
        pid: Option<i32>,
    },
    /// The supervisor shut down in order.
    Closed,
}
