//! Time and background tasks: the only code that reads the clock, and tasks whose panics are reported.

pub mod clock;
pub mod task;
