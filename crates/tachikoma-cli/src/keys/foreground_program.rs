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

/// Interval between checks whether the terminal is free again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait until the loop is suspended after Ctrl-Z in its editor. Without job control it is not suspended.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Process id of the program that has the terminal; `None` if there is none.
static RUNNING: Mutex<Option<Pid>> = Mutex::new(None);

fn running() -> MutexGuard<'static, Option<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a program that has the terminal may control the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The program may control the loop: its requests count as those of the operator.
    Operator,
    /// The program may not control the loop: the repository configures it, so the agent may have chosen it.
    Refused,
}

/// Runs a program in the foreground of the terminal. The terminal is restored in any case.
pub fn run(command: &mut Command, control: Control) -> io::Result<ExitStatus> {
    raw::release();
    let loan = TerminalLoan {
        modes: tcgetattr(stdin()).ok(),
    };
    command.process_group(0);
    // The program is registered as the operator's until it has ended.
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

/// Ends the program that has the terminal when this program ends, so that it does not read the shell's input. Returns whether there was one.
pub fn end() -> bool {
    let guest = running().take();
    if let Some(pid) = guest {
        let _ = kill_process_group(pid, Signal::TERM);
        take_from(pid);
    }
    guest.is_some()
}

/// Takes the terminal back from a program. Does nothing if a shell has the terminal by now.
fn take_from(guest: Pid) -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == guest)
        && give_terminal(stdin(), getpgrp()).is_ok()
}

/// Gives the terminal to a program. If it tried to read before, the kernel suspended it, so it is continued now.
fn hand_over(pid: Pid) {
    *running() = Some(pid);
    let _ = give_terminal(stdin(), pid);
    let _ = kill_process_group(pid, Signal::CONT);
}

/// Suspends the loop after Ctrl-Z in the editor, because the shell needs the terminal. Returns when the terminal is free again.
fn stop_with_it() {
    let before = raw::times_reclaimed();
    let _ = kill_process(getpid(), Signal::TSTP);
    let asked = Instant::now();
    while raw::times_reclaimed() == before && asked.elapsed() < STOP_TIMEOUT {
        std::thread::sleep(POLL_INTERVAL);
    }
    // After `bg`, the loop waits here until `fg`.
    while !raw::is_ours() {
        std::thread::sleep(POLL_INTERVAL);
    }
    raw::release();
}

/// Restores the terminal after another program had it.
struct TerminalLoan {
    /// Terminal mode before the other program started; `None` if it is unknown.
    modes: Option<Termios>,
}

impl TerminalLoan {
    /// Lets the loop write while another program has the terminal, even if the terminal is set to suspend background writers.
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
        // The mode is restored, because a killed program does not restore it.
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
