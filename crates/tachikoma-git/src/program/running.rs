//! One running git process: writes its stdin, reads its output, waits for it, and kills its process group if necessary.

use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::{CancelToken, Output, tail};
use tachikoma_process::Attended;
use tachikoma_runtime::clock;

/// Interval at which cancellation is checked, and the end of the process on systems without pidfd.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time between SIGTERM and SIGKILL after a timeout. Git removes its lock files in that time, and a hook may clean up.
const GRACE: Duration = Duration::from_secs(2);

/// Time between SIGTERM and SIGKILL after a cancellation. It is short, because the caller waits.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// How long to wait for the end of a process after SIGKILL. It ends at once unless it is stuck in the kernel.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);
const REAP_PAUSE: Duration = Duration::from_millis(2);

/// Size of the read buffer in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Maximum number of bytes of stderr that are stored. If there are more, only the last ones are stored.
const STDERR_BYTES_MAX: usize = 64 << 10;

/// Reason why a run has no output.
#[derive(Debug)]
pub enum Stopped {
    Canceled,
    TimedOut,
    Broken(io::Error),
}

pub struct RunningGit<'a> {
    child: Child,
    pid: Pid,
    /// File descriptor that is readable once the process has ended; `None` on systems without pidfd.
    pidfd: Option<OwnedFd>,
    stdin: Option<ChildStdin>,
    pending: &'a [u8],
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    stdout_bytes: Vec<u8>,
    stdout_max: usize,
    stderr_bytes: Vec<u8>,
    killed: bool,
    /// Prevents other code of this program from killing or reaping the process.
    _attended: Attended,
}

impl<'a> RunningGit<'a> {
    pub fn new(started: (Child, Attended), input: &'a [u8], stdout_max: usize) -> Self {
        let (mut child, attended) = started;
        let pid = Pid::from_child(&child);
        Self {
            pid,
            pidfd: open_pidfd(pid),
            stdin: child.stdin.take(),
            pending: input,
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            stdout_bytes: Vec::new(),
            stdout_max,
            stderr_bytes: Vec::new(),
            killed: false,
            child,
            _attended: attended,
        }
    }

    /// Waits for the end of the process, and kills it when it is canceled or exceeds its timeout.
    pub fn wait(
        mut self,
        timeout: Option<Duration>,
        cancel: &CancelToken,
    ) -> Result<Output, Stopped> {
        let deadline = timeout.map(|timeout| clock::monotonic() + timeout);
        match self.exchange_until_end(deadline, cancel) {
            Ok(truncated) => {
                if truncated {
                    self.kill(GRACE);
                }
                // A background process of a hook may keep the pipes open, so only data that is already in them is read.
                if !truncated {
                    self.drain();
                }
                let status = self.reap().map_err(Stopped::Broken)?;
                Ok(self.into_output(status, truncated))
            }
            Err(why) => {
                let grace = match why {
                    Stopped::Canceled => CANCEL_GRACE,
                    Stopped::TimedOut | Stopped::Broken(_) => GRACE,
                };
                self.kill(grace);
                let _ = self.reap();
                Err(why)
            }
        }
    }

