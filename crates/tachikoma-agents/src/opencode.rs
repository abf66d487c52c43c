//! OpenCode: how it is launched, what is written to its stdin, and how its output is read.
//!
//! Usually a conversation is in a server (`opencode serve`), and the runner starts the *bridge*, a
//! role of this program: it exchanges lines with the runner and HTTP with the server. It forwards the server's events of its
//! conversation unchanged, one JSON object per line, between lines of its own ([`Own`]). Without a server,
//! `opencode run --format json` is one process per turn. One [`Decoder`] reads both, and recordings of the server's
//! stream; recorded output is in `tests/corpus/opencode/`.

mod conversation;
mod decoder;
mod failure;
pub mod ids;
mod launch;
mod own;
mod parts;
mod permission;

pub use decoder::Decoder;
pub use failure::{GAVE_UP, SERVER_LOST};
pub(crate) use failure::{of_output, of_result};
pub use launch::{OpenCodeAgent, ServerAt, Way, server_variables};
pub use own::{Order, Own, line};
pub use permission::{DENIED, is_permitted_command, rules};

/// Maximum size of a line in bytes. The output of a tool has 50 kB at most, but its input has no limit: it can be
/// a whole file. A longer line counts as not understood.
pub const LINE_BYTES_MAX: usize = 8 << 20;
