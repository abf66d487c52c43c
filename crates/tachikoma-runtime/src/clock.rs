//! The clock of the loop, and conversions between its timestamps, `SystemTime` and file times.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tachikoma_core::Timestamp;

/// Smallest jump that is noticed. If the wall clock is this far ahead of the monotonic clock, it was changed or the machine was
/// suspended. A task that wakes this late was stopped.
const JUMP: Duration = Duration::from_secs(2);

/// Longest sleep. The monotonic clock does not show that the wall clock was changed, so a sleeping task has to wake and check.
const SLEEP_MAX: Duration = Duration::from_secs(10);

/// A clock that never goes back. It starts with the wall clock and advances with the monotonic clock. If the wall clock is set
/// back, it ignores that. If the wall clock jumps ahead, it follows and reports the length of the jump.
#[derive(Debug)]
pub struct Clock {
    start: Timestamp,
    anchor: Instant,
    last: Timestamp,
    jumped: Duration,
}

impl Clock {
    /// Returns a clock that continues after `last`, the time of the last record.
    #[must_use]
    pub fn starting_after(last: Timestamp) -> Self {
        Self {
            start: wall().max(last.after(Duration::from_millis(1))),
            anchor: Instant::now(),
            last,
            jumped: Duration::ZERO,
        }
    }

    /// Returns the time, never earlier than any time returned before.
    pub fn now(&mut self) -> Timestamp {
        let measured = self.start.after(self.anchor.elapsed());
        self.reading(wall(), measured)
    }

    /// Returns how far the wall clock has jumped ahead since the last call of this function; `None` if it has not.
    pub fn jumped(&mut self) -> Option<Duration> {
        Some(std::mem::take(&mut self.jumped)).filter(|jump| !jump.is_zero())
    }

    /// Returns when a task that waits for `deadline` must wake: at the deadline, or earlier to check the clock.
    #[must_use]
    pub fn instant_of(&self, deadline: Timestamp) -> tokio::time::Instant {
        let at_latest = Instant::now() + SLEEP_MAX;
        tokio::time::Instant::from_std(at_latest.min(self.anchor + deadline.since(self.start)))
    }

    fn reading(&mut self, wall: Timestamp, measured: Timestamp) -> Timestamp {
        let ahead = wall.since(measured);
        let now = if ahead >= JUMP {
            self.jumped += ahead;
            self.start = wall;
            self.anchor = Instant::now();
            wall
        } else {
            measured
        };
        // Two readings may be equal, because records are ordered by number. Adding a millisecond to each would make the clock run fast.
        self.last = now.max(self.last);
        self.last
    }
}

fn wall() -> Timestamp {
    timestamp_of(SystemTime::now())
}

/// Converts the timestamp of a record to a `SystemTime`, for example to compare it with the modification time of a file.
#[must_use]
pub fn system_time_of(time: Timestamp) -> SystemTime {
    let millis = u64::try_from(time.as_millis()).unwrap_or(0);
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// Converts a `SystemTime`, for example the modification time of a file, to a timestamp.
#[must_use]
pub fn timestamp_of(time: SystemTime) -> Timestamp {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// A task slept from `since` and should have woken at `meant`. Returns how long it was stopped; `None` if the delay can be
/// explained by a busy machine. The start of a stop (SIGSTOP, a frozen container) is unknown, so the whole sleep counts as
/// stopped. Timeouts may be late by up to `SLEEP_MAX`, but never early.
#[must_use]
pub fn overslept(since: Instant, meant: tokio::time::Instant) -> Option<Duration> {
    stopped(since, meant.into_std(), Instant::now())
}

fn stopped(since: Instant, meant: Instant, now: Instant) -> Option<Duration> {
    let late = now.saturating_duration_since(meant);
    (late >= JUMP).then(|| now.saturating_duration_since(since))
}

/// Returns the current time in the unit of file times: nanoseconds since 1970.
#[must_use]
pub fn file_time() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since_epoch.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the time of the monotonic clock, for measuring durations.
#[must_use]
pub fn monotonic() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_decreases_and_continues_after_the_last_record() {
        let far = Timestamp::from_millis(4_000_000_000_000);
        let mut clock = Clock::starting_after(far);
        let times: Vec<Timestamp> = (0..100).map(|_| clock.now()).collect();
        assert!(times[0] > far);
        assert!(times.is_sorted());
    }

    #[test]
    fn short_delay_is_not_a_suspension() {
        let since = Instant::now();
        let meant = since + Duration::from_secs(5);
        let woke_after = |millis| stopped(since, meant, since + Duration::from_millis(millis));
        assert_eq!(
            woke_after(1_000),
            None,
            "the task was woken early by an event"
        );
        assert_eq!(woke_after(6_999), None);
        assert_eq!(woke_after(30_000), Some(Duration::from_secs(30)));
    }

    #[test]
    fn clock_follows_jumps_ahead_and_ignores_jumps_back() {
        let mut clock = Clock::starting_after(Timestamp::default());
        let now = clock.now();
        let hour = Duration::from_secs(3600);
        let (second_later, hour_later) = (now.after(Duration::from_secs(1)), now.after(hour));
        let back = Timestamp::from_millis(now.as_millis() - 3_600_000);
        assert_eq!(clock.reading(back, second_later), second_later);
        assert_eq!(clock.jumped(), None);
        assert_eq!(clock.reading(hour_later, second_later), hour_later);
        assert_eq!(clock.jumped(), Some(hour - Duration::from_secs(1)));
        assert_eq!(clock.jumped(), None, "the jump is reported once");
        assert!(clock.now() >= hour_later);
    }
}
