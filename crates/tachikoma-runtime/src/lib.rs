//! Time and background tasks: the only code that reads the clock, and tasks that report their panics.

pub mod clock;
pub mod task;
