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
