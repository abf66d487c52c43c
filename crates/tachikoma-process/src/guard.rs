//! The runner's side of the guard: starts the guard, sends orders to it, and receives its reports.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::cgroup::Cgroup;
use super::protocol::{self, GuardReport, Inbox, Order, Received, Spawn};
use super::serve::BYE_TIMEOUT;
use super::{
    Adoption, Attended, Containment, INSIDE, Leftover, StopSignal, adoption, children, spawn,
};
use tachikoma_core::{PASSPHRASE_VARIABLE, TRUST_VARIABLE};
use tachikoma_runtime::clock;

/// How long to wait until the guard has exited. It ends its children within `BYE_TIMEOUT`. Only a suspended guard takes longer.
const FINISH_TIMEOUT: Duration = BYE_TIMEOUT.saturating_add(Duration::from_secs(2));

/// How long to wait for the standby of a killed guard. It ends the guard's children within `BYE_TIMEOUT`. A slower standby is killed.
const STANDBY_TIMEOUT: Duration = BYE_TIMEOUT.saturating_add(Duration::from_secs(2));

/// How long to wait for a killed standby. SIGKILL takes effect at once unless the standby is stuck in the kernel.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait until the kernel allows the removal of an empty cgroup. A cgroup that cannot be removed is harmless.
const REMOVE_TIMEOUT: Duration = Duration::from_millis(200);

/// How long to block for the end of the guard. It ends in a fraction of a millisecond, which is shorter than the smallest timer.
#[cfg(target_os = "linux")]
const DEATH_BLOCKING: Duration = Duration::from_millis(5);

/// Interval between two checks of a state for which no event exists.
const TICK: Duration = Duration::from_millis(2);

/// Settings of a guard.
#[derive(Debug)]
pub struct GuardOptions {
    /// Path of the program that calls [`crate::serve`]. `PATH` is not searched.
    pub program: PathBuf,
    /// Arguments that make the program a guard.
    pub args: Vec<OsString>,
    /// Id of the loop. Every agent has it in its environment as [`crate::MARKER`].
    pub marker: String,
    /// A duplicate of the locked descriptor of the working directory. The guard holds it until all processes have ended, so that no other
    /// runner starts before. The runner must close its own descriptor and not unlock it, because that would unlock the duplicate, too.
    pub lock: Option<OwnedFd>,
    /// Whether to use a cgroup, if one is available.
    pub cgroup: bool,
    /// Which of its children the runner ends if the guard is killed.
    pub adoption: Adoption,
    /// Environment variables that are removed for the guard and its descendants.
    pub hidden: Vec<OsString>,
    /// Whether the descendants of the guard may control the loop. Only hooks may.
    pub commands: bool,
}

impl GuardOptions {
    /// Returns the options of a guard that is started with this command, for the loop with the id `marker`: with a cgroup, and without a lock.
    #[must_use]
    pub fn new(command: &[OsString], marker: String) -> Self {
        let mut command = command.iter().cloned();
        Self {
            program: command.next().unwrap_or_default().into(),
            args: command.collect(),
            marker,
            lock: None,
            cgroup: true,
            adoption: Adoption::Marked,
            hidden: Vec::new(),
            commands: false,
        }
    }

    /// Returns the environment of the guard: that of this process without the hidden variables, and the marker of processes that may not control
    /// the loop.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let is_inherited = |name: &OsString| {
            let ours = [INSIDE, PASSPHRASE_VARIABLE, TRUST_VARIABLE];
            !ours.iter().any(|ours| name == ours) && !self.hidden.contains(name)
        };
        let own = std::env::vars_os().filter(|(name, _)| is_inherited(name));
        let inside = (!self.commands).then(|| (INSIDE.into(), self.marker.clone().into()));
        own.chain(inside).collect()
    }
}

/// Why a guard cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The program of the guard cannot be started.
    #[error("start guard {}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The socket to the guard cannot be created.
    #[error("prepare the guard's socket")]
    Socket(#[source] io::Error),
}

/// One guard process. It exists as long as the loop runs.
///
/// If it is dropped without [`Self::finish`], the guard notices the closed socket, ends all processes and exits.
#[derive(Debug)]
pub struct Guard {
    socket: UnixStream,
    pid: Pid,
    /// Registration of the guard's process; `None` after it was reaped.
    attended: Option<Attended>,
    inbox: Inbox,
    outbox: VecDeque<Outgoing>,
    marker: String,
    adoption: Adoption,
    cgroup: Result<Cgroup, String>,
    state: State,
    /// Process id of the running agent, as the guard reported it; `None` if no agent runs.
    agent: Option<Pid>,
}

