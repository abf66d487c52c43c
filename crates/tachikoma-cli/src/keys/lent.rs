//! The terminal is lent to an editor or a pager: that is in the foreground, in a process group of its own, so that Ctrl-C there is meant
//! for it and not for the loop.

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
use tachikoma_loop_runner::process::{Attended, Operators, give_terminal};

use super::raw;

/// How soon it is noticed that the terminal is ours again.
const LOOK: Duration = Duration::from_millis(20);

/// So long it may take until the loop is stopped because its editor is. Where Ctrl-Z is not for us, nothing is.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Who has the terminal.
static GUEST: Mutex<Option<Pid>> = Mutex::new(None);

fn guest() -> MutexGuard<'static, Option<Pid>> {
    GUEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whose a program is that has the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The operator's own: what it asks, the operator asks.
    Operators,
    /// It runs what the repository names, which may be the agent's.
    Nobodys,
}

/// Runs something that has the terminal for itself. However it ends, the terminal is ours and as it was.
pub fn run(command: &mut Command, whose: Whose) -> io::Result<ExitStatus> {
    raw::lend();
    let lent = Lent {
        modes: tcgetattr(stdin()).ok(),
    };
    command.process_group(0);
    // Known as what it is until it has ended.
    let operators;
    let attended;
    let pid = match whose {
        Whose::Operators => {
            operators = Operators::spawn(command)?;
            operators.pid()
        }
        Whose::Nobodys => {
            attended = Attended::spawn(command)?.1;
            attended.pid()
        }
    };
    lent.allow_writing();
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
        lent.take_back();
        stop_with_it();
        lent.allow_writing();
        hand_over(pid);
    }
}

/// The program ends: whoever has its terminal is asked to go, and does not get the shell's keys. Returns whether somebody had it.
pub fn call_back() -> bool {
    let guest = guest().take();
    if let Some(pid) = guest {
        let _ = kill_process_group(pid, Signal::TERM);
        take_from(pid);
    }
    guest.is_some()
}

/// A terminal that somebody else has by now, a shell, is not ours to take.
fn take_from(guest: Pid) -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == guest)
        && give_terminal(stdin(), getpgrp()).is_ok()
}

/// Who reads before it has the terminal is stopped for that, and goes on now.
fn hand_over(pid: Pid) {
    *guest() = Some(pid);
    let _ = give_terminal(stdin(), pid);
    let _ = kill_process_group(pid, Signal::CONT);
}

/// Ctrl-Z in the editor is one for all of us: the shell wants its terminal. Returns when the terminal is ours again.
fn stop_with_it() {
    let before = raw::times_taken_back();
    let _ = kill_process(getpid(), Signal::TSTP);
    let asked = Instant::now();
    while raw::times_taken_back() == before && asked.elapsed() < STOP_TIMEOUT {
        std::thread::sleep(LOOK);
    }
    // In the background it waits for `fg`.
    while !raw::is_ours() {
        std::thread::sleep(LOOK);
    }
    raw::lend();
}

/// The terminal, while somebody else has it.
struct Lent {
    /// As it was before.
    modes: Option<Termios>,
}

impl Lent {
    /// The loop goes on meanwhile: what it says must not stop it, also where the user has background writers stopped.
    fn allow_writing(&self) {
        if let Some(modes) = &self.modes
            && modes.local_modes.contains(LocalModes::TOSTOP)
        {
            let mut modes = modes.clone();
            modes.local_modes.remove(LocalModes::TOSTOP);
            let _ = tcsetattr(stdin(), OptionalActions::Now, &modes);
        }
    }

    fn take_back(&self) {
        let taken = guest().take().is_some_and(take_from);
        // Who dies in the middle does not put it in order.
        if let Some(modes) = self.modes.as_ref().filter(|_| taken) {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.take_back();
        raw::take_back();
    }
}
