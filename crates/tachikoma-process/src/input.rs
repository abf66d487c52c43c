//! Creates the standard streams of an agent, and reads data from an inherited descriptor.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::{fs, fs::File};

use tokio::net::unix::pipe::{Receiver, Sender};

/// Returns a standard input from which an agent reads `bytes` and then end of file.
///
/// It is a file in memory and not a pipe, because the writer of a pipe would block if the agent does not read.
///
/// # Errors
/// The file cannot be created.
pub fn input(bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.is_empty() {
        return Ok(fs::OpenOptions::new().read(true).open("/dev/null")?.into());
    }
    let mut file = unnamed_file()?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Returns a pipe for an agent that reads several prompts: the end for the agent and the end that the runner writes.
///
/// # Errors
/// The pipe cannot be created. Needs a Tokio runtime.
pub fn lines() -> io::Result<(OwnedFd, Sender)> {
    let (read, write) = cloexec_pipe()?;
    Ok((read, Sender::from_owned_fd(write)?))
}

/// Returns a pipe for one output stream: the end that the runner reads and the end for the agent.
///
/// # Errors
/// The pipe cannot be created. Needs a Tokio runtime.
pub fn output() -> io::Result<(Receiver, OwnedFd)> {
    let (read, write) = cloexec_pipe()?;
    Ok((Receiver::from_owned_fd(read)?, write))
}

/// Reads data that this program passed to itself before it executed itself again: at most `max` bytes from an inherited descriptor. Closes the
/// descriptor, so that no child inherits it.
///
/// # Errors
/// There is no such descriptor, or it cannot be read.
pub fn handed(descriptor: i32, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(format!("/dev/fd/{descriptor}"))
        .and_then(|file| file.take(max as u64).read_to_end(&mut bytes));
    // The standard streams stay open.
    if descriptor > 2 {
        nix::unistd::close(descriptor)?;
    }
    read.map(|_| bytes)
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
