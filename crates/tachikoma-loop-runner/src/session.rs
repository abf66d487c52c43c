//! Reads the output of the agent's process, writes to its stdin, and stores transcripts.

pub(crate) mod process;
pub mod pump;
pub mod transcript;
pub mod transcripts;
