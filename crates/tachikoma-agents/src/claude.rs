//! Claude Code: how it is launched, what is written to its stdin, and how its output (`--output-format stream-json`) is read.
//!
//! One [`Decoder`] reads one process, line by line. It never fails and keeps little: each line becomes
//! [`crate::AgentEvent`]s. Differences between versions are documented at the code that handles them;
//! recorded output of each version is in `tests/corpus/claude/`.

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
mod usage;
mod window;

pub use decoder::Decoder;
pub use launch::{ClaudeAgent, Lifetime, Permission};
pub use limit::resets_at;
pub(crate) use problem::{of_result, of_words};
pub use talk::line;
pub use window::{compaction_point, refusal_point, window_of};

/// Bytes of one line that are read. Lines above a megabyte are usual (a file that is written, a file as it was before
/// an edit); a longer line counts as not understood.
pub const LINE_BYTES_MAX: usize = 8 << 20;
