//! Backoff: how long the loop waits after a failed iteration, a usage limit or an outage.
//!
//! After a failed iteration, the number of failures is `failure_streak`, which a succeeded iteration resets to 0, and so does a new run of
//! a loop that had ended. `step/settle` has the waits for usage limits and outages.

use std::time::Duration;

/// The wait after failures: doubles with each failure in a row, up to a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the first failure.
    pub base: Duration,
    /// Longest wait.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(60),
        }
    }
}

impl Backoff {
    /// Returns the wait after `failures` failures in a row. It doubles with each failure, up to the cap.
    #[must_use]
    pub fn delay(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap() {
        let seconds: Vec<u64> = (1..=9)
            .map(|failures| Backoff::default().delay(failures).as_secs())
            .collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(Backoff::default().delay(u32::MAX), Duration::from_secs(60));
        assert_eq!(
            Backoff {
                base: Duration::ZERO,
                cap: Duration::MAX
            }
            .delay(40),
            Duration::ZERO
        );
    }
}
