//! Gives the terminal to an editor or a pager, which runs in the foreground in its own process group, so that Ctrl-C
//! does not reach the loop.

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, getpid, kill_process, kill_process_group, waitpid,
};
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use tachikoma_loop_runner::process::{Attended, OperatorProgram, give_terminal};

use super::raw;

/// How often to check whether the terminal is free again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time for the loop to stop after Ctrl-Z in its editor. Without job control nothing stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The program that has the terminal.
static RUNNING: Mutex<Option<Pid>> = Mutex::new(None);

fn running() -> MutexGuard<'static, Option<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a program that has the terminal may control the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Yes: its requests count as those of the operator.
    Operator,
    /// No: the repository names the program, so the agent may have chosen it.
    Refused,
}

/// Runs a program that has the terminal for itself. Restores the terminal in any case.
pub fn run(command: &mut Command, control: Control) -> io::Result<ExitStatus> {
    raw::release();
    let loan = TerminalLoan {
        modes: tcgetattr(stdin()).ok(),
    };
    command.process_group(0);
    // Registered until it has ended.
    let operators;
    let attended;
    let pid = match control {
        Control::Operator => {
            operators = OperatorProgram::spawn(command)?;
            operators.pid()
        }
        Control::Refused => {
            attended = Attended::spawn(command)?.1;
            attended.pid()
        }
    };
    loan.allow_writing();
    hand_over(pid);
    loop {
        let status = match waitpid(Some(pid), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if !status.stopped() {
            return Ok(ExitStatus::from_raw(status.as_raw()));
        }
        loan.return_terminal();
        stop_with_it();
        loan.allow_writing();
        hand_over(pid);
    }
}

/// At the end of the program: ends the program that has the terminal, so that it does not get the shell's keys. Returns whether there was one.
pub fn end() -> bool {
    let guest = running().take();
    if let Some(pid) = guest {
        let _ = kill_process_group(pid, Signal::TERM);
        take_from(pid);
    }
    guest.is_some()
}

/// A terminal that a shell has by now is not taken back.
fn take_from(guest: Pid) -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == guest)
        && give_terminal(stdin(), getpgrp()).is_ok()
}

/// A program that reads before it has the terminal is stopped by the kernel, and continues now.
fn hand_over(pid: Pid) {
    *running() = Some(pid);
    let _ = give_terminal(stdin(), pid);
    let _ = kill_process_group(pid, Signal::CONT);
}

/// Ctrl-Z in the editor stops the loop too, because the shell wants its terminal. Returns when the terminal is free again.
fn stop_with_it() {
    let before = raw::times_reclaimed();
    let _ = kill_process(getpid(), Signal::TSTP);
    let asked = Instant::now();
    while raw::times_reclaimed() == before && asked.elapsed() < STOP_TIMEOUT {
        std::thread::sleep(POLL_INTERVAL);
    }
    // In the background it waits for `fg`.
    while !raw::is_ours() {
        std::thread::sleep(POLL_INTERVAL);
    }
    raw::release();
}

/// The terminal, while another program has it.
struct TerminalLoan {
    /// The mode before.
    modes: Option<Termios>,
}

impl TerminalLoan {
    /// The loop continues meanwhile: its output must not stop it, even if the terminal stops background writers.
    fn allow_writing(&self) {
        if let Some(modes) = &self.modes
            && modes.local_modes.contains(LocalModes::TOSTOP)
        {
            let mut modes = modes.clone();
            modes.local_modes.remove(LocalModes::TOSTOP);
            let _ = tcsetattr(stdin(), OptionalActions::Now, &modes);
        }
    }

    fn return_terminal(&self) {
        let taken = running().take().is_some_and(take_from);
        // A program that is killed does not restore the terminal.
        if let Some(modes) = self.modes.as_ref().filter(|_| taken) {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }
}

impl Drop for TerminalLoan {
    fn drop(&mut self) {
        self.return_terminal();
        raw::reclaim();
    }
}
