//! The history of reboots, for the rate limits and for `history --reboots`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{HookResult, SessionNo, Timestamp, is_zero};

/// Maximum number of finished reboots that are kept.
const HISTORY_MAX: usize = 100;

/// Maximum number of reboots in the last hour that are remembered. `max_reboots_per_hour` may not be larger.
pub const PER_HOUR_MAX: u32 = 1000;

const HOUR: Duration = Duration::from_secs(3600);

/// Results of reboots so far. Attempts, successes and failures have separate times, because each has its own rate limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebootBook {
    /// When the last reboot began; `None` before the first.
    pub last_attempt: Option<Timestamp>,
    /// When the last successful reboot ended; `None` before the first.
    pub last_success: Option<Timestamp>,
    /// When the last failed reboot ended; `None` before the first.
    pub last_failure: Option<Timestamp>,
    /// Number of reboots that were begun.
    pub attempts: u32,
    /// Number of reboots in a row that failed.
    pub failures: u32,
    /// Number of reboots in a row that freed too little of the context.
    pub futile: u32,
    /// Number of all reboots that freed too little of the context.
    #[serde(skip_serializing_if = "is_zero")]
    pub futile_total: u32,
    /// Times of successful reboots in the last hour, oldest first.
    pub recent: Vec<Timestamp>,
    /// Finished reboots, oldest first.
    pub history: Vec<RebootEntry>,
    /// Results of the hooks of the current reboot.
    pub hooks: Vec<HookResult>,
}

/// A reboot that has ended, successfully or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootEntry {
    /// When the reboot ended.
    pub time: Timestamp,
    /// Number of the iteration that was started last.
    pub iteration: u32,
    /// Why a reboot was wanted.
    pub reason: RebootReason,
    /// How the reboot ended.
    pub result: RebootResult,
    /// How long the reboot took, in milliseconds.
    pub duration_ms: u64,
    /// Number of the session before the reboot.
    pub from: SessionNo,
    /// The agent's id of the conversation before the reboot.
    pub from_agent_id: Option<String>,
    /// The agent's id of the conversation after the reboot; `None` until it is known.
    pub to_agent_id: Option<String>,
    /// Results of the hooks of the reboot.
    pub hooks: Vec<HookResult>,
}

/// How a reboot ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RebootResult {
    /// The new session took over.
    Done,
    /// The new session took over, but the reboot freed too little of the context.
    Futile {
        /// What the first reading of the new session shows.
        reason: String,
    },
    /// A hook canceled the reboot. The old session continues.
    Aborted {
        /// Error of the hook.
        error: String,
    },
    /// The reboot failed. The old session continues.
    Failed {
        /// Why the reboot failed.
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
        self.futile_total = self
            .futile_total
            .saturating_add(u32::from(futile.is_some()));
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

    /// Returns the number of successful reboots in the hour before `now`.
    #[must_use]
    pub fn last_hour(&self, now: Timestamp) -> usize {
        let within = |success: &&Timestamp| now.since(**success) < HOUR;
        self.recent.iter().filter(within).count()
    }

    /// Returns when the hourly limit allows another reboot; `None` = now.
    pub(crate) fn hour_opens(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        if limit == 0 || self.last_hour(now) < limit as usize {
            return None;
        }
        let nth_last = self.recent.len().checked_sub(limit as usize)?;
        self.recent.get(nth_last).map(|success| success.after(HOUR))
    }
}

/// Why a session is replaced by a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RebootReason {
    /// The context reached the redline.
    Redline {
        /// The measured fill of the context in percent, rounded down.
        percent: u8,
        /// The measured fill in tokens, if the redline in tokens was reached first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
    },
    /// The agent refused a request because its context is full. Its last reading may have been lower.
    Refused,
    /// The quality of the agent's work fell.
    Degradation {
        /// Failed and repeated tool calls, in words.
        details: String,
    },
    /// The session reached its maximum number of iterations.
    IterationLimit {
        /// Number of iterations in the session.
        count: u32,
    },
    /// The session reached its maximum age.
    DurationLimit {
        /// Age of the session in seconds.
        seconds: u64,
    },
    /// The agent's final text matched a pattern.
    PatternMatch {
        /// The pattern that matched.
        pattern: String,
    },
    /// The agent does not report its context, and reached the maximum number of tool calls.
    ToolCalls {
        /// Number of tool calls in the session.
        count: u32,
    },
    /// The conversation is broken.
    ErrorRecovery {
        /// Error of the conversation.
        error: String,
    },
    /// The operator asked for a reboot.
    Manual,
}

impl fmt::Display for RebootReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redline {
                percent,
                tokens: Some(tokens),
            } => write!(f, "context at {tokens} tokens ({percent}%)"),
            Self::Redline {
                percent,
                tokens: None,
            } => write!(f, "context at {percent}%"),
            Self::Refused => f.write_str("the context of the agent is full"),
            Self::Degradation { details } => write!(f, "the quality of the agent fell: {details}"),
            Self::IterationLimit { count: 1 } => f.write_str("1 iteration in this session"),
            Self::IterationLimit { count } => write!(f, "{count} iterations in this session"),
            Self::DurationLimit { seconds } => write!(f, "the session is {seconds} s old"),
            Self::PatternMatch { pattern } => {
                write!(f, "the agent's words match the pattern `{pattern}`")
            }
            Self::ToolCalls { count } => write!(
                f,
                "{count} tool calls in a session whose context is not known"
            ),
            Self::ErrorRecovery { error } => write!(f, "the conversation is broken: {error}"),
            Self::Manual => f.write_str("asked for by the operator"),
        }
    }
}