    /// Exchanges data with the process until it ends. Returns whether its stdout exceeded the limit.
    fn exchange_until_end(
        &mut self,
        deadline: Option<Instant>,
        cancel: &CancelToken,
    ) -> Result<bool, Stopped> {
        self.set_nonblocking().map_err(Stopped::Broken)?;
        while !self.has_ended() {
            if cancel.is_canceled() {
                return Err(Stopped::Canceled);
            }
            let now = clock::monotonic();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Stopped::TimedOut);
            }
            let left = deadline.map_or(POLL_INTERVAL, |deadline| {
                deadline.duration_since(now).min(POLL_INTERVAL)
            });
            self.wait_for_event(left).map_err(Stopped::Broken)?;
            self.exchange().map_err(Stopped::Broken)?;
            if self.stdout_bytes.len() > self.stdout_max {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        for (pipe, _) in self.pipes() {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(())
    }

    /// Returns the open pipes, each with the event to wait for.
    fn pipes(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let stdin = self
            .stdin
            .as_ref()
            .map(|pipe| (pipe.as_fd(), PollFlags::OUT));
        let stdout = self
            .stdout
            .as_ref()
            .map(|pipe| (pipe.as_fd(), PollFlags::IN));
        let stderr = self
            .stderr
            .as_ref()
            .map(|pipe| (pipe.as_fd(), PollFlags::IN));
        [stdin, stdout, stderr].into_iter().flatten()
    }

    /// Sleeps until a pipe is ready, the process has ended, or `at_most` has passed.
    fn wait_for_event(&self, at_most: Duration) -> io::Result<()> {
        let pidfd = self.pidfd.as_ref().map(|fd| (fd.as_fd(), PollFlags::IN));
        let fds = self.pipes().chain(pidfd);
        let mut fds: Vec<_> = fds
            .map(|(fd, event)| PollFd::from_borrowed_fd(fd, event))
            .collect();
        let at_most = Timespec::try_from(at_most).unwrap_or_default();
        match poll(&mut fds, Some(&at_most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes and reads as much as possible without blocking.
    fn exchange(&mut self) -> io::Result<()> {
        if let Some(stdin) = &mut self.stdin {
            match stdin.write(self.pending) {
                Ok(written) => self.pending = &self.pending[written..],
                Err(error) if would_block(&error) => {}
                // The process closed its stdin. Its exit status shows whether that is a failure.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.pending = &[],
                Err(error) => return Err(error),
            }
            if self.pending.is_empty() {
                self.stdin = None;
            }
        }
        if read(&mut self.stdout, &mut self.stdout_bytes)? {
            self.stdout = None;
        }
        if read(&mut self.stderr, &mut self.stderr_bytes)? {
            self.stderr = None;
        }
        let excess = self.stderr_bytes.len().saturating_sub(STDERR_BYTES_MAX);
        if excess > 0 {
            self.stderr_bytes.drain(..excess);
        }
        Ok(())
    }

    /// Reads the remaining data of the pipes after the process has ended.
    fn drain(&mut self) {
        loop {
            let before = self.stdout_bytes.len() + self.stderr_bytes.len();
            self.stdin = None;
            let read = self.exchange().is_ok();
            let after = self.stdout_bytes.len() + self.stderr_bytes.len();
            if !read || after <= before || after > self.stdout_max {
                return;
            }
        }
    }

    /// Returns whether the process has ended. Does not reap it, so that its process id is not reused.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::Pid(self.pid), options) {
            Ok(status) => status.is_some(),
            Err(rustix::io::Errno::INTR) => false,
            // Other code of this program reaped the process already.
            Err(_) => true,
        }
    }

    /// Sends SIGTERM and, after `grace`, SIGKILL to the process group.
    fn kill(&mut self, grace: Duration) {
        self.killed = true;
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
        let deadline = clock::monotonic() + grace;
        loop {
            let now = clock::monotonic();
            if self.has_ended() || now >= deadline {
                break;
            }
            // The output is read and discarded, because a full pipe would block the process.
            let _ = self.wait_for_event(deadline.duration_since(now).min(POLL_INTERVAL));
            let _ = self.exchange();
            self.stdout_bytes.truncate(self.stdout_max);
        }
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
    }

    /// Reaps the process, and orphans of its process group that became children of this process.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        if !self.killed {
            return Ok(status);
        }
        let deadline = clock::monotonic() + REAP_TIMEOUT;
        while clock::monotonic() < deadline {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            match rustix::process::waitid(WaitId::Pgid(Some(self.pid)), options) {
                Ok(Some(_)) => {}
                Ok(None) => std::thread::sleep(REAP_PAUSE),
                Err(_) => break,
            }
        }
        Ok(status)
    }

    fn into_output(self, status: ExitStatus, truncated: bool) -> Output {
        let stderr = match tail(&self.stderr_bytes) {
            // `git commit` reports "nothing to commit" on stdout, so stdout is used if a failed command has no stderr.
            stderr if stderr.is_empty() && !status.success() => tail(&self.stdout_bytes),
            stderr => stderr,
        };
        let mut stdout = self.stdout_bytes;
        stdout.truncate(self.stdout_max);
        Output {
            code: status.code(),
            status: status.to_string(),
            stdout,
            truncated,
            stderr,
        }
    }
}

#[cfg(target_os = "linux")]
fn open_pidfd(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_pidfd(_pid: Pid) -> Option<OwnedFd> {
    None
}

/// Reads the available data of a pipe. Returns whether its end was reached.
fn read<S: Read + AsFd>(stream: &mut Option<S>, into: &mut Vec<u8>) -> io::Result<bool> {
    let Some(stream) = stream else {
        return Ok(false);
    };
    let start = into.len();
    into.resize(start + CHUNK_BYTES, 0);
    let read = stream.read(&mut into[start..]);
    into.truncate(start + read.as_ref().map_or(0, |read| *read));
    match read {
        Ok(read) => Ok(read == 0),
        Err(error) if would_block(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
