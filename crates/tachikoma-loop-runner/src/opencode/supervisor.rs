//! The supervisor of `opencode serve`: starts it, sees how it ends, and starts it again by the rules of the core.

mod journal;
mod log;

pub use journal::read_records;
pub use log::files as log_files;
