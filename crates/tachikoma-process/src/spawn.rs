//! The calls that need `unsafe`: the code between `fork` and `exec`, the sender of a signal, and the process at the other end of a socket.
#![expect(
    unsafe_code,
    reason = "fork, clone3, signals' dispositions and senders, SO_PEERPIDFD and the code between fork and exec have no safe form"
)]

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr;

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::process::Pid;

/// The highest signal number of any supported system. The kernel ignores numbers that do not exist.
const SIGNAL_MAX: libc::c_int = 64;

/// The first descriptor number after the three standard streams.
const FIRST_FREE_FD: RawFd = 3;

/// The flag that makes `clone3` put the child into a cgroup (`linux/sched.h`).
#[cfg(target_os = "linux")]
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Exit code of the child when the guard's program could not be started. It is not read.
const EXEC_FAILED: libc::c_int = 127;

/// Makes `command` start an agent in its own session, with default signal handling. The kernel kills the agent when its guard ends.
///
/// The kernel ends the child when the thread that started it ends. The guard has a single thread.
pub(super) fn prepare_agent(command: &mut Command, guard: Pid) {
    let before_exec = move || {
        die_with(guard)?;
        rustix::process::setsid()?;
        reset_signals();
        Ok(())
    };
    // SAFETY: the closure only makes system calls; it neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Makes the kernel kill this process when its parent ends.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // A parent that ended before the call above sends no signal.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "the function has the same signature on Linux"
)]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

/// Forks this process, which must have a single thread. Returns the child's id in the parent, and `None` in the child.
#[cfg(target_os = "linux")]
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: with a single thread no other thread holds a lock, so the child can continue like this process.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Resets all signals to their defaults. Otherwise the agent would inherit the signals that the guard ignores.
fn reset_signals() {
    for signal in 1..=SIGNAL_MAX {
        reset(signal);
    }
    let _ = SigSet::empty().thread_set_mask();
}

/// Resets one signal. Calls the kernel directly, because the C library reserves two signals and refuses to reset them.
#[cfg(target_os = "linux")]
fn reset(signal: libc::c_int) {
    // Handler, flags, restorer and mask: all zero is the default action.
    let action = [0_u64; 4];
    let mask_bytes = size_of::<u64>();
    // SAFETY: the kernel only reads the structure, which has the kernel's size. It refuses unknown signal numbers.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            ptr::null::<u64>(),
            mask_bytes,
        );
    }
}

#[cfg(not(target_os = "linux"))]
fn reset(signal: libc::c_int) {
    // SAFETY: no handler is installed. The system refuses unknown signal numbers.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
}

/// Makes `command` start in its own session, without a terminal and with default signal handling. The kernel sends it SIGTERM when the thread that
/// started it ends.
pub fn in_a_session_of_its_own(command: &mut Command) {
    let before_exec = || {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        rustix::process::setsid()?;
        reset_signals();
        Ok(())
    };
    // SAFETY: the closure only makes system calls; it neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Returns the id of the process that sent a signal. Valid only if the code of the signal says that a process sent it.
pub(super) fn sender_of(info: &libc::siginfo_t) -> libc::pid_t {
    // SAFETY: the kernel fills the whole structure, and every bit pattern is a valid number.
    unsafe { info.si_pid() }
}

/// Returns a pidfd of the process that connected to a Unix socket; `None` if the kernel does not support it.
///
/// # Errors
/// The process has ended, or no descriptor is left.
#[cfg(target_os = "linux")]
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut pidfd: RawFd = -1;
    let mut length = libc::socklen_t::try_from(size_of::<RawFd>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `pidfd`. Both variables live until the call returns.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            ptr::from_mut(&mut pidfd).cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        let error = io::Error::last_os_error();
        let unknown = error.raw_os_error() == Some(libc::ENOPROTOOPT);
        return if unknown { Ok(None) } else { Err(error) };
    }
    // SAFETY: the kernel has just opened this descriptor, and no other code knows it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

#[cfg(not(target_os = "linux"))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "the function has the same signature on Linux"
)]
pub(super) fn peer_pidfd(_socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    Ok(None)
}

/// Ignores the signals that a terminal or a shell sends, and unblocks all other signals.
pub(super) fn ignore_signals_of_the_terminal() {
    let ignored = [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGPIPE,
    ];
    for signal in ignored {
        // SAFETY: no handler is installed.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    let _ = SigSet::empty().thread_set_mask();
}

/// First word of the guard's command line. It does not contain the name of the program, so that `pkill -9 -f tachikoma` ends the
/// runner and leaves the guard alive to clean up.
const GUARD_ARG0: &str = "loop-guard";

/// The program of a guard, with its arguments and environment.
#[derive(Clone, Copy)]
pub(super) struct Program<'a> {
    pub path: &'a Path,
    pub args: &'a [OsString],
    /// The complete environment of the guard.
    pub environment: &'a [(OsString, OsString)],
}

