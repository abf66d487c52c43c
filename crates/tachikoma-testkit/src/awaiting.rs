//! Waits until a condition is true. This is the only place in the tests that sleeps.

use std::thread;
use std::time::{Duration, Instant};

/// Interval between checks: short compared to the awaited states (processes, files), long compared to the cost of a check.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// Returns as soon as `condition` is true, and panics with `what` if it is not true in time.
///
/// The condition is checked once more after the deadline, so that a busy machine cannot
/// fail a test that reached its state.
///
/// # Panics
///
/// When `deadline` has passed and the condition is still false.
#[track_caller]
pub fn await_until(what: &str, deadline: Duration, condition: impl FnMut() -> bool) {
    let came = comes_true(deadline, condition);
    assert!(came, "timed out after {deadline:?} waiting for: {what}");
}

/// Returns whether the condition becomes true before the deadline.
pub(crate) fn comes_true(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() >= deadline {
            return condition();
        }
        thread::sleep(LOOK_EVERY);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn await_until_returns_as_soon_as_the_condition_is_true() {
        let mut looks = 0;
        await_until("the third look", Duration::from_secs(10), || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3, "no check after the successful one");
    }

    #[test]
    #[should_panic(expected = "waiting for: a state that never comes")]
    fn await_until_panics_with_the_name_of_the_awaited_state() {
        await_until(
            "a state that never comes",
            Duration::from_millis(10),
            || false,
        );
    }

    #[test]
    fn the_condition_is_checked_once_more_after_the_deadline() {
        let mut looks = 0;
        await_until("the second look", Duration::ZERO, || {
            looks += 1;
            looks == 2
        });
    }
}
