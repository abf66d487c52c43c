//! Signals that this process receives: their senders, how to defer them, and the terminal that sends them.

use std::io;
use std::os::fd::AsFd;

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::Pid;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

use super::spawn;

/// The sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The system: a terminal, or a process outside of this container.
    System,
    /// A process, identified by the kernel.
    Process(i32),
    /// Unknown. On Linux this means `sigqueue`, `F_SETSIG` or a timer, where the sender can forge the process id.
    Unknown,
}

/// A listener for signals.
#[derive(Debug)]
pub struct Signals(SignalsInfo<WithRawSiginfo>);

impl Signals {
    /// Starts listening. The signals no longer have their default effect.
    ///
    /// # Errors
    /// A signal cannot be listened to.
    pub fn listen(signals: &[i32]) -> io::Result<Self> {
        SignalsInfo::new(signals).map(Self)
    }

    /// Calls `each` for every signal, with its sender. Blocks and never returns.
    pub fn for_each(mut self, mut each: impl FnMut(i32, Sender)) {
        for info in self.0.forever() {
            each(info.si_signo, sender(&info));
        }
    }
}

fn sender(info: &libc::siginfo_t) -> Sender {
    match info.si_code {
        libc::SI_USER | SI_TKILL => {
            match spawn::sender_of(info) {
                pid @ 1.. => Sender::Process(pid),
                // The sender is in a parent PID namespace.
                _ => Sender::System,
            }
        }
        // The terminal sent this signal: a key was pressed, or the terminal was closed. Any process can make the kernel send other signals.
        SI_KERNEL => Sender::System,
        // The sender of these signals can forge its process id.
        _ => Sender::Unknown,
    }
}

/// Value of `si_code` for signals that the kernel sends.
const SI_KERNEL: i32 = 0x80;

#[cfg(target_os = "linux")]
const SI_TKILL: i32 = libc::SI_TKILL;
/// Other systems have no separate value of `si_code` for signals to a thread.
#[cfg(not(target_os = "linux"))]
const SI_TKILL: i32 = libc::SI_USER;

/// Blocks the signals that would end this program, until this value is dropped. For programs with a single thread.
#[derive(Debug)]
pub struct Deferred {
    before: SigSet,
}

impl Deferred {
    /// Blocks SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The system does not allow blocking signals.
    pub fn new() -> io::Result<Self> {
        let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        let before = ends.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { before })
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}

/// Makes a process group the foreground group of its terminal. The caller may be in the background, so SIGTTOU, which would stop it, is
/// blocked.
///
/// # Errors
/// The terminal does not belong to this session, or the group does not exist.
pub fn give_terminal(terminal: impl AsFd, group: Pid) -> io::Result<()> {
    let before = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let given = rustix::termios::tcsetpgrp(terminal, group);
    before.thread_set_mask()?;
    Ok(given?)
}
