//! The control socket: how other processes of the same user talk to a live runner.

mod client;
mod protocol;
mod server;

pub use client::{Client, ClientError};
pub use protocol::{ControlRequest, Hello, PROTOCOL, Response};
pub use server::ControlServer;
