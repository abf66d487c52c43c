//! The only place that reads the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tachikoma_core::Timestamp;

/// A wall clock that is this much ahead of the monotonic one was set, or the machine was asleep. A sleeper that is this
/// much late was not let run.
const JUMP: Duration = Duration::from_secs(2);

/// A sleeper on the monotonic clock does not notice that the wall clock jumped, nor that it is stopped; it looks at least
/// this often.
const LOOK: Duration = Duration::from_secs(10);

/// A clock whose time never falls: the wall clock, measured by the monotonic one in between. When the wall clock
/// is set back, it goes on from where it was; when it jumps ahead, so does this one, and says by how much.
#[derive(Debug)]
pub struct Clock {
    start: Timestamp,
    anchor: Instant,
    last: Timestamp,
    jumped: Duration,
}

impl Clock {
    /// Makes a clock that goes on after `last`, the latest time that the loop has seen.
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

    /// Returns by how much the time has jumped ahead since this was last asked, if it has.
    pub fn jumped(&mut self) -> Option<Duration> {
        Some(std::mem::take(&mut self.jumped)).filter(|jump| !jump.is_zero())
    }

    /// Returns the moment of the runtime's clock at which to look again for the sake of `deadline`.
    #[must_use]
    pub fn instant_of(&self, deadline: Timestamp) -> tokio::time::Instant {
        let at_latest = Instant::now() + LOOK;
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
        // Not strictly later: a millisecond per reading would run ahead of the world, and records are ordered by number.
        self.last = now.max(self.last);
        self.last
    }
}

fn wall() -> Timestamp {
    timestamp_of(SystemTime::now())
}

/// Returns a moment of a loop by the system's clock, such as files have.
#[must_use]
pub fn system_time_of(time: Timestamp) -> SystemTime {
    let millis = u64::try_from(time.as_millis()).unwrap_or(0);
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// Returns a moment of the system's clock, such as that of a file, as a loop writes it.
#[must_use]
pub fn timestamp_of(time: SystemTime) -> Timestamp {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// Returns how long a sleeper may have been stopped that lay down at `since` and meant to wake at `meant`: not at all, unless
/// it woke later than a busy machine explains. Nobody tells beforehand who is stopped from outside (SIGSTOP, a frozen
/// container), so the whole sleep counts, which is at most `LOOK` too much: a time-out may come late, but not early.
#[must_use]
pub fn overslept(since: Instant, meant: tokio::time::Instant) -> Option<Duration> {
    stopped(since, meant.into_std(), Instant::now())
}

fn stopped(since: Instant, meant: Instant, now: Instant) -> Option<Duration> {
    let late = now.saturating_duration_since(meant);
    (late >= JUMP).then(|| now.saturating_duration_since(since))
}

/// Returns the time by which the system stamps files, in nanoseconds.
#[must_use]
pub fn file_time() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since_epoch.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the moment of a monotonic clock, for measuring.
#[must_use]
pub fn monotonic() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_falls_and_goes_on_after_the_last() {
        let far = Timestamp::from_millis(4_000_000_000_000);
        let mut clock = Clock::starting_after(far);
        let times: Vec<Timestamp> = (0..100).map(|_| clock.now()).collect();
        assert!(times[0] > far);
        assert!(times.is_sorted());
    }

    #[test]
    fn a_sleeper_that_is_a_little_late_was_not_stopped() {
        let since = Instant::now();
        let meant = since + Duration::from_secs(5);
        let woke_after = |millis| stopped(since, meant, since + Duration::from_millis(millis));
        assert_eq!(woke_after(1_000), None, "by something else");
        assert_eq!(woke_after(6_999), None);
        assert_eq!(woke_after(30_000), Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_wall_clock_that_is_set_back_is_not_followed_and_one_that_jumps_ahead_is() {
        let mut clock = Clock::starting_after(Timestamp::default());
        let now = clock.now();
        let hour = Duration::from_secs(3600);
        let (second_later, hour_later) = (now.after(Duration::from_secs(1)), now.after(hour));
        let back = Timestamp::from_millis(now.as_millis() - 3_600_000);
        assert_eq!(clock.reading(back, second_later), second_later);
        assert_eq!(clock.jumped(), None);
        assert_eq!(clock.reading(hour_later, second_later), hour_later);
        assert_eq!(clock.jumped(), Some(hour - Duration::from_secs(1)));
        assert_eq!(clock.jumped(), None, "said once");
        assert!(clock.now() >= hour_later);
    }
}
