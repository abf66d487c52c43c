//! The standby: the parent of the guard, which ends all processes of the agent if the guard is killed.
//!
//! `kill -9` of the runner and of the guard together would leave the children of the agent running. They become children of the standby
//! instead, because it is a child subreaper, and the standby kills them. It also wakes a suspended guard when the runner has ended. The
//! guard watches the standby in the same way, and ends all processes of the agent if the standby is killed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions, getppid};
use signal_hook::consts::SIGCONT;

use super::{
    BYE_TIMEOUT, END_TIMEOUT, TICK, close_stdin, end_stragglers, forget_notes, kill, notes_of,
    sleep,
};
use crate::protocol::{Inbox, Order, Received};
use crate::{GUARD_NAME, children, spawn};
use tachikoma_runtime::clock;

/// Name of the standby in `ps`. It does not contain the name of the program, so that `killall -9 tachikoma` and `pkill -9 tachikoma`
/// leave it alive to clean up.
const STANDBY_NAME: &str = "loop-standby";

/// How long the standby waits for the guard after the runner has ended. It is twice the longest timeout of the guard itself. After that the
/// standby kills the guard.
const GUARD_TIMEOUT: Duration = END_TIMEOUT.saturating_add(END_TIMEOUT);

/// The role of this process after [`divide`].
pub(super) enum Role {
    /// The guard, with its end of the socket to the standby. The socket is closed when the standby ends.
    Guard(UnixStream),
    /// The standby.
    Standby(Standby),
}

/// The standby of one guard.
pub(super) struct Standby {
    /// Process id of the runner, which is the parent of this process until it ends.
    runner: Option<Pid>,
    guard: Pid,
    /// Socket to the guard. It is closed when the guard ends. The guard forwards the lock and the loop's id over it.
    socket: UnixStream,
    inbox: Inbox,
    /// The loop's id; empty until the guard has sent it.
    marker: String,
    /// The lock of the working directory. No other runner starts while it is open.
    lock: Option<OwnedFd>,
}

/// Forks the guard off. The parent becomes the standby. Call it before this process has other threads or children.
pub(super) fn divide() -> io::Result<Role> {
    let runner = getppid();
    let (socket, of_guard) = UnixStream::pair()?;
    let forked = spawn::fork()?;
    // The kernel sends SIGCONT to this process when its parent ends. It wakes a suspended process and has no effect on a running one.
    rustix::process::set_parent_process_death_signal(Some(Signal::CONT))?;
    let Some(guard) = forked else {
        set_name(GUARD_NAME);
        // The socket is non-blocking, so that a suspended standby does not block the guard.
        of_guard.set_nonblocking(true)?;
        return Ok(Role::Guard(of_guard));
    };
    set_name(STANDBY_NAME);
    Ok(Role::Standby(Standby {
        runner,
        guard,
        socket,
        inbox: Inbox::default(),
        marker: String::new(),
        lock: None,
    }))
}

impl Standby {
    /// Waits for the end of the guard, and kills the processes that a killed guard leaves. Returns the exit code of the guard.
    pub(super) fn watch(mut self) -> ExitCode {
        // Closes the control socket, so that the runner notices the end of the guard even while this process is suspended.
        close_stdin();
        if self.await_end_of_guard().is_err() {
            // Without signals and socket the standby cannot watch the guard, so it ends the guard.
            kill(self.guard, Signal::KILL);
        }
        let status = rustix::process::waitpid(Some(self.guard), WaitOptions::empty());
        let status = status
            .ok()
            .flatten()
            .and_then(|(_, status)| status.exit_status());
        if status != Some(0) {
            self.end_children();
            if let (true, Some(lock)) = (self.runner_has_ended(), &self.lock) {
                end_stragglers(&self.marker, lock);
            }
        }
        ExitCode::from(status.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }

    fn await_end_of_guard(&mut self) -> io::Result<()> {
        // The standby gets SIGCONT from the kernel when the runner ends, and from the runner when the standby must wake the guard.
        let wakes = notes_of(SIGCONT)?;
        let mut deadline = None;
        while self.hear_guard()? != Received::End {
            if self.runner_has_ended() {
                let deadline = deadline.get_or_insert_with(|| clock::monotonic() + GUARD_TIMEOUT);
                if clock::monotonic() >= *deadline {
                    kill(self.guard, Signal::KILL);
                }
            }
            // The signal is repeated after the end of the runner, because another process may suspend the guard again.
            kill(self.guard, Signal::CONT);
            let mut fds = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&wakes, PollFlags::IN),
            ];
            sleep(&mut fds, deadline.map(|_| TICK));
            forget_notes(&wakes);
        }
        Ok(())
    }

    /// Reads messages of the guard without waiting.
    fn hear_guard(&mut self) -> io::Result<Received> {
        let received = self.inbox.receive(&self.socket)?;
        while let Some(order) = self.inbox.next::<Order>()? {
            self.lock = self.inbox.fds(order.fds())?.into_iter().next();
            if let Order::Hello { marker, .. } = order {
                self.marker = marker;
            }
        }
        Ok(received)
    }

    fn runner_has_ended(&self) -> bool {
        getppid() != self.runner
    }

    /// Kills and reaps all children, including processes that become children when their parent dies.
    fn end_children(&self) {
        let began = clock::monotonic();
        loop {
            // A live runner waits only `BYE_TIMEOUT` for the standby, and then ends the remaining processes itself.
            let patience = match self.runner_has_ended() {
                true => END_TIMEOUT,
                false => BYE_TIMEOUT,
            };
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) if began.elapsed() < patience => {
                    for child in children::own() {
                        kill(child, Signal::KILL);
                    }
                    std::thread::sleep(PAUSE);
                }
                // No child is left, or the remaining ones cannot be killed.
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// Sets the name of this process in `ps`. Without `/proc` the name is not changed.
fn set_name(name: &str) {
    let _ = std::fs::write("/proc/self/comm", name);
}

/// Time between two attempts to kill and reap. SIGKILL takes effect within microseconds.
const PAUSE: Duration = Duration::from_millis(1);
