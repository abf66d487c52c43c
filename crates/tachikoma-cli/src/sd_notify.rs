//! Reports the state of a service to systemd (`man 3 sd_notify`) with datagrams to a socket that the environment
//! names. Without a socket it does nothing.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// The connection to systemd, if systemd started this service.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    /// Timer of the watchdog messages; `None` if systemd does not request them.
    ticks: Option<tokio::time::Interval>,
    is_ready: bool,
}

impl Notifier {
    /// Reads the socket and the watchdog interval from the environment. Needs a Tokio runtime.
    pub fn from_env() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| connect(&name));
        let variable = |name| std::env::var(name).ok();
        let is_meant =
            variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let micros = variable("WATCHDOG_USEC").and_then(|text| text.parse().ok());
        let micros: Option<u64> = micros.filter(|micros| *micros > 0 && is_meant);
        Self {
            // Messages are sent at half of the watchdog interval, as systemd recommends.
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

    /// Reports that the service is stopping.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Returns after each watchdog message. Never returns if there is no watchdog.
    pub async fn alive(&mut self) {
        match &mut self.ticks {
            Some(ticks) => ticks.tick().await,
            None => std::future::pending().await,
        };
        self.send("WATCHDOG=1");
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // The socket is non-blocking, so a receiver that does not read is not waited for.
            let _ = socket.send(text.as_bytes());
        }
    }
}

/// Connects to a socket at a path, or with an abstract name that begins with `@`.
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
