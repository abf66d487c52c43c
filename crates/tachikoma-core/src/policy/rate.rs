//! Rate limits of reboots.

use super::RebootRules;
use crate::{RebootBook, Timestamp};

/// Returns the time before which the rate limits allow no reboot; `None` = a reboot is allowed now.
#[must_use]
pub fn not_before(rules: &RebootRules, book: &RebootBook, now: Timestamp) -> Option<Timestamp> {
    let interval = book.last_success.map(|time| time.after(rules.min_interval));
    let cooldown = book
        .last_failure
        .filter(|_| book.failures > 0)
        .map(|time| time.after(rules.failure_cooldown.saturating_mul(book.failures)));
    let hour = book.hour_opens(rules.max_per_hour, now);
    [interval, cooldown, hour]
        .into_iter()
        .flatten()
        .max()
        .filter(|moment| *moment > now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn reboot_book(
        last_success: Option<i64>,
        last_failure: Option<i64>,
        failures: u32,
    ) -> RebootBook {
        RebootBook {
            last_success: last_success.map(at),
            last_failure: last_failure.map(at),
            failures,
            recent: last_success.map(at).into_iter().collect(),
            ..RebootBook::default()
        }
    }

    #[test]
    fn latest_of_the_rate_limits_delays_a_reboot() {
        let rules = RebootRules::default();
        for (book, now, expected) in [
            (reboot_book(None, None, 0), 0, None),
            (reboot_book(Some(0), None, 0), 299, Some(300)),
            (reboot_book(Some(0), None, 0), 300, None),
            // The cooldown after a failed reboot applies even without an earlier success.
            (reboot_book(None, Some(0), 1), 59, Some(60)),
            (reboot_book(None, Some(0), 1), 60, None),
            (reboot_book(None, Some(0), 2), 119, Some(120)),
            (reboot_book(Some(0), Some(250), 1), 260, Some(310)),
            // After a success, earlier failures no longer count.
            (reboot_book(Some(0), Some(250), 0), 301, None),
        ] {
            assert_eq!(
                not_before(&rules, &book, at(now)),
                expected.map(at),
                "{book:?}"
            );
        }
    }

    #[test]
    fn hourly_limit_counts_successful_reboots() {
        let rules = RebootRules {
            min_interval: Duration::ZERO,
            max_per_hour: 3,
            ..RebootRules::default()
        };
        let mut book = reboot_book(Some(30), None, 0);
        book.recent = vec![at(0), at(10), at(20), at(30)];
        assert_eq!(not_before(&rules, &book, at(40)), Some(at(3610)));
        assert_eq!(not_before(&rules, &book, at(3609)), Some(at(3610)));
        assert_eq!(not_before(&rules, &book, at(3610)), None);
        let unlimited = RebootRules {
            max_per_hour: 0,
            ..rules
        };
        assert_eq!(not_before(&unlimited, &book, at(40)), None);
    }
}
