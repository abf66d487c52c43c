//! Events of a supervised server.

use serde::{Deserialize, Serialize};

use super::{Purpose, ServerEnd, ServerState, StayReason};
use crate::{Generation, Leftover, Seq, StopSignal, Timestamp};

/// One event in the supervisor's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its place, from 1, without gaps.
    pub seq: Seq,
    /// When it was decided.
    pub time: Timestamp,
    /// What happened.
    pub event: ServerEvent,
}

/// What happened to a supervised server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ServerEvent {
    /// A new journal file begins.
    JournalOpened {
        /// The state so far.
        state: Box<ServerState>,
    },
    /// A supervisor took over.
    Supervising {
        /// Its process.
        pid: u32,
    },
    /// A server is being started.
    Started {
        /// Which.
        generation: Generation,
        /// When it has to be ready.
        until: Timestamp,
    },
    /// Its process runs.
    Spawned {
        /// Which.
        generation: Generation,
        /// The process.
        pid: i32,
    },
    /// It answers.
    Ready {
        /// Which.
        generation: Generation,
        /// Where.
        url: String,
        /// Version that the server reported; `None` if it reported none.
        version: Option<String>,
    },
    /// It uses too much memory, and is replaced as soon as no session is busy.
    TooLarge {
        /// Which.
        generation: Generation,
        /// Its memory.
        rss_bytes: u64,
        /// What is allowed.
        max_rss_bytes: u64,
    },
    /// It is being ended; recorded before anything is done about it.
    Ending {
        /// Which.
        generation: Generation,
        /// What for.
        purpose: Purpose,
        /// How.
        rung: StopSignal,
        /// How long that is waited for.
        until: Timestamp,
    },
    /// It did not end in time, or has ended its tools. The next signal step follows.
    Hurried {
        /// Which.
        generation: Generation,
        /// How.
        rung: StopSignal,
        /// How long that is waited for.
        until: Timestamp,
    },
    /// It is gone, with all that it had started.
    Stopped {
        /// Which.
        generation: Generation,
        /// How it ended.
        end: ServerEnd,
        /// How long it was ready.
        uptime_ms: u64,
        /// What it left running, and was ended.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        leftovers: Vec<Leftover>,
    },
    /// Too many crashes in too short a time.
    CrashLoop {
        /// How many in the window.
        crashes: usize,
    },
    /// It will be started again. Recorded before every restart.
    Restarting {
        /// Which restart since the last healthy uptime; 0 = it was wanted.
        attempt: u32,
        /// How long it waits, jitter included.
        delay_ms: u64,
        /// Until when.
        until: Timestamp,
        /// What the server before died of.
        end: ServerEnd,
    },
    /// The wait for a restart was shortened, because other settings were read.
    Rescheduled {
        /// When it is started.
        until: Timestamp,
    },
    /// It is left down.
    Stayed {
        /// Why.
        reason: StayReason,
    },
    /// Restarts do not help. It is left down until the operator starts it.
    GaveUp {
        /// How many were tried.
        attempts: u32,
        /// What it died of last.
        why: String,
    },
    /// The operator restarted it. Earlier failures no longer count.
    Cleared,
    /// The machine was suspended.
    #[serde(rename = "stood_still")]
    Suspended {
        /// For how long.
        duration_ms: u64,
    },
    /// An agent or a tool of the server, or another user, asked for what only the operator may ask for, and was refused.
    AccessRefused {
        /// What.
        request: String,
        /// The process.
        pid: Option<i32>,
    },
    /// The supervisor ended in order.
    Closed,
}
