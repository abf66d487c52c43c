//! One agent's run seen from outside: what it writes, where that is kept.

pub(crate) mod process;
pub mod pump;
mod reader;
mod screen;
pub(crate) mod talk;
pub mod transcript;
pub mod transcripts;
