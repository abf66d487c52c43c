//! The only place that reads the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tachikoma_core::Timestamp;

/// Returns a time of the operating system as a moment.
pub(crate) fn timestamp_of(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A clock whose time strictly increases: the wall clock when it was made, then monotonic. Setting the wall clock
/// neither fires a time-out nor holds one back.
#[derive(Debug)]
pub struct Clock {
    start: Timestamp,
    anchor: Instant,
    last: Timestamp,
}

impl Clock {
    /// Makes a clock that goes on after `last`, the latest time that the loop has seen.
    #[must_use]
    pub fn starting_after(last: Timestamp) -> Self {
        let wall = timestamp_of(SystemTime::now());
        let start = wall.max(last.after(Duration::from_millis(1)));
        Self {
            start,
            anchor: Instant::now(),
            last,
        }
    }

    /// Returns the time, later than any time returned before.
    pub fn now(&mut self) -> Timestamp {
        let raw = self.start.after(self.anchor.elapsed());
        self.last = raw.max(self.last.after(Duration::from_millis(1)));
        self.last
    }

    /// Takes back the time since `stopped`, in which the whole process stood still (Ctrl-Z): no time-out runs on.
    pub fn stood_still_since(&mut self, stopped: Instant) {
        self.anchor += stopped.elapsed();
    }

    /// Returns the moment of the runtime's clock at which `deadline` is reached.
    #[must_use]
    pub fn instant_of(&self, deadline: Timestamp) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.anchor + deadline.since(self.start))
    }
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
    fn time_strictly_increases_and_goes_on_after_the_last() {
        let far = Timestamp::from_millis(4_000_000_000_000);
        let mut clock = Clock::starting_after(far);
        let times: Vec<Timestamp> = (0..100).map(|_| clock.now()).collect();
        assert!(times[0] > far);
        assert!(times.is_sorted_by(|a, b| a < b));
    }
}
