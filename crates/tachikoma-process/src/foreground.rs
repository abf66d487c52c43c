//! Chooses the foreground process group of a terminal, which gets Ctrl-C and Ctrl-Z and may read.

use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::Pid;

/// Makes a process group the foreground group of its terminal. The caller may be in the background, so SIGTTOU, which would stop it, is
/// blocked.
///
/// # Errors
/// It is not the terminal of this session, or the group does not exist.
pub fn give_terminal(terminal: impl AsFd, group: Pid) -> io::Result<()> {
    let before = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let given = rustix::termios::tcsetpgrp(terminal, group);
    before.thread_set_mask()?;
    Ok(given?)
}
