//! One git process that runs: fed, listened to, waited for, and ended with all of its process group when it must.

use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::{Answer, CancelToken, tail};
use tachikoma_process::Attended;
use tachikoma_runtime::clock;

/// How soon a call-off is noticed, and the end of a process where the system cannot announce it.
const LOOK: Duration = Duration::from_millis(20);

/// After SIGTERM git removes its lock files and a hook may put down what it has in hand.
const GRACE: Duration = Duration::from_secs(2);

/// Whoever calls git off wants to go on at once; git itself needs a moment only.
const CALLED_OFF_GRACE: Duration = Duration::from_millis(500);

/// SIGKILL takes effect at once unless a process is stuck in the kernel.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);
const REAP_PAUSE: Duration = Duration::from_millis(2);

/// What one read takes.
const CHUNK_BYTES: usize = 64 << 10;

/// Complaints beyond this are dropped from the front.
const COMPLAINTS_BYTES_MAX: usize = 64 << 10;

/// Why a run has no answer.
#[derive(Debug)]
pub enum Cut {
    Canceled,
    TimedOut,
    Broken(io::Error),
}

pub struct Live<'a> {
    child: Child,
    pid: Pid,
    /// Readable once the process has ended; none where the system has no such thing.
    ended: Option<OwnedFd>,
    stdin: Option<ChildStdin>,
    left: &'a [u8],
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    answer: Vec<u8>,
    answer_max: usize,
    complaints: Vec<u8>,
    killed: bool,
    /// Nobody else ends or reaps it.
    _attended: Attended,
}

impl<'a> Live<'a> {
    pub fn new(started: (Child, Attended), input: &'a [u8], answer_max: usize) -> Self {
        let (mut child, attended) = started;
        let pid = Pid::from_child(&child);
        Self {
            pid,
            ended: pidfd(pid),
            stdin: child.stdin.take(),
            left: input,
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            answer: Vec::new(),
            answer_max,
            complaints: Vec::new(),
            killed: false,
            child,
            _attended: attended,
        }
    }

    /// Waits for its end, or brings it about.
    pub fn end(mut self, limit: Option<Duration>, cancel: &CancelToken) -> Result<Answer, Cut> {
        let deadline = limit.map(|limit| clock::monotonic() + limit);
        match self.attend(deadline, cancel) {
            Ok(cut) => {
                if cut {
                    self.kill(GRACE);
                }
                // A hook may have left something behind that holds the pipes open: what is there is taken, no more.
                if !cut {
                    self.drain();
                }
                let status = self.reap().map_err(Cut::Broken)?;
                Ok(self.answer(status, cut))
            }
            Err(why) => {
                let grace = match why {
                    Cut::Canceled => CALLED_OFF_GRACE,
                    Cut::TimedOut | Cut::Broken(_) => GRACE,
                };
                self.kill(grace);
                let _ = self.reap();
                Err(why)
            }
        }
    }

    /// Talks to the process until it has ended; returns whether it was cut short because it said too much.
    fn attend(&mut self, deadline: Option<Instant>, cancel: &CancelToken) -> Result<bool, Cut> {
        self.never_block().map_err(Cut::Broken)?;
        while !self.has_ended() {
            if cancel.is_canceled() {
                return Err(Cut::Canceled);
            }
            let now = clock::monotonic();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Cut::TimedOut);
            }
            let left = deadline.map_or(LOOK, |deadline| deadline.duration_since(now).min(LOOK));
            self.wait(left).map_err(Cut::Broken)?;
            self.exchange().map_err(Cut::Broken)?;
            if self.answer.len() > self.answer_max {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn never_block(&self) -> io::Result<()> {
        if let Some(stdin) = &self.stdin {
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        if let Some(stdout) = &self.stdout {
            rustix::io::ioctl_fionbio(stdout, true)?;
        }
        if let Some(stderr) = &self.stderr {
            rustix::io::ioctl_fionbio(stderr, true)?;
        }
        Ok(())
    }

    /// Sleeps until there is something to do, or for a while.
    fn wait(&self, at_most: Duration) -> io::Result<()> {
        let mut fds = Vec::with_capacity(4);
        if let Some(stdin) = &self.stdin {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        if let Some(stdout) = &self.stdout {
            fds.push(PollFd::new(stdout, PollFlags::IN));
        }
        if let Some(stderr) = &self.stderr {
            fds.push(PollFd::new(stderr, PollFlags::IN));
        }
        if let Some(ended) = &self.ended {
            fds.push(PollFd::new(ended, PollFlags::IN));
        }
        let at_most = Timespec::try_from(at_most).unwrap_or_default();
        match poll(&mut fds, Some(&at_most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes and reads what can be without waiting.
    fn exchange(&mut self) -> io::Result<()> {
        if let Some(stdin) = &mut self.stdin {
            match stdin.write(self.left) {
                Ok(written) => self.left = &self.left[written..],
                Err(error) if is_not_now(&error) => {}
                // It wants to hear no more; how it ends says whether that is a failure.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.left = &[],
                Err(error) => return Err(error),
            }
            if self.left.is_empty() {
                self.stdin = None;
            }
        }
        if read(&mut self.stdout, &mut self.answer)? {
            self.stdout = None;
        }
        if read(&mut self.stderr, &mut self.complaints)? {
            self.stderr = None;
        }
        let too_many = self.complaints.len().saturating_sub(COMPLAINTS_BYTES_MAX);
        if too_many > 0 {
            self.complaints.drain(..too_many);
        }
        Ok(())
    }

    /// Takes what is in the pipes of a process that has ended.
    fn drain(&mut self) {
        loop {
            let before = self.answer.len() + self.complaints.len();
            self.stdin = None;
            let read = self.exchange().is_ok();
            let after = self.answer.len() + self.complaints.len();
            if !read || after <= before || after > self.answer_max {
                return;
            }
        }
    }

    /// Whether the process has ended. It is not reaped: until then nobody else can have its number, nor its group's.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::Pid(self.pid), options) {
            Ok(status) => status.is_some(),
            Err(rustix::io::Errno::INTR) => false,
            // Somebody else has reaped it.
            Err(_) => true,
        }
    }

    /// Ends the process and its group: asked, then made to.
    fn kill(&mut self, grace: Duration) {
        self.killed = true;
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
        let deadline = clock::monotonic() + grace;
        loop {
            let now = clock::monotonic();
            if self.has_ended() || now >= deadline {
                break;
            }
            // Nobody listens any more, but a full pipe must not keep it from ending.
            let _ = self.wait(deadline.duration_since(now).min(LOOK));
            let _ = self.exchange();
            self.answer.truncate(self.answer_max);
        }
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
    }

    /// Reaps the process, and those of its group that became our children because this process takes in orphans.
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

    fn answer(self, status: ExitStatus, cut: bool) -> Answer {
        let words = match tail(&self.complaints) {
            // What `git commit` has to say about nothing to commit is no complaint to it.
            words if words.is_empty() && !status.success() => tail(&self.answer),
            words => words,
        };
        let mut bytes = self.answer;
        bytes.truncate(self.answer_max);
        Answer {
            code: status.code(),
            how: status.to_string(),
            bytes,
            cut,
            words,
        }
    }
}

#[cfg(target_os = "linux")]
fn pidfd(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn pidfd(_pid: Pid) -> Option<OwnedFd> {
    None
}

/// Reads what is there; returns whether it was the end.
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
        Err(error) if is_not_now(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
