//! A fact with its place in the loop.

use serde::{Deserialize, Serialize};

use crate::event::LoopEvent;
use crate::id::{LoopId, Seq};
use crate::time::Timestamp;

/// One fact with its place in the loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its place, from 1, without gaps.
    pub seq: Seq,
    /// When it was decided.
    pub time: Timestamp,
    /// The loop it belongs to.
    pub loop_id: LoopId,
    /// What happened.
    pub event: LoopEvent,
}

impl LoopEvent {
    /// Returns whether this is how a run ends.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::Completed { .. } | Self::Stopped { .. } | Self::Error { .. }
        )
    }
}

/// Whether a number, or what is made of numbers, need not be written.
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
