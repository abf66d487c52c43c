//! OpenCode: its server, kept alive, and what is known of it.

pub mod server_file;
pub mod supervisor;
