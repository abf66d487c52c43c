//! What one process has cost.

/// What a process has cost. Totals include what a conversation cost in earlier processes, and every turn before.
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

    /// Takes a new total, and what was spent since the last result if that was told, and returns the turn's cost.
    pub fn add(&mut self, total: Option<f64>, told: Option<f64>) -> f64 {
        let since = match (total, self.total) {
            // A total that shrinks belongs to another conversation.
            (Some(total), Some(before)) if total >= before => Some(total - before),
            (total, _) => total,
        };
        let cost = told.or(since).unwrap_or_default().max(0.0);
        self.total = total.or(self.total);
        self.run += cost;
        cost
    }

    /// What this process has cost; sums of cents have no more than so many decimals.
    pub fn run_usd(&self) -> f64 {
        rounded(self.run)
    }
}

/// Rounds off what adding and subtracting decimals leaves behind.
pub fn rounded(usd: f64) -> f64 {
    let rounded = (usd * 1e9).round() / 1e9;
    if rounded.is_finite() { rounded } else { 0.0 }
}
