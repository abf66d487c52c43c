//! Starts an agent, and explains why it could not be started.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::protocol::SpawnSubject;
use crate::{MARKER, Spawn, children, spawn};
use tachikoma_core::PASSPHRASE_VARIABLE;

/// Git runs maintenance after a commit in a detached process. The guard would end that process with the agent and report it as a leftover,
/// and the repository would never be packed. With these settings git waits for its maintenance.
const GIT_SETTINGS: [(&str, &str); 2] = [
    ("gc.autoDetach", "false"),
    ("maintenance.autoDetach", "false"),
];

/// Environment variable with the number of git settings that follow in other variables.
const GIT_COUNT: &str = "GIT_CONFIG_COUNT";

/// Why an agent could not be started.
pub(super) struct Failure {
    pub(super) subject: SpawnSubject,
    pub(super) errno: i32,
    pub(super) message: String,
}

/// Starts an agent with the given streams. Its process id stays valid until the agent is waited for.
pub(super) fn launch(order: Spawn, fds: Vec<OwnedFd>, marker: &str) -> Result<Pid, Failure> {
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
        Err(error) => Err(failure(&error, &cwd)),
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
fn failure(error: &io::Error, cwd: &Path) -> Failure {
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
    let (subject, error) = match enter(cwd) {
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
    Failure {
        subject,
        errno: error.raw_os_error().unwrap_or_default(),
        message: error.to_string(),
    }
}

fn enter(cwd: &Path) -> io::Result<()> {
    if !cwd.metadata()?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok(rustix::fs::access(cwd, rustix::fs::Access::EXEC_OK)?)
}
