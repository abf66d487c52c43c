//! Claude Code: how it is launched, what is written to its stdin, and how its output (`--output-format stream-json`) is read.
//!
//! One [`Decoder`] reads the output of one process, line by line. It never fails and needs little memory: each line becomes
//! [`crate::AgentEvent`]s. Differences between versions are documented at the code that handles them;
//! recorded output of each version is in `tests/corpus/claude/`.

mod blocks;
mod conversation;
mod decoder;
mod launch;
mod limit;
mod message;
mod result;
mod scan;
mod system;
mod window;

pub use decoder::Decoder;
pub use launch::{ClaudeAgent, Lifetime, Permission, line};
pub use limit::resets_at;
pub(crate) use result::{of_output, of_result};
pub use window::{compaction_point, refusal_point, window_of};

/// Maximum size of a line in bytes. Lines above a megabyte are usual (a written file, or the content of a file before
/// an edit). A longer line counts as not understood.
pub const LINE_BYTES_MAX: usize = 8 << 20;
