//! Runs a coding agent in a supervised loop: processes, journal, control; never prints and never reads the environment.

pub mod process;
pub mod session;
