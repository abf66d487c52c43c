//! Timestamps in milliseconds since the Unix epoch. The runner passes the time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time in milliseconds, as precise as the journal, so that a replayed state equals the live one. Written and read as RFC 3339
/// in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The last time that can be written in every time zone (end of the year 9999). Later times are clamped to it.
const LAST_MILLIS: i64 = 253_402_207_200_000;

impl Timestamp {
    /// Makes a timestamp from milliseconds since the Unix epoch, clamped to what RFC 3339 can represent.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, LAST_MILLIS))
    }

    /// Returns the milliseconds since the Unix epoch.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns the time that is later by `duration`, clamped to the last possible time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self::from_millis(self.0.saturating_add(millis))
    }

    /// Returns the time that passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Returns a duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment =
            jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        write!(f, "{moment:.3}")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let moment: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
        Ok(Self::from_millis(moment.as_millisecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_survives_serialization() {
        for millis in [0, 1, 999, 1_763_183_084_007, LAST_MILLIS] {
            let moment = Timestamp::from_millis(millis);
            let text = serde_json::to_string(&moment).unwrap();
            assert_eq!(
                serde_json::from_str::<Timestamp>(&text).unwrap(),
                moment,
                "{text}"
            );
        }
        assert_eq!(
            Timestamp::from_millis(1_763_183_084_007).to_string(),
            "2025-11-15T05:04:44.007Z"
        );
    }

    #[test]
    fn time_arithmetic_saturates_at_both_ends() {
        assert_eq!(
            Timestamp::from_millis(5).after(Duration::MAX),
            Timestamp::from_millis(LAST_MILLIS)
        );
        assert_eq!(
            Timestamp::from_millis(5).since(Timestamp::from_millis(9)),
            Duration::ZERO
        );
    }
}
