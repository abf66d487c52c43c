//! Backoff: how long the loop waits after failures.

use std::time::Duration;

use super::Backoff;

/// Decides the backoff: the wait after `failures` failures in a row. It doubles with each failure, up to the cap.
#[must_use]
pub fn delay(backoff: Backoff, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    backoff.base.saturating_mul(1 << doublings).min(backoff.cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap() {
        let seconds: Vec<u64> = (1..=9)
            .map(|failures| delay(Backoff::default(), failures).as_secs())
            .collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(delay(Backoff::default(), u32::MAX), Duration::from_secs(60));
        assert_eq!(
            delay(
                Backoff {
                    base: Duration::ZERO,
                    cap: Duration::MAX
                },
                40
            ),
            Duration::ZERO
        );
    }
}
