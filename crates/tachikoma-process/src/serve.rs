//! The guard's main function: it is the parent of every agent, and ends all of them when the runner has ended.
//!
//! The guard has one thread and no runtime: it sleeps in `poll` until the runner sends an order or a child dies.

use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::cgroup::Cgroup;
use super::protocol::{self, GuardReport, Inbox, Order, Received, SpawnSubject};
use super::{Exit, MARKER, Spawn, StopSignal, children, orphans, spawn};
use agent::{Agent, Progress};
use tachikoma_core::PASSPHRASE_VARIABLE;
use tachikoma_fs::lock_file;
use tachikoma_runtime::clock;

mod agent;
#[cfg(target_os = "linux")]
mod standby;

/// Maximum time for all processes to end after the runner has ended. The lock of the working directory is held meanwhile. A process that is stuck
/// in the kernel ends when it leaves the kernel.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for all processes to end at a normal shutdown. The runner waits slightly longer.
pub(super) const BYE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for git and its hooks, which the runner started, to end by themselves after the runner. Git removes its lock files in this time.
const STRAGGLE: Duration = Duration::from_secs(1);

/// Git runs maintenance after a commit in a detached process. The guard would end that process with the agent and report it as a leftover,
/// and the repository would never be packed. With these settings git waits for its maintenance.
const GIT_SETTINGS: [(&str, &str); 2] = [
    ("gc.autoDetach", "false"),
    ("maintenance.autoDetach", "false"),
];

/// Environment variable with the number of git settings that follow in other variables.
const GIT_COUNT: &str = "GIT_CONFIG_COUNT";

/// Time between two checks of children that are being ended, in case a death does not wake the guard.
const TICK: Duration = Duration::from_millis(20);

/// Serves one runner over the control socket on standard input. Returns after the runner and all agents have ended.
///
/// A program that embeds the runner calls this from the `main` of its guard program before it starts a thread, and exits afterwards.
#[must_use]
pub fn serve() -> ExitCode {
    // Without a socket there is neither an agent nor a runner, so the guard fails.
    serve_in_a_session().unwrap_or(ExitCode::FAILURE)
}

fn serve_in_a_session() -> io::Result<ExitCode> {
    spawn::ignore_signals_of_the_terminal();
    // Fails harmlessly if this process is already the leader of a process group.
    let _ = rustix::process::setsid();
    become_subreaper()?;
    #[cfg(target_os = "linux")]
    let standby = match standby::divide()? {
        standby::Role::Standby(standby) => return Ok(standby.watch()),
        standby::Role::Guard(socket) => {
            // Guard and standby have different sessions, so that a signal to one group does not reach both.
            let _ = rustix::process::setsid();
            become_subreaper()?;
            Some(socket)
        }
    };
    #[cfg(not(target_os = "linux"))]
    let standby = None;
    Ok(Server::new(standby)?.run())
}

fn become_subreaper() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(children::own_pid()))?;
    Ok(())
}

struct Server {
    socket: OwnedFd,
    /// Socket to the standby. It is closed when the standby ends. `None` on systems without a standby.
    standby: Option<UnixStream>,
    /// Socket that becomes readable when a child dies.
    deaths: UnixStream,
    inbox: Inbox,
    marker: String,
    cgroup: Option<Cgroup>,
    /// The lock of the working directory. While it is open, no other runner can take the lock.
    lock: Option<OwnedFd>,
    agent: Option<Agent>,
    /// Children that SIGKILL did not end. The guard no longer waits for them.
    written_off: Vec<Pid>,
}

impl Server {
    fn new(standby: Option<UnixStream>) -> io::Result<Self> {
        Ok(Self {
            socket: rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?,
            standby,
            deaths: notes_of(signal_hook::consts::SIGCHLD)?,
            inbox: Inbox::default(),
            marker: String::new(),
            cgroup: None,
            lock: None,
            agent: None,
            written_off: Vec::new(),
        })
    }

    /// Serves until the runner orders the end, has ended or sent an invalid order, or until the standby has ended. Without the standby no
    /// process would end the children of a killed guard.
    fn run(mut self) -> ExitCode {
        // Standard input is closed, because every agent would inherit it. The guard uses a copy that is close-on-exec.
        close_stdin();
        while self.wait().is_continue() && self.obey().is_ok_and(|flow| flow.is_continue()) {
            let children_left = self.reap();
            if self.advance(children_left).is_err() {
                break;
            }
        }
        self.end()
    }

