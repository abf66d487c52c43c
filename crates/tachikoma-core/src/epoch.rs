//! Epochs of a loop: after a restore or a loss, record numbers are used again, and the epoch tells them apart.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An epoch of a loop: record numbers are unique within it. Empty in journals of versions that did not record it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(String);

impl Epoch {
    /// Makes an epoch from a random UUID of the runner.
    #[must_use]
    pub fn new(uuid: Uuid) -> Self {
        Self(uuid.simple().to_string())
    }

    /// Returns whether the epoch is unknown.
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
