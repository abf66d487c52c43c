//! The cost of one process.

use crate::agent_event::rounded;

/// The cost of a process. The totals that the agent reports include earlier processes of the conversation and earlier turns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// The total of the conversation at the last result; `None` before the first result.
    total: Option<f64>,
    run: f64,
}

impl Costs {
    /// Takes a new total of the conversation, and the cost since the last result if it is known. Returns the cost of the turn.
    pub fn add(&mut self, total: Option<f64>, told: Option<f64>) -> f64 {
        let since = match (total, self.total) {
            // A lower total belongs to another conversation.
            (Some(total), Some(before)) if total >= before => Some(total - before),
            (total, _) => total,
        };
        let cost = told.or(since).unwrap_or_default().max(0.0);
        self.total = total.or(self.total);
        self.run += cost;
        cost
    }

    /// Returns the cost of this process, without rounding errors.
    pub fn run_usd(&self) -> f64 {
        rounded(self.run)
    }
}