    /// Sleeps until an order, a signal or a timer needs handling. Breaks if the standby has ended.
    fn wait(&mut self) -> ControlFlow<()> {
        let tick = self.agent.as_ref().and_then(Agent::tick);
        let mut fds = vec![
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.deaths, PollFlags::IN),
        ];
        let standby = self.standby.as_ref();
        fds.extend(standby.map(|standby| PollFd::new(standby, PollFlags::empty())));
        sleep(&mut fds, tick);
        let standby_ended = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
        forget_notes(&self.deaths);
        match standby_ended {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn obey(&mut self) -> io::Result<ControlFlow<()>> {
        let received = self.inbox.receive(&self.socket)?;
        while let Some(order) = self.inbox.next::<Order>()? {
            let fds = self.inbox.fds(order.fds())?;
            if matches!(order, Order::Hello { .. } | Order::Hold) {
                self.tell_standby(&order, &fds)?;
            }
            match order {
                Order::Hello { marker, cgroup, .. } => {
                    self.marker = marker;
                    self.cgroup = cgroup.map(|path| Cgroup::at(path.into()));
                    self.lock = fds.into_iter().next();
                }
                Order::Hold => self.lock = fds.into_iter().next(),
                Order::Spawn(order) => self.spawn(*order, fds)?,
                Order::Signal { generation, signal } => self.signal(generation, signal),
                Order::Suspend => self.signal_group(Signal::STOP),
                Order::Continue => self.signal_group(Signal::CONT),
                Order::Bye => return Ok(ControlFlow::Break(())),
            }
        }
        Ok(match received {
            Received::Some | Received::Nothing => ControlFlow::Continue(()),
            Received::End => ControlFlow::Break(()),
        })
    }

    /// Sends an order to the standby. The standby also holds the lock, so that no other runner starts before it has killed the processes of a
    /// killed guard.
    fn tell_standby(&self, order: &Order, fds: &[OwnedFd]) -> io::Result<()> {
        if let Some(standby) = &self.standby {
            let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
            // If the standby does not read, it has ended, which is noticed elsewhere, or it is suspended.
            let _ = protocol::send(standby, &protocol::encode(order)?, &fds);
        }
        Ok(())
    }

    fn spawn(&mut self, order: Spawn, fds: Vec<OwnedFd>) -> io::Result<()> {
        let generation = order.generation;
        let started = match self.agent {
            Some(_) => Err(GuardReport::SpawnFailed {
                generation,
                subject: SpawnSubject::Guard,
                errno: Errno::BUSY.raw_os_error(),
                message: "the agent before it has not ended yet".to_owned(),
            }),
            None => launch(order, fds, &self.marker),
        };
        match started {
            Ok(pid) => {
                self.agent = Some(Agent::new(generation, pid));
                self.report(&GuardReport::Spawned {
                    generation,
                    pid: pid.as_raw_pid(),
                })
            }
            Err(failed) => self.report(&failed),
        }
    }

    fn signal(&mut self, generation: u64, signal: StopSignal) {
        // The agent may have ended before the order arrived.
        let agent = self.agent.as_mut();
        if let Some(agent) = agent.filter(|agent| agent.generation == generation) {
            agent.signal(signal, clock::monotonic());
        }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(agent) = &self.agent {
            agent.signal_group(signal);
        }
    }

    /// Reaps all children that have ended. Returns whether other children are left.
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
                // The error means that there are no children. No other error is possible here.
                Err(_) => return false,
            }
        }
    }

    /// Takes the next step in ending an agent and its leftover processes.
    fn advance(&mut self, children_left: bool) -> io::Result<()> {
        let Some(agent) = self.agent.as_mut().filter(|agent| agent.is_ending()) else {
            return Ok(());
        };
        let may_die = |child: &Pid| !self.written_off.contains(child);
        let others_left =
            children_left && (self.written_off.is_empty() || children::own().iter().any(may_die));
        match agent.advance(others_left, &self.written_off, clock::monotonic()) {
            Progress::Waiting => Ok(()),
            Progress::Ended { report, survivors } => {
                self.agent = None;
                self.written_off.extend(survivors);
                self.report(&report)
            }
        }
    }

    fn report(&self, report: &GuardReport) -> io::Result<()> {
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

    /// Ends every descendant. If the runner has ended, also removes the cgroup.
    fn end(mut self) -> ExitCode {
        let began = clock::monotonic();
        if let Some(agent) = &self.agent {
            agent.signal_group(Signal::KILL);
        }
        while self.reap() && began.elapsed() < self.patience() {
            for child in children::own() {
                kill(child, Signal::KILL);
            }
            sleep(&mut [PollFd::new(&self.deaths, PollFlags::IN)], Some(TICK));
            forget_notes(&self.deaths);
        }
        // If the runner still runs, it removes the cgroup after the end of the guard.
        if self.runner_has_ended() {
            if let Some(cgroup) = self.cgroup.take() {
                end_cgroup(&cgroup, began + END_TIMEOUT);
            }
            if let Some(lock) = &self.lock {
                end_stragglers(&self.marker, lock);
            }
        }
        ExitCode::SUCCESS
    }

    fn patience(&self) -> Duration {
        match self.runner_has_ended() {
            true => END_TIMEOUT,
            false => BYE_TIMEOUT,
        }
    }

    fn runner_has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        sleep(&mut fds, Some(Duration::ZERO));
        fds.iter().any(|fd| !fd.revents().is_empty())
    }
}