/// Starts the guard. Its standard input is the control socket, it has no output, and all signals are blocked until it is ready.
///
/// Returns when the program has been executed, before the guard is ready.
pub(super) fn start_guard(
    program: Program<'_>,
    socket: OwnedFd,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<Pid> {
    match cgroup {
        Some(directory) => start_in_cgroup(program, &socket, directory),
        None => start_plain(program, socket),
    }
}

fn start_plain(program: Program<'_>, socket: OwnedFd) -> io::Result<Pid> {
    let mut command = Command::new(program.path);
    command
        .arg0(GUARD_ARG0)
        .args(program.args)
        .env_clear()
        .envs(
            program
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        )
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let before_exec = || Ok(SigSet::all().thread_set_mask()?);
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(before_exec);
    }
    Ok(Pid::from_child(&command.spawn()?))
}

#[cfg(not(target_os = "linux"))]
fn start_in_cgroup(
    _program: Program<'_>,
    _socket: &OwnedFd,
    _cgroup: BorrowedFd<'_>,
) -> io::Result<Pid> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The data for `exec`. It is prepared before the fork, because the child must not allocate.
#[cfg(target_os = "linux")]
struct Prepared<'a> {
    program: CString,
    argv: Words,
    environment: Words,
    streams: [&'a OwnedFd; 3],
    failure: &'a OwnedFd,
}

/// Strings in the form that `execve` takes.
#[cfg(target_os = "linux")]
struct Words {
    /// Owns the memory of the strings that `pointers` point to.
    _words: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

#[cfg(target_os = "linux")]
impl Words {
    fn new(words: Vec<CString>) -> Self {
        let pointers = words.iter().map(|word| word.as_ptr());
        Self {
            pointers: pointers.chain([ptr::null()]).collect(),
            _words: words,
        }
    }
}

#[cfg(target_os = "linux")]
fn start_in_cgroup(
    program: Program<'_>,
    socket: &OwnedFd,
    cgroup: BorrowedFd<'_>,
) -> io::Result<Pid> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    // The duplicates have numbers above the standard streams, so that `dup2` does not close one of them.
    let null = rustix::io::fcntl_dupfd_cloexec(null, FIRST_FREE_FD)?;
    let socket = rustix::io::fcntl_dupfd_cloexec(socket, FIRST_FREE_FD)?;
    let (failure, failed) = io::pipe()?;
    let failed = rustix::io::fcntl_dupfd_cloexec(failed, FIRST_FREE_FD)?;
    let name = c_string(program.path.as_os_str())?;
    let mut words = vec![c_string(OsStr::new(GUARD_ARG0))?];
    for arg in program.args {
        words.push(c_string(arg)?);
    }
    let mut variables = Vec::new();
    for (name, value) in program.environment {
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        variables.push(c_string(&variable)?);
    }
    let prepared = Prepared {
        program: name,
        argv: Words::new(words),
        environment: Words::new(variables),
        streams: [&socket, &null, &null],
        failure: &failed,
    };
    let pid = with_all_signals_blocked(|| clone_into(cgroup, &prepared))?;
    drop(failed);
    exec_result(failure, pid)
}

#[cfg(target_os = "linux")]
fn clone_into(cgroup: BorrowedFd<'_>, prepared: &Prepared<'_>) -> io::Result<Pid> {
    // SAFETY: all fields of the structure are numbers, for which zero means "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    // SAFETY: the structure is valid for its stated size. Without CLONE_VM and a stack this is a fork: the child has its
    // own copy of the memory and continues from here. It then only calls `exec`, which follows the rules after a fork.
    let cloned = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut arguments,
            size_of::<libc::clone_args>(),
        )
    };
    match cloned {
        0 => exec(prepared),
        ..0 => Err(io::Error::last_os_error()),
        1.. => i32::try_from(cloned)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Runs in the child: executes the program. Uses only system calls, because other threads of the parent may have held locks.
#[cfg(target_os = "linux")]
fn exec(prepared: &Prepared<'_>) -> ! {
    // SAFETY: the descriptors are open, the strings end with NUL and the lists with a null pointer, and all were made before the clone.
    // Every called function is safe to call after a fork.
    unsafe {
        for (stream, target) in prepared.streams.iter().zip(0..) {
            libc::dup2(stream.as_raw_fd(), target);
        }
        libc::execve(
            prepared.program.as_ptr(),
            prepared.argv.pointers.as_ptr(),
            prepared.environment.pointers.as_ptr(),
        );
        let errno = (*libc::__errno_location()).to_ne_bytes();
        libc::write(
            prepared.failure.as_raw_fd(),
            errno.as_ptr().cast(),
            errno.len(),
        );
        libc::_exit(EXEC_FAILED)
    }
}

/// Waits for `exec`. The pipe is closed when the program starts. Otherwise it contains the error number.
#[cfg(target_os = "linux")]
fn exec_result(mut failure: io::PipeReader, pid: Pid) -> io::Result<Pid> {
    let mut errno = [0; 4];
    match failure.read_exact(&mut errno) {
        Ok(()) => {
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
        }
        Err(_) => Ok(pid),
    }
}

/// Runs `work` with all signals blocked: a signal between `clone` and `exec` would run the handlers of the runner in the child.
#[cfg(target_os = "linux")]
fn with_all_signals_blocked<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let done = work();
    before.thread_set_mask()?;
    done
}

#[cfg(target_os = "linux")]
fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}
