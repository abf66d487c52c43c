//! OpenCode: how it is launched, what is said to it, and how its output reads.
//!
//! Usually a conversation lives in a server (`opencode serve`), and the process that the runner starts is the *bridge*, a
//! role of our own program: it speaks lines with the runner and HTTP with the server. It hands the server's events of its
//! conversation on as they came, one JSON object per line, between lines of its own ([`Own`]). Without a server,
//! `opencode run --format json` is one process per turn. One [`Decoder`] reads both, and recordings of the server's
//! stream; recorded output is below `tests/corpus/opencode/`.

mod conversation;
mod decoder;
mod failure;
pub mod ids;
mod launch;
mod own;
mod parts;
mod permission;
mod trust;

pub use decoder::Decoder;
pub use failure::{GAVE_UP, SERVER_LOST};
pub(crate) use failure::{of_result, of_words};
pub use launch::{OpenCodeAgent, ServerAt, Way, server_variables};
pub use own::{Order, Own, line};
pub use permission::{DENIED, is_permitted_command, rules};
pub use trust::{hint, is_tried};

/// How much of one line is looked at. A tool's output has 50 kB at most, but what a tool is given has no bound: a file
/// that is written is all in it. A longer line is counted as not understood.
pub const LINE_BYTES_MAX: usize = 8 << 20;
