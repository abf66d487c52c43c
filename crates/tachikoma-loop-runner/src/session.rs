//! Reads the output of the agent's process, writes to its stdin, and stores transcripts.

mod live_output;
pub(crate) mod process;
pub mod pump;
mod reader;
pub(crate) mod stdin;
pub mod transcript;
pub mod transcripts;
