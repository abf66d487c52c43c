//! Claude Code: how it is launched, what is said to it, and how its output (`--output-format stream-json`) reads.
//!
//! One [`Decoder`] reads one process. It takes a line at a time, never fails, and keeps little: what a line says is
//! handed on as [`crate::Observation`]s. What is known of the agent's versions and their differences stands beside the
//! code that minds it; recorded output of each is below `tests/corpus/claude/`.

mod blocks;
mod conversation;
mod costs;
mod decoder;
mod launch;
mod limit;
mod message;
mod problem;
mod result;
mod scan;
mod system;
mod talk;
mod trust;
mod usage;
mod window;

pub use decoder::Decoder;
pub use launch::{ClaudeAgent, Lifetime, Permission};
pub use limit::resets_at;
pub(crate) use problem::{of_result, of_words};
pub use talk::line;
pub use trust::{hint, is_tried};
pub use window::{compaction_point, refusal_point, window_of};

/// How much of one line is looked at. Lines above a megabyte are usual (a file that is written, a file as it was before
/// an edit); one that is longer than this is counted as not understood.
pub const LINE_BYTES_MAX: usize = 8 << 20;
