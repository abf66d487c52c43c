//! The ends of an agent's standard streams: an input that can never block anyone, and a pipe for each output.

use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::{fs, fs::File};

use tokio::net::unix::pipe::{Receiver, Sender};

/// Returns a standard input from which an agent reads `bytes` and then sees the end.
///
/// It is a file in memory and never an open pipe: several agents wait for the end of their input before they do
/// anything, and a pipe's writer would block on an agent that does not read.
///
/// # Errors
/// If the system refuses the file.
pub fn input(bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.is_empty() {
        return Ok(fs::OpenOptions::new().read(true).open("/dev/null")?.into());
    }
    let mut file = unnamed_file()?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Returns a pipe for an agent that reads lines as they come: the end for the agent and the end that the runner writes.
///
/// # Errors
/// If the system refuses the pipe; needs a Tokio runtime.
pub fn lines() -> io::Result<(OwnedFd, Sender)> {
    let (read, write) = cloexec_pipe()?;
    Ok((read, Sender::from_owned_fd(write)?))
}

/// Returns a pipe for one output stream: the end that the runner reads and the end for the agent.
///
/// # Errors
/// If the system refuses the pipe; needs a Tokio runtime.
pub fn output() -> io::Result<(Receiver, OwnedFd)> {
    let (read, write) = cloexec_pipe()?;
    Ok((Receiver::from_owned_fd(read)?, write))
}

#[cfg(target_os = "linux")]
fn unnamed_file() -> io::Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    Ok(rustix::fs::memfd_create("prompt", flags)?.into())
}

#[cfg(target_os = "linux")]
fn cloexec_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

#[cfg(not(target_os = "linux"))]
fn unnamed_file() -> io::Result<File> {
    let path = format!("/tmp/.tachikoma-prompt-{}", uuid::Uuid::new_v4());
    let file = {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.open(&path)?
    };
    fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn cloexec_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe()?;
    rustix::io::fcntl_setfd(&read, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&write, rustix::io::FdFlags::CLOEXEC)?;
    Ok((read, write))
}
