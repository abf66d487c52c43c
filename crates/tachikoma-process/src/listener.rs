//! Finds out which process listens at an address of this machine, before a password is sent there. A server that died leaves its port
//! to any process of any user.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rustix::process::Pid;

use super::{children, orphans};

/// The kernel's tables of the TCP sockets in this network namespace. The second one is missing without IPv6.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// Maximum size of a table that is read. It is enough for some hundred thousand connections.
const TABLE_BYTES_MAX: u64 = 64 << 20;

/// The state `TCP_LISTEN` in the table.
const LISTENING: &str = "0A";

/// The process that may listen at an address before a password is sent there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This server process, or a process that it started.
    Server(i32),
    /// Any process of this user or of root, because the user configured the address.
    User,
}

/// A listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    inode: u64,
    uid: u32,
}

/// Why a password is not sent to an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// No process listens at the address.
    #[error("the server no longer listens there")]
    None,
    /// Another process listens at the address.
    #[error("{0} has the port, so no password is sent")]
    Foreign(Holder),
    /// The kernel's tables cannot be read.
    #[error("cannot determine which process listens there, so no password is sent")]
    Unknown(#[source] io::Error),
}

/// The process that has the port instead of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    uid: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid == own_uid() {
            true => f.write_str("another process of yours"),
            false => write!(f, "a process of another user (uid {})", self.uid),
        }
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the sockets that accept connections to `address`, if all of them belong to a process that may get the password. On systems other
/// than
/// Linux this is unknown: the list is empty, and no address is refused.
///
/// # Errors
/// A socket belongs to another process, or no socket of the server listens there.
pub fn verify(address: SocketAddr, owner: Owner) -> Result<Vec<Listener>, ListenerError> {
    if !cfg!(target_os = "linux") {
        return Ok(Vec::new());
    }
    let found = listeners(address).map_err(ListenerError::Unknown)?;
    if found.is_empty() && owner != Owner::User {
        return Err(ListenerError::None);
    }
    let may_have = |listener: &Listener| match owner {
        Owner::Server(pid) => listener.uid == own_uid() && is_held_below(listener.inode, pid),
        Owner::User => [own_uid(), 0].contains(&listener.uid),
    };
    match found.iter().find(|listener| !may_have(listener)) {
        Some(Listener { uid, .. }) => Err(ListenerError::Foreign(Holder { uid: *uid })),
        None => Ok(found),
    }
}

fn listeners(address: SocketAddr) -> io::Result<Vec<Listener>> {
    let mut found = Vec::new();
    for table in TABLES {
        let table = match File::open(table) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && table.ends_with('6') => break,
            table => table?,
        };
        for line in BufReader::new(table.take(TABLE_BYTES_MAX)).lines() {
            found.extend(listener(&line?, address));
        }
    }
    Ok(found)
}

/// Parses a line of the table: number, local and remote address, state, queues, timers, retransmissions, user, timeout, inode.
fn listener(line: &str, wanted: SocketAddr) -> Option<Listener> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    if fields.nth(1)? != LISTENING || u16::from_str_radix(port, 16).ok()? != wanted.port() {
        return None;
    }
    let ip = ip_of(ip)?.to_canonical();
    if !ip.is_unspecified() && ip != wanted.ip().to_canonical() {
        return None;
    }
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Listener { inode, uid })
}

/// Parses an address: hexadecimal words of four bytes, in the byte order of the machine.
fn ip_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok();
    match text.len() {
        8 => Some(IpAddr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (number, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(number * 8)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// Returns whether the process `pid` or one of its descendants has the socket `inode` open.
fn is_held_below(inode: u64, pid: i32) -> bool {
    let Some(server) = Pid::from_raw(pid) else {
        return false;
    };
    // If a wrapper started the server, the socket belongs to a child process.
    has_open(server, inode)
        || children::all().into_iter().any(|process| {
            process != server
                && has_open(process, inode)
                && orphans::is_descendant(process.as_raw_pid(), pid)
        })
}

fn has_open(pid: Pid, inode: u64) -> bool {
    children::sockets(pid).any(|open| open == inode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    fn own() -> Owner {
        Owner::Server(rustix::process::getpid().as_raw_pid())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn verify_accepts_only_the_process_that_listens() {
        for (bound, reached) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
        ] {
            let Ok(listener) = TcpListener::bind(bound) else {
                // This address is skipped if the machine does not support IPv6.
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let address = SocketAddr::new(reached.parse().unwrap(), port);
            assert_eq!(verify(address, own()).unwrap().len(), 1, "{bound}");
            assert!(verify(address, Owner::User).is_ok(), "{bound}");
            let mut other = Command::new("cat")
                .stdin(Stdio::piped())
                .spawn()
                .expect("the process can be started");
            let pid = i32::try_from(other.id()).unwrap();
            let refused = verify(address, Owner::Server(pid)).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "another process of yours has the port, so no password is sent"
            );
            drop(other.stdin.take());
            other.wait().unwrap();
            // The client's port is in use but has no listener. A port that was just closed could already belong to another process.
            let client = TcpStream::connect(address).unwrap();
            let unused = client.local_addr().unwrap();
            assert!(matches!(verify(unused, own()), Err(ListenerError::None)));
        }
    }

    #[test]
    fn only_lines_of_listening_sockets_are_parsed() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let four = "   0: 0100007F:1000 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 x";
        let found = listener(four, at("127.0.0.1:4096"));
        let expected = Listener {
            inode: 4711,
            uid: 1000,
        };
        if cfg!(target_endian = "little") {
            assert_eq!(found, Some(expected));
        }
        for other in ["127.0.0.2:4096", "127.0.0.1:4097"] {
            assert_eq!(listener(four, at(other)), None, "{other}");
        }
        for cut in 0..four.len() - 10 {
            let _ = listener(&four[..cut], at("127.0.0.1:4096"));
        }
        let established = four.replace(" 0A ", " 01 ");
        assert_eq!(listener(&established, at("127.0.0.1:4096")), None);
        assert_eq!(ip_of("0000000000000000FFFF00000100007").map(|_| ()), None);
    }
}
