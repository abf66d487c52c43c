//! OpenCode: its server, kept alive, and what talks to it.

pub mod bridge;
pub mod client;
pub mod server_file;
pub mod supervisor;
