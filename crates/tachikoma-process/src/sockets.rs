//! Reads from the kernel how many bytes each TCP connection of this network namespace has sent and received (`man 7 sock_diag`).

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`, with `NLM_F_REQUEST` and `NLM_F_DUMP`.
const REQUEST: u16 = 20;
const FLAGS: u16 = 0x301;

/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

const TCP: u8 = 6;

/// `INET_DIAG_INFO`: the attribute that has the counters.
const INFO: u16 = 2;

/// All connection states except listening. A listening socket transfers no bytes.
const STATES: u32 = !(1 << 10);

/// Lengths of a message's header and of `struct inet_diag_msg`, which follows it.
const HEADER: usize = 16;
const MESSAGE: usize = 72;

/// Offset of a socket's inode in `struct inet_diag_msg`, and of the counters in `struct tcp_info`.
const INODE_AT: usize = 68;
const ACKED_AT: usize = 120;
const RECEIVED_AT: usize = 128;

/// Timeout of an answer. The kernel answers at once, but the thread must never hang.
const PATIENCE: Duration = Duration::from_secs(1);

/// Size of the buffer for one answer. The kernel's longest answer has 32 kB.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of answers that are read, enough for more than ten thousand connections. A process with more shows activity in other ways.
const ANSWERS_MAX: usize = 256;

/// Returns the bytes sent and received over each connection, by the inode of its socket.
pub(super) fn bytes() -> io::Result<BTreeMap<u64, u64>> {
    let mut found = BTreeMap::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        ask(family, &mut found)?;
    }
    Ok(found)
}

fn ask(family: AddressFamily, found: &mut BTreeMap<u64, u64>) -> io::Result<()> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    set_socket_timeout(&kernel, Timeout::Recv, Some(PATIENCE))?;
    send(&kernel, &request(family), SendFlags::empty())?;
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    for _ in 0..ANSWERS_MAX {
        let (length, _) = recv(&kernel, &mut buffer, RecvFlags::empty())?;
        if is_last(buffer.get(..length).unwrap_or_default(), found) {
            break;
        }
    }
    Ok(())
}

fn request(family: AddressFamily) -> Vec<u8> {
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    let mut body = vec![family, TCP, 1 << (INFO - 1), 0];
    body.extend(STATES.to_ne_bytes());
    // Zeros mean any address and any port.
    body.extend([0; 48]);
    let length = u32::try_from(HEADER + body.len()).unwrap_or_default();
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(REQUEST.to_ne_bytes());
    request.extend(FLAGS.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    request
}

/// Parses one answer, which contains many messages. Returns whether it is the last answer.
fn is_last(mut answer: &[u8], found: &mut BTreeMap<u64, u64>) -> bool {
    while let Some((kind, body, rest)) = message(answer) {
        if kind == DONE || kind == ERROR {
            return true;
        }
        found.extend(connection(body));
        answer = rest;
    }
    false
}

/// Splits the first message from an answer. Returns its type, its body, and the rest.
fn message(answer: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(array(answer, 0)?)).ok()?;
    let kind = u16::from_ne_bytes(array(answer, 4)?);
    let body = answer.get(HEADER..length)?;
    Some((
        kind,
        body,
        answer.get(aligned(length)..).unwrap_or_default(),
    ))
}

fn connection(body: &[u8]) -> Option<(u64, u64)> {
    let inode = u64::from(u32::from_ne_bytes(array(body, INODE_AT)?));
    let mut attributes = body.get(MESSAGE..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(array(attributes, 0)?));
        let kind = u16::from_ne_bytes(array(attributes, 2)?);
        let value = attributes.get(4..length)?;
        if kind == INFO {
            // Kernels before 4.1 do not have these counters.
            let sent = u64::from_ne_bytes(array(value, ACKED_AT)?);
            let received = u64::from_ne_bytes(array(value, RECEIVED_AT)?);
            return Some((inode, sent.saturating_add(received)));
        }
        attributes = attributes.get(aligned(length)..)?;
    }
}

/// Rounds a length up to a multiple of four, where the next message or attribute begins.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_netlink_messages_and_wrong_lengths_are_ignored() {
        let mut whole = 200_u32.to_ne_bytes().to_vec();
        whole.extend(REQUEST.to_ne_bytes());
        whole.resize(200, 0xff);
        let mut found = BTreeMap::new();
        for length in 0..whole.len() {
            assert!(!is_last(&whole[..length], &mut found));
        }
        for length in [0_u32, 3, 15, 17, 199, u32::MAX] {
            let mut lying = whole.clone();
            lying.splice(..4, length.to_ne_bytes());
            assert!(!is_last(&lying, &mut found), "{length}");
        }
        assert_eq!(found, BTreeMap::new());
        let mut done = 16_u32.to_ne_bytes().to_vec();
        done.extend(DONE.to_ne_bytes());
        done.resize(16, 0);
        assert!(is_last(&done, &mut found));
    }
}
