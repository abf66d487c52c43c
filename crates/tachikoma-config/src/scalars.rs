//! Types of single values: durations, percentages, amounts of money and secrets.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A span of time, written as text with a unit: `"5s"`, `"1h 30m"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanDuration(Duration);

/// A value that is not valid for its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be {must_be}, not {given}")]
pub struct OutOfRange {
    must_be: &'static str,
    given: String,
}

const A_DURATION: &str = "a duration such as \"5s\" or \"1h 30m\"";

impl HumanDuration {
    /// Maximum duration. A longer one is a mistake, and its deadline would overflow the clock.
    pub const MAX: Self = Self::from_secs(100 * 365 * 24 * 60 * 60);

    /// Returns a duration of whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns the value as a [`Duration`].
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Returns the duration as a timeout; `None` if it is zero, which means no timeout.
    #[must_use]
    pub fn limit(self) -> Option<Duration> {
        (!self.0.is_zero()).then_some(self.0)
    }
}

impl FromStr for HumanDuration {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        let out_of_range = |must_be| OutOfRange {
            must_be,
            given: format!("{text:?}"),
        };
        let duration = humantime::parse_duration(text).map_err(|_| out_of_range(A_DURATION))?;
        if duration > Self::MAX.0 {
            return Err(out_of_range("a duration of at most 100 years"));
        }
        Ok(Self(duration))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = HumanDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(A_DURATION)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HumanDuration, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl JsonSchema for HumanDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "HumanDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // The format is not called `duration`, because that means ISO 8601.
        json_schema!({ "type": "string", "format": "human-duration" })
    }
}

/// A percentage from 0 to 100, with decimals.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Percent(f64);

impl Percent {
    /// Returns the percentage as a number from 0 to 100.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns a percentage for a default value. It is checked at compile time.
    pub(super) const fn whole(percent: u8) -> Self {
        assert!(percent <= 100, "a percentage is at most 100");
        Self(percent as f64)
    }
}

impl TryFrom<f64> for Percent {
    type Error = OutOfRange;

    fn try_from(number: f64) -> Result<Self, OutOfRange> {
        // NaN is rejected too, because it is not in any range.
        if (0.0..=100.0).contains(&number) {
            return Ok(Self(number));
        }
        Err(OutOfRange {
            must_be: "a number from 0 to 100",
            given: number.to_string(),
        })
    }
}

impl From<Percent> for f64 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for Percent {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Percent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "format": "percent", "minimum": 0, "maximum": 100 })
    }
}

/// An amount of US dollars, 0 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Usd(f64);

impl Usd {
    /// Returns the amount in dollars.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Usd {
    type Error = OutOfRange;

    fn try_from(number: f64) -> Result<Self, OutOfRange> {
        if number.is_finite() && number >= 0.0 {
            return Ok(Self(number));
        }
        Err(OutOfRange {
            must_be: "an amount of dollars, 0 or more",
            given: number.to_string(),
        })
    }
}

impl From<Usd> for f64 {
    fn from(sum: Usd) -> Self {
        sum.0
    }
}

impl JsonSchema for Usd {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Usd".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "format": "usd", "minimum": 0 })
    }
}

/// A key, token or webhook address. Printed and serialized as `***`; only [`Secret::expose`] returns the text.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Text that is shown instead of a secret.
    pub const MASK: &'static str = "***";

    /// Returns the secret text. Only the code that uses the secret may call this.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::MASK)
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "secret", "writeOnly": true })
    }
}
