//! A wait between iterations: the reason for it, and when it ends.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// A wait with its reason and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What the loop waits for.
    pub reason: WaitReason,
    /// When the wait ends.
    pub until: Timestamp,
}

impl Wait {
    /// Returns whether this is a wait for the model's service.
    #[must_use]
    pub fn is_for_service(&self) -> bool {
        matches!(self.reason, WaitReason::UsageLimit | WaitReason::Outage)
    }
}

/// What a loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The loop waits for the delay between iterations (`iteration_delay`).
    Delay,
    /// The loop waits for the backoff after failed iterations.
    Backoff,
    /// The loop waits for the reset of a usage limit of the model's service.
    UsageLimit,
    /// The loop waits for the model's service, which cannot be reached.
    Outage,
    /// The loop waits until the rate limits allow a reboot, because the context is too full for another prompt.
    RebootWindow,
    /// The loop waits for an answer of the operator, or for a rollback that the operator asked for.
    Operator,
}

impl WaitReason {
    /// Returns whether the wait counts toward `max_duration`. Waits for the model's service or a person do not.
    pub(crate) fn is_work(self) -> bool {
        match self {
            Self::Delay | Self::Backoff | Self::RebootWindow => true,
            Self::UsageLimit | Self::Outage | Self::Operator => false,
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
