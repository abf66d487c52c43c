//! Who has the terminal: the process group in its foreground hears Ctrl-C and Ctrl-Z, and may read.

use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::Pid;

/// Gives a terminal to a process group of its session. Whoever asks may be in the background: who is not deaf to it would be
/// stopped for that.
///
/// # Errors
/// It is no terminal of this session, or there is no such group.
pub fn give_terminal(terminal: impl AsFd, group: Pid) -> io::Result<()> {
    let before = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let given = rustix::termios::tcsetpgrp(terminal, group);
    before.thread_set_mask()?;
    Ok(given?)
}
