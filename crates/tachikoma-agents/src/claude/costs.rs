//! The cost of one process.

/// The cost of a process. Totals of the agent include earlier processes of the conversation and earlier turns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// The total of the conversation at the last result, or before this process.
    total: Option<f64>,
    run: f64,
}

impl Costs {
    pub fn after(total: f64) -> Self {
        Self {
            total: Some(total).filter(|total| total.is_finite()),
            run: 0.0,
        }
    }

    /// Takes a new total, and the cost since the last result if it is known. Returns the cost of the turn.
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

/// Removes rounding errors of sums.
pub fn rounded(usd: f64) -> f64 {
    let rounded = (usd * 1e9).round() / 1e9;
    if rounded.is_finite() { rounded } else { 0.0 }
}
