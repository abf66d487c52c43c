//! The control socket: how other processes of the same user talk to a live runner.

mod client;
mod protocol;
mod server;

pub use client::{Client, ClientError};
pub use protocol::{Hello, PROTOCOL, Request, Response};
pub(crate) use server::listen;
pub use server::{Server, ServerError};
