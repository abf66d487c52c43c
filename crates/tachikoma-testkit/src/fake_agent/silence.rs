//! Activity of the fake agent while it is silent.

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpStream};
use std::thread;

use super::WhileSilent;

/// Starts a background activity of a silent fake agent. Its thread runs until the process ends.
pub(super) fn begin(doing: WhileSilent) -> Result<(), String> {
    match doing {
        WhileSilent::Compute => {
            thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        WhileSilent::Receive { port } => {
            let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
            let mut stream = connected.map_err(|error| format!("connect to {port}: {error}"))?;
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
            });
        }
    }
    Ok(())
}
