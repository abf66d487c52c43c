//! Which life of a loop a record is part of: after a restoration, or a loss, records get numbers that others have had.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A life of a loop: within one, no two records have the same number. Empty where an earlier version did not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(String);

impl Epoch {
    /// Makes a life from a UUID that the shell drew.
    #[must_use]
    pub fn new(uuid: Uuid) -> Self {
        Self(uuid.simple().to_string())
    }

    /// Returns whether nobody said which one it is.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
