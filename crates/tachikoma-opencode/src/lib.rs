//! OpenCode: its server, kept alive, and what talks to it.

pub mod bridge;
pub mod client;
mod login_file;
pub mod server_file;
pub mod supervisor;
