//! One agent's run seen from outside: what it writes, where that is kept.

pub mod pump;
pub mod transcript;
