//! Supervises `opencode serve`, and translates between its HTTP interface and a loop.

pub mod bridge;
pub mod client;
mod login_file;
pub mod server_file;
pub mod supervisor;
