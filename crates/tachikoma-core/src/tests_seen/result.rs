//! Verdict and id of a test.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Verdict of one test, ordered by severity. If two results have the same name, the worse one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The test was not run, or its failure was expected.
    Skipped,
    /// The test passed.
    Passed,
    /// The test failed and passed in the same run. Its test runner reports it as passed.
    Flaky,
    /// The test failed.
    Failed,
    /// The test could not be run: its setup failed, its file could not be loaded, or its process died.
    Errored,
}

impl Verdict {
    /// All verdicts, from the mildest to the most severe.
    pub const ALL: [Self; 5] = [
        Self::Skipped,
        Self::Passed,
        Self::Flaky,
        Self::Failed,
        Self::Errored,
    ];

    /// Returns whether this verdict makes the run fail.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        match self {
            Self::Failed | Self::Errored => true,
            Self::Skipped | Self::Passed | Self::Flaky => false,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Id of a test: the hash of its name, the same on every machine and in every version.
///
/// The hash has 64 bits. With [`TESTS_KEPT_MAX`](super::TESTS_KEPT_MAX) names, two of them share a hash once in 10^11 projects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TestId(u64);

impl TestId {
    /// Returns the id of a test (FNV-1a hash of its name).
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
    }
}

impl fmt::Display for TestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<TestId> for String {
    fn from(id: TestId) -> Self {
        id.to_string()
    }
}

/// A text that is not a [`TestId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a test has 16 hexadecimal digits")]
pub struct ParseTestIdError;

impl FromStr for TestId {
    type Err = ParseTestIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(Self).ok_or(ParseTestIdError)
    }
}

impl TryFrom<String> for TestId {
    type Error = ParseTestIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_id_is_stable_across_versions() {
        // Existing journals contain these ids.
        assert_eq!(TestId::of("").to_string(), "cbf29ce484222325");
        assert_eq!(TestId::of("a").to_string(), "af63dc4c8601ec8c");
        assert_eq!(TestId::of("foobar").to_string(), "85944171f73967e8");
        for name in ["", "a", "fixture > tests::passes", "é"] {
            let id = TestId::of(name);
            assert_eq!(id.to_string().parse(), Ok(id));
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<TestId>(&json).unwrap(), id);
        }
        for bad in [
            "",
            "85944171f73967e",
            "85944171f73967e88",
            "+5944171f73967e8",
            "x5944171f73967e8",
        ] {
            assert_eq!(bad.parse::<TestId>(), Err(ParseTestIdError), "{bad}");
        }
    }

    #[test]
    fn verdicts_are_ordered_by_severity() {
        let order = Verdict::ALL;
        assert!(order.is_sorted());
        let failures: Vec<_> = order
            .into_iter()
            .filter(|verdict| verdict.is_failure())
            .collect();
        assert_eq!(failures, [Verdict::Failed, Verdict::Errored]);
    }
}
