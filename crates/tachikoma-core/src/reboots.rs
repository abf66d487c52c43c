//! The books of the reboots: what the rate limits are asked from, and what a person wants to look up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hooking::HookResult;
use crate::id::SessionNo;
use crate::outcome::RebootReason;
use crate::time::Timestamp;

/// Attempts that are remembered in full.
const HISTORY_MAX: usize = 100;

/// Reboots of the last hour that are counted; `max_reboots_per_hour` may not be larger.
pub const PER_HOUR_MAX: u32 = 1000;

const HOUR: Duration = Duration::from_secs(3600);

/// How reboots went so far. Three clocks, because a failure must not hide behind the interval between successes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebootBook {
    /// When one was last begun.
    pub last_attempt: Option<Timestamp>,
    /// When one last succeeded.
    pub last_success: Option<Timestamp>,
    /// When one last failed.
    pub last_failure: Option<Timestamp>,
    /// How many were begun.
    pub attempts: u32,
    /// Failures in a row.
    pub failures: u32,
    /// Reboots in a row that were for nothing.
    pub futile: u32,
    /// Successes of the last hour, oldest first.
    pub recent: Vec<Timestamp>,
    /// Attempts that are over, oldest first.
    pub history: Vec<RebootEntry>,
    /// Hooks of the attempt under way.
    pub hooks: Vec<HookResult>,
}

/// An attempt that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootEntry {
    /// When it was over.
    pub time: Timestamp,
    /// The iteration it happened at.
    pub iteration: u32,
    /// Why a reboot was wanted.
    pub reason: RebootReason,
    /// How it went.
    pub result: RebootResult,
    /// How long it took.
    pub duration_ms: u64,
    /// The session before it.
    pub from: SessionNo,
    /// The agent's own name for that one.
    pub from_agent_id: Option<String>,
    /// The agent's own name for the session after it, once it is known.
    pub to_agent_id: Option<String>,
    /// How its hooks went.
    pub hooks: Vec<HookResult>,
}

/// How an attempt went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RebootResult {
    /// A fresh session took over.
    Done,
    /// A fresh session took over, and it was for nothing.
    Futile {
        /// Why.
        reason: String,
    },
    /// A hook forbade it; the old session goes on.
    Aborted {
        /// What it said.
        error: String,
    },
    /// It went wrong; the old session goes on.
    Failed {
        /// What went wrong.
        error: String,
    },
}

impl RebootBook {
    pub(crate) fn begun(&mut self, time: Timestamp) {
        self.last_attempt = Some(time);
        self.attempts = self.attempts.saturating_add(1);
        self.hooks.clear();
    }

    pub(crate) fn succeeded(&mut self, entry: RebootEntry) {
        let time = entry.time;
        self.last_success = Some(time);
        self.failures = 0;
        self.recent.retain(|success| time.since(*success) < HOUR);
        if self.recent.len() >= PER_HOUR_MAX as usize {
            self.recent.remove(0);
        }
        self.recent.push(time);
        self.enter(entry);
    }

    pub(crate) fn failed(&mut self, entry: RebootEntry) {
        self.last_failure = Some(entry.time);
        self.failures = self.failures.saturating_add(1);
        self.enter(entry);
    }

    pub(crate) fn verified(&mut self, futile: Option<&str>) {
        self.futile = match futile {
            Some(_) => self.futile.saturating_add(1),
            None => 0,
        };
        if let (Some(reason), Some(entry)) = (futile, self.history.last_mut()) {
            entry.result = RebootResult::Futile {
                reason: reason.to_owned(),
            };
        }
    }

    pub(crate) fn named(&mut self, agent_id: &str) {
        if let Some(entry) = self.history.last_mut()
            && matches!(entry.result, RebootResult::Done)
            && entry.to_agent_id.is_none()
        {
            entry.to_agent_id = Some(agent_id.to_owned());
        }
    }

    fn enter(&mut self, entry: RebootEntry) {
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(entry);
    }

    /// Returns how many succeeded in the hour before `now`.
    #[must_use]
    pub fn last_hour(&self, now: Timestamp) -> usize {
        let within = |success: &&Timestamp| now.since(**success) < HOUR;
        self.recent.iter().filter(within).count()
    }

    /// Returns the moment at which fewer than `limit` successes lie in the last hour, if that is not now.
    pub(crate) fn hour_opens(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        if limit == 0 || self.last_hour(now) < limit as usize {
            return None;
        }
        let nth_last = self.recent.len().checked_sub(limit as usize)?;
        self.recent.get(nth_last).map(|success| success.after(HOUR))
    }
}
