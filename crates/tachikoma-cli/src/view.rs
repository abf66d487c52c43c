//! How output looks: colored text that is safe for a terminal, and numbers and durations as people read them.

pub mod number;
pub mod text;
