//! Notifies systemd of the state of a service (`man 3 sd_notify`): datagrams to a socket that the environment
//! names. Without a socket it does nothing.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// The socket of systemd, if there is one.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    /// The interval of the watchdog, if systemd wants one.
    ticks: Option<tokio::time::Interval>,
    is_ready: bool,
}

impl Notifier {
    /// Reads the environment. Needs a Tokio runtime.
    pub fn here() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| connect(&name));
        let variable = |name| std::env::var(name).ok();
        let is_meant =
            variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let micros = variable("WATCHDOG_USEC").and_then(|text| text.parse().ok());
        let micros: Option<u64> = micros.filter(|micros| *micros > 0 && is_meant);
        Self {
            // Half of it, as systemd advises.
            ticks: micros
                .filter(|_| socket.is_some())
                .map(|micros| tokio::time::interval(Duration::from_micros((micros / 2).max(1)))),
            socket,
            is_ready: false,
        }
    }

    /// Reports once that the service is ready.
    pub fn ready(&mut self) {
        if !self.is_ready {
            self.is_ready = true;
            self.send("READY=1");
        }
    }

    /// Reports the status in one line.
    pub fn status(&self, line: &str) {
        self.send(&format!("STATUS={}", line.replace('\n', " ")));
    }

    /// Reports that the service stops.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Returns after each watchdog message; never returns without a watchdog.
    pub async fn alive(&mut self) {
        match &mut self.ticks {
            Some(ticks) => ticks.tick().await,
            None => std::future::pending().await,
        };
        self.send("WATCHDOG=1");
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // A receiver that does not read is not waited for.
            let _ = socket.send(text.as_bytes());
        }
    }
}

/// A path, or an abstract name with `@`.
fn connect(name: &std::ffi::OsStr) -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    match name.as_encoded_bytes() {
        [b'/', ..] => socket.connect(name).ok()?,
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name).ok()?;
            socket.connect_addr(&address).ok()?;
        }
        _ => return None,
    }
    Some(socket)
}
