//! Ids and numbers of loops, sessions, records, launches and requests.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// Id of a loop, the same over all its runs; printed as `loop_<uuid>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoopId(Uuid);

impl LoopId {
    /// Makes an id from a random UUID of the runner.
    #[must_use]
    pub fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Makes an id from a number, for tests and examples.
    #[must_use]
    pub fn from_u128(number: u128) -> Self {
        Self(Uuid::from_u128(number))
    }
}

impl fmt::Display for LoopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loop_{}", self.0)
    }
}

/// A text that is not a loop id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a loop id (`loop_` and a UUID)")]
pub struct ParseLoopIdError(String);

impl FromStr for LoopId {
    type Err = ParseLoopIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix("loop_")
            .and_then(|uuid| Uuid::try_parse(uuid).ok())
            .map(Self)
            .ok_or_else(|| ParseLoopIdError(text.to_owned()))
    }
}

impl Serialize for LoopId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LoopId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Returns the number after this one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// Number of a record in its loop, from 1, without gaps.
    Seq(u64)
}
counter! {
    /// The number of a session in its loop, from 1; 0 before the first.
    SessionNo(u32)
}
counter! {
    /// The number of a launch in its loop. Events of a launch carry it, so that stale ones can be dropped.
    Generation(u64)
}
counter! {
    /// Number of a request that waits for its answer.
    Ticket(u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_id_is_printed_with_a_prefix_and_read_back() {
        let id = LoopId::from_u128(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_string(), "loop_00000000-0000-0000-0123-456789abcdef");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!(
            "00000000-0000-0000-0123-456789abcdef"
                .parse::<LoopId>()
                .is_err()
        );
        assert!(
            "loop_../../etc".parse::<LoopId>().is_err(),
            "an id is used as a directory name"
        );
    }
}
