//! The limits that end a loop.

use serde::{Deserialize, Serialize};

/// Limits that end a loop; zero = no limit. They are part of the state, so that a journal shows how near each limit was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Value of `max_iterations`.
    pub iterations: u32,
    /// Value of `max_consecutive_failures`.
    pub failures: u32,
    /// Value of `max_test_failure_streak`.
    pub test_failures: u32,
    /// Value of `max_no_progress_iterations`.
    pub no_progress: u32,
    /// Number of patterns in `stop_on_patterns`.
    pub patterns: u32,
    /// Value of `max_cost_usd`, in millionths of a dollar.
    pub cost_microusd: u64,
    /// Value of `max_tokens`.
    pub tokens: u64,
    /// Value of `max_duration`, in milliseconds.
    pub duration_ms: u64,
    /// Value of `max_quota_percent`.
    pub quota_percent: f64,
}
