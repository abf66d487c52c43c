//! Runs a program with a time limit.

use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// Runs a program in a process group of its own, with empty stdin. Returns its exit status and its output. Kills the group after the timeout.
pub fn run(
    mut command: Command,
    timeout: Option<Duration>,
) -> Result<(ExitStatus, String), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut output = tempfile::tempfile().map_err(text)?;
    command.process_group(0).stdin(Stdio::null());
    command.stdout(output.try_clone().map_err(text)?);
    command.stderr(output.try_clone().map_err(text)?);
    let mut child = command.spawn().map_err(text)?;
    let group = Pid::from_child(&child);
    let (sender, ended) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let _ = sender.send(child.wait());
    });
    let status = match timeout {
        Some(timeout) => ended.recv_timeout(timeout).ok(),
        None => ended.recv().ok(),
    };
    if status.is_none() {
        // The error means that the group has ended in the meantime.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = waiter.join();
    let status = status.ok_or("timeout")?.map_err(text)?;
    output.rewind().map_err(text)?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes).map_err(text)?;
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}
