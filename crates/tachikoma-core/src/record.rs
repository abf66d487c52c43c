//! A journaled fact: an event with its place in the loop.

use serde::{Deserialize, Serialize};

use crate::{LoopEvent, LoopId, RecordedInput, Seq, Timestamp};

/// One event with its place in the loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the record in its loop, from 1, without gaps.
    pub seq: Seq,
    /// When the event was decided.
    pub time: Timestamp,
    /// The loop that the event belongs to.
    pub loop_id: LoopId,
    /// The event.
    pub event: LoopEvent,
    /// The input that [`step`](crate::step) answered with this record and the ones after it. `None` if an earlier record has it, if
    /// the record does not come from `step`, and in journals of versions that did not record inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<RecordedInput>,
    /// Why the loop decided what follows from this record: the measured values and the settings, in words. Empty if nothing was decided
    /// or the event says it, and in journals of versions that did not record reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}
