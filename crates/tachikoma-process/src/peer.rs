//! The process at the other end of a control socket, identified so that a reused process id is noticed.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::{children, spawn};

/// The process that connected to a socket.
#[derive(Debug)]
pub struct Peer {
    /// Id of the process; `None` if the system does not report it.
    pid: Option<i32>,
    identity: Identity,
}

/// Identifies a process, so that a later process with the same id is noticed.
#[derive(Debug)]
enum Identity {
    /// The kernel's handle of the process that connected (`SO_PEERPIDFD`, Linux 6.5 and later).
    Pidfd(OwnedFd),
    /// Start time of the process that had the id when the connection was accepted. A process that took the id over between `connect`
    /// and `accept` is not noticed.
    Started(Option<u64>),
    /// The process that connected has ended, or could not be identified.
    Gone,
}

impl Peer {
    /// Identifies the process that connected. Call it as soon as the connection is accepted.
    pub fn of(socket: &impl AsFd, pid: Option<i32>) -> Self {
        let identity = match spawn::peer_pidfd(socket.as_fd()) {
            Ok(Some(pidfd)) => Identity::Pidfd(pidfd),
            Ok(None) => Identity::Started(started(pid)),
            Err(_) => Identity::Gone,
        };
        Self { pid, identity }
    }

    /// Returns the process id of the caller; `None` if it is unknown.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Returns whether the process that connected still runs, so that its process id still refers to it.
    pub(super) fn runs(&self) -> bool {
        match &self.identity {
            Identity::Pidfd(pidfd) => {
                // A pidfd becomes readable when its process ends.
                let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
                poll(&mut ended, Some(&Timespec::default())) == Ok(0)
            }
            Identity::Started(then) => *then == started(self.pid),
            Identity::Gone => false,
        }
    }
}

fn started(pid: Option<i32>) -> Option<u64> {
    let stat = children::stat(Pid::from_raw(pid?)?)?;
    (!stat.dead).then_some(stat.started)
}

/// Returns whether the process at the other end of a socket runs as this user or as root.
pub fn is_ours(stream: &tokio::net::UnixStream) -> bool {
    let peer = stream.peer_cred();
    peer.is_ok_and(|peer| tachikoma_fs::owner::is_ours(peer.uid()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{Adoption, CallerRole, Family};

    fn own_pid() -> Option<i32> {
        Some(children::own_pid().as_raw_pid())
    }

    #[test]
    fn running_caller_gets_the_role_of_its_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let caller = Peer::of(&socket, own_pid());
        let family = Family::new(Adoption::Marked);
        assert_eq!(family.role_of_peer(&caller), CallerRole::Operator);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn process_that_reused_the_id_of_a_caller_is_not_trusted() {
        use rustix::process::{PidfdFlags, pidfd_open};
        use std::process::Command;

        let mut child = Command::new("true").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        let family = Family::new(Adoption::Marked);
        // Simulates that this process, which has the role of the operator, reused the id of a caller that has ended.
        let identities = [
            Identity::Pidfd(pidfd),
            Identity::Started(Some(0)),
            Identity::Started(None),
            Identity::Gone,
        ];
        for identity in identities {
            let caller = Peer {
                pid: own_pid(),
                identity,
            };
            assert_eq!(family.role_of_peer(&caller), CallerRole::Gone, "{caller:?}");
        }
    }
}
