//! One agent's run seen from outside: what it writes, where that is kept.

pub(crate) mod process;
pub mod pump;
pub mod transcript;
pub mod transcripts;
