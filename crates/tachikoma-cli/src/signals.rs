//! Signals to the runner, as the loop understands them.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tachikoma_core::Urgency;
use tachikoma_loop_runner::LoopHandle;
use tachikoma_loop_runner::process::wake_children;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::keys::raw;
use crate::report::Reporter;

/// Whether a loop has a terminal that may go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// It runs in the foreground: a hang-up ends it.
    Foreground,
    /// It was detached: a hang-up has it read its configuration again.
    Detached,
}

/// What a signal asks of a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To end, because of this signal.
    Stop(i32),
    /// To read its configuration again.
    Reload,
}

/// The signals that a supervisor understands.
#[derive(Debug)]
pub struct Requests {
    interrupts: Option<unix::Signal>,
    terminations: Option<unix::Signal>,
    hangups: Option<unix::Signal>,
    /// What a hang-up means: at a terminal, its end.
    hangup: Asked,
}

impl Requests {
    /// Begins to listen.
    pub fn listen(detached: bool) -> std::io::Result<Self> {
        let ignored = ignored();
        let listen = |wanted: Signal| match ignored.contains(wanted) {
            true => Ok(None),
            false => signal(SignalKind::from_raw(wanted.as_raw())).map(Some),
        };
        let at_terminal = !detached && std::io::IsTerminal::is_terminal(&std::io::stdin());
        Ok(Self {
            interrupts: listen(Signal::INT)?,
            terminations: listen(Signal::TERM)?,
            hangups: listen(Signal::HUP)?,
            hangup: match at_terminal {
                true => Asked::Stop(Signal::HUP.as_raw()),
                false => Asked::Reload,
            },
        })
    }

    /// Returns what is asked next. Cancel-safe.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            () = next(&mut self.interrupts) => Asked::Stop(Signal::INT.as_raw()),
            () = next(&mut self.terminations) => Asked::Stop(Signal::TERM.as_raw()),
            () = next(&mut self.hangups) => self.hangup,
        }
    }
}

/// With so many presses of Ctrl-C everything is said.
const PRESSES_MAX: u32 = 3;

/// After the third Ctrl-C a run that does not end in order ends all the same, and the guard ends its processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The signals that a run understands; none where whoever started us had it ignored (`nohup`, a job in the background of
/// a script): then it is not meant for us.
#[derive(Debug)]
pub struct Signals {
    interrupts: Option<UnixStream>,
    terminations: Option<unix::Signal>,
    hangups: Option<unix::Signal>,
    stops: Option<unix::Signal>,
}

impl Signals {
    /// Begins to listen: from here on none of them ends the program by itself.
    pub fn listen() -> std::io::Result<Self> {
        let ignored = ignored();
        let listen = |wanted: Signal| match ignored.contains(wanted) {
            true => Ok(None),
            false => signal(SignalKind::from_raw(wanted.as_raw())).map(Some),
        };
        let interrupts = match ignored.contains(Signal::INT) {
            true => None,
            false => {
                let (presses, press) = UnixStream::pair()?;
                signal_hook::low_level::pipe::register(Signal::INT.as_raw(), press)?;
                Some(presses)
            }
        };
        Ok(Self {
            interrupts,
            terminations: listen(Signal::TERM)?,
            hangups: listen(Signal::HUP)?,
            stops: listen(Signal::TSTP)?,
        })
    }

    /// Passes signals on for as long as the loop runs.
    pub fn watch(
        self,
        handle: LoopHandle,
        reporter: Reporter,
        terminal: Terminal,
    ) -> JoinHandle<()> {
        if let Some(presses) = self.interrupts {
            let (handle, reporter) = (handle.clone(), reporter.clone());
            // A thread of its own, which ends with the program: the third press counts also when the loop's is stuck.
            std::thread::spawn(move || count(&presses, &handle, &reporter));
        }
        let (mut terminations, mut hangups, mut stops) =
            (self.terminations, self.hangups, self.stops);
        tokio::spawn(async move {
            // Ends when it is aborted with the run.
            loop {
                tokio::select! {
                    () = next(&mut terminations) => handle.shut_down(Signal::TERM.as_raw(), Urgency::Now),
                    () = next(&mut hangups) => match terminal {
                        Terminal::Foreground => {
                            handle.shut_down(Signal::HUP.as_raw(), Urgency::Graceful);
                        }
                        // What came of it is in the journal.
                        Terminal::Detached => drop(handle.reload().await),
                    },
                    () = next(&mut stops) => suspend(&handle, &reporter).await,
                }
            }
        })
    }
}

async fn next(signal: &mut Option<unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Counts the presses of Ctrl-C: first = stop, second = now, third = kill and exit.
fn count(mut presses: &UnixStream, handle: &LoopHandle, reporter: &Reporter) {
    for press in 1..=PRESSES_MAX {
        if presses.read_exact(&mut [0]).is_err() {
            return;
        }
        handle.shut_down(Signal::INT.as_raw(), urgency_of(press));
    }
    wake_children();
    std::thread::sleep(KILL_TIMEOUT);
    reporter.hide_progress();
    raw::lend();
    std::process::exit(128 + Signal::INT.as_raw());
}

/// A set of signals, as the kernel writes it.
#[derive(Clone, Copy)]
struct Mask(u64);

impl Mask {
    fn contains(self, signal: Signal) -> bool {
        self.0 >> (signal.as_raw() - 1) & 1 == 1
    }
}

/// Returns the signals that were ignored when this program was started. Must be asked before anybody listens. Without
/// `/proc` there are none.
fn ignored() -> Mask {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    Mask(mask.unwrap_or(0))
}

fn urgency_of(presses: u32) -> Urgency {
    match presses {
        0 | 1 => Urgency::Graceful,
        2 => Urgency::Now,
        3.. => Urgency::Kill,
    }
}

/// Ctrl-Z: the agent stops, the terminal is left clean, then we stop; and all of it backwards on SIGCONT.
async fn suspend(handle: &LoopHandle, reporter: &Reporter) {
    handle.suspend().await;
    reporter.hide_progress();
    raw::lend();
    // SIGSTOP cannot be caught: this returns after SIGCONT.
    let _ = kill_process(rustix::process::getpid(), Signal::STOP);
    raw::take_back();
    handle.go_on().await;
    reporter.show_progress();
}
