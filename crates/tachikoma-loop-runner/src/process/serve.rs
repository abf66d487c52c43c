//! The guard's own main: parent of every agent, and the end of them when the runner is gone.
//!
//! One thread, no runtime: it sleeps in `poll` until the runner orders something or a child dies.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::cgroup::Cgroup;
use super::protocol::{self, Inbox, Order, Received, Report, SpawnOrder, SpawnSubject};
use super::{Exit, Rung, children, orphans, spawn};
use crate::clock;
use crate::store::lock;
use agent::{Agent, Progress};

mod agent;
mod launch;

/// How long everything may take to die once the runner is gone. Nobody waits for it but the working directory's lock,
/// and a process that is stuck in the kernel dies as soon as it leaves it.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// How long everything may take to die at an orderly end; the runner waits a little longer than this.
pub(super) const BYE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the runner itself started, git with its hooks, hears of its death, and git puts its locks away; what is left then is
/// killed.
const STRAGGLE: Duration = Duration::from_secs(1);

/// While children are being ended they are looked for this often, should a death not wake us.
const TICK: Duration = Duration::from_millis(20);

/// Serves one runner over the control socket on standard input, and returns when it and all agents are gone.
///
/// A program that embeds the runner calls this from the `main` of whatever it names as guard, before it starts any
/// thread and with nothing else to do afterwards.
#[must_use]
pub fn serve() -> ExitCode {
    match Server::new() {
        Ok(server) => server.run(),
        // Without a socket there is neither an agent to guard nor anybody to tell.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Why the guard ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The runner said so and is still there.
    Bye,
    /// The runner is gone, or talks nonsense, which is treated alike.
    Gone,
}

struct Server {
    socket: OwnedFd,
    /// Becomes readable when a child dies.
    deaths: UnixStream,
    inbox: Inbox,
    marker: String,
    cgroup: Option<Cgroup>,
    /// While it is open no other runner gets the working directory.
    lock: Option<OwnedFd>,
    agent: Option<Agent>,
    /// Children that SIGKILL did not end, so that they are not waited for again.
    written_off: Vec<Pid>,
}

impl Server {
    fn new() -> io::Result<Self> {
        spawn::ignore_signals_of_the_terminal();
        // A guard that its caller made the leader of a group keeps it: no harm.
        let _ = rustix::process::setsid();
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(children::own_pid()))?;
        let (deaths, note_death) = UnixStream::pair()?;
        deaths.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, note_death)?;
        Ok(Self {
            socket: rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?,
            deaths,
            inbox: Inbox::default(),
            marker: String::new(),
            cgroup: None,
            lock: None,
            agent: None,
            written_off: Vec::new(),
        })
    }

    /// Ends when the runner says goodbye or is gone.
    fn run(mut self) -> ExitCode {
        // The copy is close-on-exec; the original would be a second end of the socket in every agent.
        if let Ok(null) = std::fs::File::open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&null);
        }
        let end = loop {
            self.wait();
            match self.obey() {
                Ok(None) => (),
                Ok(Some(end)) => break end,
                Err(_) => break End::Gone,
            }
            let children_left = self.reap();
            if self.advance(children_left).is_err() {
                break End::Gone;
            }
        };
        self.end(end)
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self) {
        let tick = self.agent.as_ref().and_then(Agent::tick);
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.deaths, PollFlags::IN),
        ];
        sleep(&mut fds, tick);
        forget_notes(&self.deaths);
    }

    fn obey(&mut self) -> io::Result<Option<End>> {
        let received = self.inbox.receive(&self.socket)?;
        while let Some(order) = self.inbox.next::<Order>()? {
            let fds = self.inbox.fds(order.fds())?;
            match order {
                Order::Hello { marker, cgroup, .. } => {
                    self.marker = marker;
                    self.cgroup =
                        cgroup.map(|path| Cgroup::at(std::ffi::OsString::from(path).into()));
                    self.lock = fds.into_iter().next();
                }
                Order::Hold => self.lock = fds.into_iter().next(),
                Order::Spawn(order) => self.spawn(*order, fds)?,
                Order::Signal { generation, rung } => self.signal(generation, rung),
                Order::Suspend => self.signal_group(Signal::STOP),
                Order::Continue => self.signal_group(Signal::CONT),
                Order::Bye => return Ok(Some(End::Bye)),
            }
        }
        Ok(match received {
            Received::Some | Received::Nothing => None,
            Received::End => Some(End::Gone),
        })
    }

    fn spawn(&mut self, order: SpawnOrder, fds: Vec<OwnedFd>) -> io::Result<()> {
        let generation = order.generation;
        if self.agent.is_some() {
            return self.report(&Report::SpawnFailed {
                generation,
                subject: SpawnSubject::Guard,
                errno: Errno::BUSY.raw_os_error(),
                message: "the agent before has not ended yet".to_owned(),
            });
        }
        match launch::launch(order, fds, &self.marker) {
            Ok(pid) => {
                self.agent = Some(Agent::new(generation, pid));
                self.report(&Report::Spawned {
                    generation,
                    pid: pid.as_raw_pid(),
                })
            }
            Err(failure) => self.report(&Report::SpawnFailed {
                generation,
                subject: failure.subject,
                errno: failure.errno,
                message: failure.message,
            }),
        }
    }

    fn signal(&mut self, generation: u64, rung: Rung) {
        // A signal that crosses the agent's end on its way is for nobody.
        if let Some(agent) = self
            .agent
            .as_mut()
            .filter(|agent| agent.generation() == generation)
        {
            agent.signal(rung, clock::monotonic());
        }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(agent) = &self.agent {
            agent.signal_group(signal);
        }
    }

    /// Waits for every child that is dead; returns whether any other is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.written_off.retain(|other| *other != pid);
                    if let Some(agent) = &mut self.agent {
                        agent.died(pid, exit(status), clock::monotonic());
                    }
                }
                Err(Errno::INTR) => (),
                Ok(None) => return true,
                // No children at all, which is the only other thing that can be said here.
                Err(_) => return false,
            }
        }
    }

    /// Takes the next step in ending an agent, if that is what is going on.
    fn advance(&mut self, children_left: bool) -> io::Result<()> {
        let Some(agent) = self.agent.as_mut().filter(|agent| agent.is_ending()) else {
            return Ok(());
        };
        let others_left = children_left && others_left(&self.written_off);
        match agent.advance(others_left, &self.written_off, clock::monotonic()) {
            Progress::Waiting => Ok(()),
            Progress::Ended { report, survivors } => {
                self.agent = None;
                self.written_off.extend(survivors);
                self.report(&report)
            }
        }
    }

    fn report(&self, report: &Report) -> io::Result<()> {
        let line = protocol::encode(report)?;
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            match protocol::send(&self.socket, rest, &[]) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ends every descendant, and the control group if the runner is not there to do it.
    fn end(mut self, end: End) -> ExitCode {
        let patience = match end {
            End::Bye => BYE_TIMEOUT,
            End::Gone => END_TIMEOUT,
        };
        let deadline = clock::monotonic() + patience;
        if let Some(agent) = &self.agent {
            agent.signal_group(Signal::KILL);
        }
        while self.reap() && clock::monotonic() < deadline {
            for child in children::own() {
                kill(child, Signal::KILL);
            }
            sleep(&mut [PollFd::new(&self.deaths, PollFlags::IN)], Some(TICK));
            forget_notes(&self.deaths);
        }
        match (end, self.cgroup.take()) {
            (End::Gone, Some(cgroup)) => end_cgroup(&cgroup, deadline),
            // The runner removes the group when it has seen our end.
            (End::Bye, Some(_)) | (End::Bye | End::Gone, None) => (),
        }
        if let (End::Gone, Some(lock)) = (end, &self.lock) {
            orphans::end_stragglers(&self.marker, STRAGGLE);
            lock::note_death(lock);
        }
        ExitCode::SUCCESS
    }
}

/// If we cannot leave the group, killing it ends us too: the directory stays for the next runner to remove.
fn end_cgroup(cgroup: &Cgroup, deadline: Instant) {
    if cgroup.leave() {
        cgroup.end(deadline.saturating_duration_since(clock::monotonic()));
    } else {
        cgroup.kill();
    }
}

/// Returns whether a child is left that may still be ended.
fn others_left(written_off: &[Pid]) -> bool {
    let may_die = |child: &Pid| !written_off.contains(child);
    written_off.is_empty() || children::own().iter().any(may_die)
}

/// Signals a child of ours: it has not been waited for, so its id is still its own.
fn kill(child: Pid, signal: Signal) {
    // It may have died on its own, which is as good.
    let _ = rustix::process::kill_process(child, signal);
}

fn exit(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}

/// Sleeps until one of the descriptors is ready or the time is over; waking early is harmless.
fn sleep(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let _ = rustix::event::poll(fds, timeout.as_ref());
}

/// The notes only wake us; who died is found out by waiting for it.
fn forget_notes(deaths: &UnixStream) {
    let mut notes = [0; 64];
    while matches!(io::Read::read(&mut &*deaths, &mut notes), Ok(read) if read == notes.len()) {}
}
