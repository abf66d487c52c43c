//! Totals of a loop.

use serde::{Deserialize, Serialize};

use crate::IterationOutcome;

/// Totals of a loop over all its runs. Every finished iteration has exactly one outcome, so `iterations` is
/// the sum of the five outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopStats {
    /// Number of finished iterations.
    pub iterations: u32,
    /// Number of iterations that succeeded.
    pub successful: u32,
    /// Number of iterations that failed.
    pub failed: u32,
    /// Iterations that ended early because their session was rebooted.
    pub handed_over: u32,
    /// Iterations that the operator skipped.
    pub skipped: u32,
    /// Iterations that a stop or an immediate pause interrupted.
    pub interrupted: u32,
    /// Number of completed reboots.
    pub reboots: u32,
    /// Time spent in iterations of any outcome, in milliseconds.
    pub execution_ms: u64,
    /// Cost of the agent's turns in millionths of a dollar, as far as the agent reports it.
    #[serde(default)]
    pub cost_microusd: u64,
    /// Tokens that the model read or wrote in the agent's turns, including cached ones, as far as the agent reports them.
    #[serde(default)]
    pub tokens: u64,
    /// Whether the agent works on a subscription. Then the cost is not billed: it is the price without the subscription.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_subscription: bool,
    /// Failing gate or test runs in a row.
    pub test_failure_streak: u32,
    /// Iterations in a row without progress.
    pub no_progress_count: u32,
}

impl LoopStats {
    pub(crate) fn count(&mut self, outcome: IterationOutcome, duration_ms: u64) {
        self.iterations += 1;
        self.execution_ms = self.execution_ms.saturating_add(duration_ms);
        let counter = match outcome {
            IterationOutcome::Succeeded => &mut self.successful,
            IterationOutcome::Failed => &mut self.failed,
            IterationOutcome::HandedOver => &mut self.handed_over,
            IterationOutcome::Skipped => &mut self.skipped,
            IterationOutcome::Interrupted => &mut self.interrupted,
        };
        *counter += 1;
    }

    /// Returns whether the counts of the five outcomes add up to the number of iterations.
    #[must_use]
    pub fn close(&self) -> bool {
        self.iterations
            == self.successful + self.failed + self.handed_over + self.skipped + self.interrupted
    }
}