/// Starts an agent with the given streams. Its process id stays valid until the agent is waited for. The error is the report to the runner.
fn launch(order: Spawn, fds: Vec<OwnedFd>, marker: &str) -> Result<Pid, GuardReport> {
    let cwd = PathBuf::from(order.cwd);
    let mut command = Command::new(order.program);
    command.args(order.args).current_dir(&cwd);
    // Only the runner may have the passphrase.
    command.env_remove(PASSPHRASE_VARIABLE);
    for name in order.env_remove {
        command.env_remove(name);
    }
    command.envs(order.env).env(MARKER, marker);
    set_git(&mut command);
    if let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(fds) {
        command.stdin(Stdio::from(stdin));
        command.stdout(Stdio::from(stdout));
        command.stderr(Stdio::from(stderr));
    }
    spawn::prepare_agent(&mut command, children::own_pid());
    match command.spawn() {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(error) => Err(spawn_failed(order.generation, &error, &cwd)),
    }
}

/// Adds Tachikoma's git settings to those that the agent already gets.
fn set_git(command: &mut Command) {
    let given = command.get_envs().find(|(name, _)| *name == GIT_COUNT);
    let given = match given {
        Some((_, value)) => value.map(OsString::from),
        None => std::env::var_os(GIT_COUNT),
    };
    let given = given.filter(|count| !count.is_empty());
    let parse = |count: OsString| count.to_str()?.trim_start().parse::<i32>().ok();
    let count = given.map_or(Some(0), parse).filter(|count| *count >= 0);
    // An invalid number is left unchanged, because git reports it itself.
    let Some(mut next) = count else { return };
    for (name, value) in GIT_SETTINGS {
        command.env(format!("GIT_CONFIG_KEY_{next}"), name);
        command.env(format!("GIT_CONFIG_VALUE_{next}"), value);
        next += 1;
    }
    command.env(GIT_COUNT, next.to_string());
}

/// Returns why an agent could not be started. ENOENT does not say if the program or the directory is missing, so the directory is
/// checked again.
fn spawn_failed(generation: u64, error: &io::Error, cwd: &Path) -> GuardReport {
    let errno = error.raw_os_error().unwrap_or_default();
    let of_program = [
        Errno::NOENT,
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::LOOP,
        Errno::NAMETOOLONG,
        Errno::NOEXEC,
        Errno::TOOBIG,
        Errno::TXTBSY,
        Errno::LIBBAD,
    ];
    let (subject, error) = match check_dir(cwd) {
        Err(refusal) => (SpawnSubject::WorkingDirectory, refusal),
        Ok(()) if of_program.iter().any(|of| of.raw_os_error() == errno) => {
            (SpawnSubject::Program, io::Error::from_raw_os_error(errno))
        }
        // An error without a number is a NUL byte in an argument.
        Ok(()) if errno == 0 => (
            SpawnSubject::Program,
            io::Error::new(error.kind(), error.to_string()),
        ),
        Ok(()) => (SpawnSubject::Guard, io::Error::from_raw_os_error(errno)),
    };
    GuardReport::SpawnFailed {
        generation,
        subject,
        errno: error.raw_os_error().unwrap_or_default(),
        message: error.to_string(),
    }
}

/// Checks that an agent can run in the directory.
fn check_dir(cwd: &Path) -> io::Result<()> {
    if !cwd.metadata()?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok(rustix::fs::access(cwd, rustix::fs::Access::EXEC_OK)?)
}

/// Ends processes that the dead runner itself started, and marks the runner as dead in the lock file.
fn end_stragglers(marker: &str, lock: &OwnedFd) {
    orphans::end_stragglers(marker, STRAGGLE);
    lock_file::mark_holder_dead(lock);
}

/// Ends the cgroup. If the guard cannot leave the cgroup, this kills the guard too, and the next runner removes the directory.
fn end_cgroup(cgroup: &Cgroup, deadline: Instant) {
    if cgroup.leave() {
        cgroup.end(deadline.saturating_duration_since(clock::monotonic()));
    } else {
        cgroup.kill();
    }
}

/// Sends a signal to a child. The child was not reaped, so its id is still valid.
fn kill(child: Pid, signal: Signal) {
    // The child may have ended already.
    let _ = rustix::process::kill_process(child, signal);
}

fn exit(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}

/// Sleeps until one of the descriptors is ready or the timeout has passed. It may return early.
fn sleep(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let _ = rustix::event::poll(fds, timeout.as_ref());
}

/// Returns a socket that becomes readable when this process receives the signal.
fn notes_of(signal: i32) -> io::Result<UnixStream> {
    let (notes, note) = UnixStream::pair()?;
    notes.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal, note)?;
    Ok(notes)
}

/// Reads and drops the bytes of a signal socket. They only wake the caller, which then checks its children.
fn forget_notes(notes: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!(io::Read::read(&mut &*notes, &mut bytes), Ok(read) if read == bytes.len()) {}
}

/// Replaces the control socket on standard input by `/dev/null`, so that no other file gets its number.
fn close_stdin() {
    if let Ok(null) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}
