//! The messages between runner and guard: one JSON object per line, sent with file descriptors.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use super::{Exit, Leftover, StopSignal};

/// Maximum size of a message. The kernel accepts at most 6 MiB of arguments and environment, and JSON writes a byte as up to three digits and a
/// comma. A longer message is a bug of the sender.
pub(super) const MESSAGE_BYTES_MAX: usize = 36 * 1024 * 1024;

/// Size of one read in bytes. Most messages are shorter.
const READ_BYTES: usize = 32 * 1024;

/// Maximum number of descriptors in a message: the three streams of an agent.
pub(super) const MESSAGE_FDS_MAX: usize = 3;

/// An order of the runner to the guard.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum Order {
    /// The first message. If `locked` is true, the locked descriptor of the working directory is sent with it.
    Hello {
        marker: String,
        cgroup: Option<OsString>,
        locked: bool,
    },
    /// Hold the lock that is sent with this message instead of the earlier one.
    Hold,
    /// Start an agent. Its three streams are sent with the message.
    Spawn(Box<Spawn>),
    /// Send a signal to the agent: interrupt, terminate or kill.
    Signal {
        generation: u64,
        // The guard may be a process of an older version, which knows this name.
        #[serde(rename = "rung")]
        signal: StopSignal,
    },
    /// Suspend the agent's process group, as Ctrl-Z does.
    Suspend,
    /// Continue a suspended agent.
    Continue,
    /// End all processes and exit.
    Bye,
}

/// An agent to start.
#[derive(Debug, Serialize, Deserialize)]
pub struct Spawn {
    /// Number that the reports about this agent contain. The caller chooses it.
    pub generation: u64,
    /// The program to start. It is searched in the agent's `PATH` if it has no slash.
    pub program: OsString,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Environment variables in addition to those of the runner.
    pub env: Vec<(OsString, OsString)>,
    /// Environment variables to remove.
    pub env_remove: Vec<OsString>,
    /// Working directory of the agent.
    pub cwd: OsString,
    /// The agent's standard input, output and error; see [`crate::input`] and [`crate::output`]. They are sent as descriptors with the message.
    #[serde(skip)]
    pub streams: Option<[OwnedFd; 3]>,
}

impl Order {
    /// Returns how many descriptors are sent with the message.
    pub(super) fn fds(&self) -> usize {
        match self {
            Self::Hello { locked, .. } => usize::from(*locked),
            Self::Hold => 1,
            Self::Spawn(_) => MESSAGE_FDS_MAX,
            Self::Signal { .. } | Self::Suspend | Self::Continue | Self::Bye => 0,
        }
    }
}

/// A report of the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum GuardReport {
    /// The agent was started and runs.
    Spawned {
        /// Number of the agent's start.
        generation: u64,
        /// Id of the agent's process, session and process group.
        pid: i32,
    },
    /// The agent could not be started.
    SpawnFailed {
        /// Number of the agent's start.
        generation: u64,
        /// The part of the start that failed.
        subject: SpawnSubject,
        /// Error number of the system; 0 if there is none.
        errno: i32,
        /// Error text of the system.
        message: String,
    },
    /// The agent and all processes that it started have ended.
    Exited {
        /// Number of the agent's start.
        generation: u64,
        /// How the agent ended.
        exit: Exit,
        /// Processes that the agent left running and that were ended. After [`crate::StopSignal::Kill`] only processes that could not be killed.
        leftovers: Vec<Leftover>,
        /// Number of further leftovers that are not in the list.
        leftovers_unnamed: usize,
    },
    /// The guard died, and the runner ended its agents. A new guard is needed. Only the runner's end of the protocol makes this report.
    #[serde(skip)]
    Lost {
        /// Processes that could not be killed.
        survivors: Vec<Leftover>,
    },
}

/// What failed when an agent was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpawnSubject {
    /// The program: not found, not executable, arguments too long.
    Program,
    /// The working directory: deleted or not accessible.
    WorkingDirectory,
    /// The guard or the system: another agent still runs, no more processes.
    Guard,
}

/// Encodes a message.
pub(super) fn encode<M: Serialize>(message: &M) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > MESSAGE_BYTES_MAX {
        return Err(rustix::io::Errno::TOOBIG.into());
    }
    Ok(line)
}

/// Sends as much of `bytes` as the socket accepts. The descriptors are sent with the first byte.
pub(super) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::INVAL);
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
}

/// Received bytes and descriptors that are not yet read as messages.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Number of bytes that were already searched for the end of a line.
    searched: usize,
    fds: std::collections::VecDeque<OwnedFd>,
}

/// Result of one attempt to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// There may be new messages.
    Some,
    /// No bytes are available now.
    Nothing,
    /// The other end has closed the socket.
    End,
}

impl Inbox {
    /// Reads from the socket without waiting.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> io::Result<Received> {
        if self.bytes.len() > MESSAGE_BYTES_MAX {
            return Err(rustix::io::Errno::MSGSIZE.into());
        }
        let mut chunk = [0; READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut chunk)];
        let received = match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                return Ok(Received::Nothing);
            }
            Err(rustix::io::Errno::CONNRESET) => return Ok(Received::End),
            Err(error) => return Err(error.into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received == 0 {
            return Ok(Received::End);
        }
        self.bytes
            .extend_from_slice(chunk.get(..received).unwrap_or_default());
        Ok(Received::Some)
    }

    /// Returns the next complete message; `None` if there is none yet.
    pub(super) fn next<M: for<'de> Deserialize<'de>>(&mut self) -> io::Result<Option<M>> {
        let unsearched = self.bytes.get(self.searched..).unwrap_or_default();
        let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return Ok(None);
        };
        let end = self.searched + end;
        let message = serde_json::from_slice(self.bytes.get(..end).unwrap_or_default())?;
        self.bytes.drain(..=end);
        self.bytes.shrink_to(READ_BYTES);
        self.searched = 0;
        Ok(Some(message))
    }

    /// Returns the descriptors that were received with a message.
    pub(super) fn fds(&mut self, count: usize) -> io::Result<Vec<OwnedFd>> {
        if self.fds.len() < count {
            return Err(rustix::io::Errno::BADMSG.into());
        }
        Ok(self.fds.drain(..count).collect())
    }
}

#[cfg(target_os = "linux")]
const CMSG_CLOEXEC: RecvFlags = RecvFlags::CMSG_CLOEXEC;
/// On systems without this flag, agents inherit the descriptors of the guard. Only the lock matters: it is held as long as the agents run.
#[cfg(not(target_os = "linux"))]
const CMSG_CLOEXEC: RecvFlags = RecvFlags::empty();

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn messages_preserve_bytes_that_are_not_utf8() {
        for bytes in [&b"plain"[..], b"\xFF\x00\x80", b"", "zwölf\n".as_bytes()] {
            let text = OsString::from_vec(bytes.to_vec());
            let line = encode(&text).expect("the message is short enough");
            assert_eq!(
                line.iter().filter(|byte| **byte == b'\n').count(),
                1,
                "a message is one line"
            );
            let back: OsString =
                serde_json::from_slice(&line).expect("the encoded message can be decoded");
            assert_eq!(back, text);
        }
    }
}