/// State of the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Serving,
    /// The socket of the guard is closed. The guard or its standby may still be alive and ending its children.
    Gone {
        since: Instant,
    },
    /// The guard was reaped, but its children are not ended yet.
    Reaped,
    /// The guard and its children have ended, except for these survivors.
    Lost(Vec<Leftover>),
}

/// A message that is not completely sent yet.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

impl Guard {
    /// Starts a guard. Does not wait until it is ready: orders may be sent at once. Makes this process a child
    /// subreaper; needs a Tokio runtime.
    ///
    /// # Errors
    /// The program of the guard cannot be started. A missing cgroup is not an error.
    pub fn start(options: &GuardOptions) -> Result<Self, GuardError> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(children::own_pid()))
            .map_err(|errno| GuardError::Socket(errno.into()))?;
        let lock = options.lock.as_ref().map(OwnedFd::try_clone).transpose();
        let lock = lock.map_err(GuardError::Socket)?;
        let (ours, theirs) = socket_pair().map_err(GuardError::Socket)?;
        let wanted = match options.cgroup {
            true => Cgroup::make(&options.marker),
            false => Err("switched off".to_owned()),
        };
        let (attended, cgroup) =
            start(options, theirs, wanted).map_err(|source| GuardError::Start {
                program: options.program.clone(),
                source,
            })?;
        let socket = UnixStream::from_std(ours).map_err(GuardError::Socket)?;
        let mut guard = Self {
            socket,
            pid: attended.pid(),
            attended: Some(attended),
            inbox: Inbox::default(),
            outbox: VecDeque::new(),
            marker: options.marker.clone(),
            adoption: options.adoption,
            cgroup,
            state: State::Serving,
            agent: None,
        };
        let hello = Order::Hello {
            marker: guard.marker.clone(),
            cgroup: guard.cgroup.as_ref().ok().map(|group| group.path().into()),
            locked: lock.is_some(),
        };
        let fds = lock.into_iter().collect();
        guard.order(&hello, fds).map_err(GuardError::Socket)?;
        tracing::info!(pid = guard.pid(), containment = %guard.containment(), "guard started");
        Ok(guard)
    }

    /// Returns how the agents' processes are contained.
    #[must_use]
    pub fn containment(&self) -> Containment {
        match &self.cgroup {
            Ok(_) => Containment::Cgroup,
            Err(_) if cfg!(target_os = "linux") => Containment::Guard,
            Err(_) => Containment::Group,
        }
    }

    /// Returns why the guard has no cgroup; `None` if it has one.
    #[must_use]
    pub fn without_cgroup(&self) -> Option<&str> {
        self.cgroup.as_ref().err().map(String::as_str)
    }

    /// Returns the process id of the guard's outermost process: on Linux the standby, the parent of the guard.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Sends a new lock of the working directory to the guard, because the file of the earlier lock was deleted. Never waits.
    ///
    /// # Errors
    /// The order cannot be encoded.
    pub fn hold(&mut self, lock: OwnedFd) -> io::Result<()> {
        self.order(&Order::Hold, vec![lock])
    }

    /// Orders the guard to start an agent. A later [`GuardReport`] says whether the agent started. Does not block.
    ///
    /// # Errors
    /// The encoded order is too long. The kernel would reject arguments and environment variables of this size.
    pub fn spawn(&mut self, mut spawn: Spawn) -> io::Result<()> {
        tracing::debug!(generation = spawn.generation, program = ?spawn.program, "starting an agent");
        let streams = spawn.streams.take().into_iter().flatten().collect();
        self.order(&Order::Spawn(Box::new(spawn)), streams)
    }

    /// Interrupts, terminates or kills an agent, unless it has ended. Never waits.
    pub fn signal(&mut self, generation: u64, signal: StopSignal) {
        tracing::debug!(generation, ?signal, "signaling an agent");
        self.short_order(&Order::Signal { generation, signal });
        // A suspended guard cannot send the signal. So the standby is woken, which wakes the guard.
        if self.attended.is_some() {
            let _ = rustix::process::kill_process(self.pid, Signal::CONT);
        }
    }

    /// Suspends the agent's process group, as Ctrl-Z does. Never waits.
    pub fn suspend(&mut self) {
        self.short_order(&Order::Suspend);
    }

    /// Continues a suspended agent. Never waits.
    pub fn resume(&mut self) {
        self.short_order(&Order::Continue);
    }

    /// Returns the next report. Cancel-safe. After [`GuardReport::Lost`], every call returns that report again.
    pub async fn next(&mut self) -> GuardReport {
        loop {
            if let Some(report) = self.arrived() {
                return report;
            }
            match self.state {
                State::Serving => self.exchange().await,
                State::Gone { since } => {
                    self.bury(since).await;
                }
                State::Reaped => {
                    let cgroup = self.cgroup.as_ref().ok();
                    let survivors =
                        adoption::sweep(self.adoption, &self.marker, cgroup, self.agent).await;
                    if let Some(cgroup) = cgroup {
                        remove(cgroup).await;
                    }
                    self.state = State::Lost(survivors);
                }
                State::Lost(ref survivors) => {
                    let survivors = survivors.clone();
                    return GuardReport::Lost { survivors };
                }
            }
        }
    }

    /// Asks the guard to end, without waiting. [`Self::finish`] must still be called.
    pub fn dismiss(&mut self) {
        self.short_order(&Order::Bye);
    }

    /// Asks the guard to end all processes and exit, and waits for that with a timeout.
    pub async fn finish(mut self) {
        self.short_order(&Order::Bye);
        let obeyed = async {
            while self.state == State::Serving {
                self.exchange().await;
                while self.arrived().is_some() {}
            }
        };
        // After the timeout the guard is killed, and the runner ends its children.
        let _ = tokio::time::timeout(FINISH_TIMEOUT, obeyed).await;
        let since = match self.state {
            State::Gone { since } => since,
            State::Serving | State::Reaped | State::Lost(_) => clock::monotonic(),
        };
        let orderly = self.bury(since).await;
        let cgroup_empty = match &self.cgroup {
            Ok(cgroup) => remove(cgroup).await,
            Err(_) => true,
        };
        if !orderly || !cgroup_empty {
            self.next().await;
        }
    }

    /// Closes the connection, so that the guard ends all processes and exits. A thread reaps it, because a program that embeds the runner
    /// must not collect dead guards.
    pub fn abandon(mut self) {
        let (pid, attended) = (self.pid, self.attended.take());
        drop(self);
        // The thread ends with the guard, which has its own timeout.
        std::thread::spawn(move || {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            drop(attended);
        });
    }

    fn arrived(&mut self) -> Option<GuardReport> {
        let report = match self.inbox.next::<GuardReport>() {
            Ok(report) => report?,
            Err(_) => {
                self.mark_gone();
                return None;
            }
        };
        match &report {
            GuardReport::Spawned { pid, .. } => {
                tracing::info!(pid, "agent started");
                self.agent = Pid::from_raw(*pid);
            }
            GuardReport::Exited { .. } => {
                tracing::info!("agent exited");
                self.agent = None;
            }
            GuardReport::SpawnFailed { .. } => tracing::warn!("agent could not be started"),
            GuardReport::Lost { .. } => {}
        }
        Some(report)
    }

    fn short_order(&mut self, order: &Order) {
        // Encoding fails only for orders that are too long, and these orders are short.
        let _ = self.order(order, Vec::new());
    }

    fn order(&mut self, order: &Order, fds: Vec<OwnedFd>) -> io::Result<()> {
        debug_assert_eq!(
            fds.len(),
            order.fds(),
            "an order is sent with all of its descriptors"
        );
        let bytes = protocol::encode(order)?;
        self.outbox.push_back(Outgoing {
            bytes,
            sent: 0,
            fds,
        });
        self.flush();
        Ok(())
    }

    /// Sends as much as the socket accepts now.
    fn flush(&mut self) {
        while let Some(outgoing) = self.outbox.front_mut() {
            let fds: Vec<_> = outgoing.fds.iter().map(OwnedFd::as_fd).collect();
            let rest = outgoing.bytes.get(outgoing.sent..).unwrap_or_default();
            let send = || Ok(protocol::send(&self.socket, rest, &fds)?);
            // The runtime does not know yet that a new socket is writable, so the first orders are sent without asking it.
            let sent = match send() {
                Err(error) if is_full(&error) => self.socket.try_io(Interest::WRITABLE, send),
                other => other,
            };
            match sent {
                Ok(sent) => {
                    drop(fds);
                    outgoing.fds.clear();
                    outgoing.sent += sent;
                    if outgoing.sent >= outgoing.bytes.len() {
                        self.outbox.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if is_full(&error) => return,
                // The guard has ended. Its last reports may still be in the socket. The next read notices the end.
                Err(_) => self.outbox.clear(),
            }
        }
    }

    /// Waits until the socket is ready, then reads and writes.
    async fn exchange(&mut self) {
        let interest = match self.outbox.is_empty() {
            true => Interest::READABLE,
            false => Interest::READABLE | Interest::WRITABLE,
        };
        if self.socket.ready(interest).await.is_err() {
            self.mark_gone();
            return;
        }
        self.flush();
        let inbox = &mut self.inbox;
        let received = self.socket.try_io(Interest::READABLE, || {
            match inbox.receive(&self.socket)? {
                Received::Nothing => Err(io::ErrorKind::WouldBlock.into()),
                received @ (Received::Some | Received::End) => Ok(received),
            }
        });
        match received {
            Ok(Received::Some | Received::Nothing) => (),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Ok(Received::End) | Err(_) => self.mark_gone(),
        }
    }

    fn mark_gone(&mut self) {
        if self.state == State::Serving {
            let since = clock::monotonic();
            self.state = State::Gone { since };
        }
    }

    /// Waits until the guard and its standby are dead and reaped. Only then all of their children are children of this process. Returns whether they
    /// exited normally, which they do only without remaining children. `since` is the time when the end of the guard was noticed.
    async fn bury(&mut self, since: Instant) -> bool {
        let orderly = death(self.pid, since).await;
        self.state = State::Reaped;
        // If the guard cannot be killed, it is treated as a leftover process.
        self.attended = None;
        orderly
    }
}

/// Starts the guard in its cgroup, or without one if that fails.
fn start(
    options: &GuardOptions,
    socket: OwnedFd,
    wanted: Result<Cgroup, String>,
) -> io::Result<(Attended, Result<Cgroup, String>)> {
    let environment = options.environment();
    let program = spawn::Program {
        path: &options.program,
        args: &options.args,
        environment: &environment,
    };
    let reason = match wanted {
        Ok(cgroup) => {
            let copy = socket.try_clone()?;
            let started = cgroup.open().and_then(|directory| {
                let directory = Some(directory.as_fd());
                Attended::born(|| spawn::start_guard(program, copy, directory))
            });
            match started {
                Ok(started) => return Ok((started, Ok(cgroup))),
                Err(error) => {
                    cgroup.remove();
                    format!("start in a control group: {error}")
                }
            }
        }
        Err(reason) => reason,
    };
    let started = Attended::born(|| spawn::start_guard(program, socket, None))?;
    Ok((started, Err(reason)))
}

/// Waits until the standby of an ended guard has ended, and kills it after a timeout. Returns whether it exited normally.
///
/// The wait is necessary: if this process ended before the standby has ended the guard's children, they would survive.
async fn death(standby: Pid, since: Instant) -> bool {
    await_briefly(standby, since);
    loop {
        match rustix::process::waitpid(Some(standby), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return status.exit_status() == Some(0),
            Ok(None) => {}
            Err(_) => return false,
        }
        // The signal is repeated, because another process may suspend the standby again.
        let signal = match since.elapsed() {
            waited if waited >= STANDBY_TIMEOUT + DEATH_TIMEOUT => return false,
            waited if waited >= STANDBY_TIMEOUT => Signal::KILL,
            _ => Signal::CONT,
        };
        let _ = rustix::process::kill_process(standby, signal);
        tokio::time::sleep(TICK).await;
    }
}

/// Waits a few milliseconds for the end of a process. Blocks the thread.
#[cfg(target_os = "linux")]
fn await_briefly(pid: Pid, since: Instant) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{PidfdFlags, pidfd_open};
    let left = DEATH_BLOCKING.saturating_sub(since.elapsed());
    // If no pidfd can be opened, the caller notices the end later.
    if let (Ok(pidfd), Ok(left)) = (pidfd_open(pid, PidfdFlags::empty()), left.try_into()) {
        let left: Timespec = left;
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left));
    }
}

#[cfg(not(target_os = "linux"))]
fn await_briefly(_pid: Pid, _since: Instant) {}

/// Removes an empty cgroup, for which the kernel needs a moment. Returns false if there are processes in it.
async fn remove(cgroup: &Cgroup) -> bool {
    let removed = async {
        while !cgroup.remove() {
            if !cgroup.members().is_empty() {
                return false;
            }
            tokio::time::sleep(TICK).await;
        }
        true
    };
    // A cgroup that could not be removed is removed by the next runner.
    tokio::time::timeout(REMOVE_TIMEOUT, removed)
        .await
        .unwrap_or(true)
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Returns both ends of the control socket. Only the runner's end is non-blocking.
fn socket_pair() -> io::Result<(std::os::unix::net::UnixStream, OwnedFd)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((ours, theirs.into()))
}
