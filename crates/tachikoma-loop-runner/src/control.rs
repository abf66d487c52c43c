//! The control socket: how other processes of the same user talk to a live runner.

mod client;
mod protocol;
mod server;

pub use client::{Client, ClientError};
pub use protocol::{Hello, PROTOCOL, Request, Response};
pub use server::Server;
