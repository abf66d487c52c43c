//! One agent's run seen from outside: what it writes, where that is kept.

mod live_output;
pub(crate) mod process;
pub mod pump;
mod reader;
pub(crate) mod stdin;
pub mod transcript;
pub mod transcripts;
