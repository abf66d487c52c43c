//! The clock of the loop, and background tasks that report their panics.

pub mod clock;
pub mod task;
