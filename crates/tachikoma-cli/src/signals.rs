//! Signals to the runner, as the loop understands them.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tachikoma_core::Urgency;
use tachikoma_loop_runner::LoopHandle;
use tachikoma_loop_runner::opencode::supervisor::SupervisorHandle;
use tachikoma_loop_runner::process::{self, wake_children};
use tokio::sync::mpsc::{Receiver, Sender, channel};
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
    signals: process::Signals,
    /// What a hang-up means: at a terminal, its end.
    hangup: Asked,
}

impl Requests {
    /// Begins to listen.
    pub fn listen(detached: bool) -> std::io::Result<Self> {
        let at_terminal = !detached && std::io::IsTerminal::is_terminal(&std::io::stdin());
        Ok(Self {
            signals: listen(&[Signal::INT, Signal::TERM, Signal::HUP])?,
            hangup: match at_terminal {
                true => Asked::Stop(Signal::HUP.as_raw()),
                false => Asked::Reload,
            },
        })
    }

    /// Returns what the operator asks. What agents and tools of the server send is recorded. As with a run, who is gone may end it
    /// and may not choose its rules.
    pub fn of(self, handle: SupervisorHandle) -> Receiver<Asked> {
        let (ask, asked) = channel(SLOW_MAX);
        let Self { signals, hangup } = self;
        std::thread::spawn(move || {
            signals.hear(|signal, sender| {
                let wanted = match signal == Signal::HUP.as_raw() {
                    true => hangup,
                    false => Asked::Stop(signal),
                };
                if handle.is_operators(signal, sender, wanted != Asked::Reload) {
                    // When the queue is full, it was asked often enough.
                    let _ = ask.try_send(wanted);
                }
            });
        });
        asked
    }
}

/// Listens to signals, but for those that whoever started us had ignored.
fn listen(wanted: &[Signal]) -> std::io::Result<process::Signals> {
    let ignored = ignored();
    let wanted = wanted.iter().filter(|wanted| !ignored.contains(**wanted));
    let wanted: Vec<i32> = wanted.map(|wanted| wanted.as_raw()).collect();
    process::Signals::listen(&wanted)
}

/// With so many presses of Ctrl-C everything is said.
const PRESSES_MAX: u32 = 3;

/// After the third Ctrl-C a run that does not end in order ends all the same, and the guard ends its processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The signals that a run understands; none where whoever started us had it ignored (`nohup`, a job in the background of
/// a script): then it is not meant for us.
#[derive(Debug)]
pub struct Signals(process::Signals);

/// What a signal asks of a run that takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Reload,
    Suspend,
}

/// Whoever asks more often than that is answered already.
const SLOW_MAX: usize = 8;

impl Signals {
    /// Begins to listen: from here on none of them ends the program by itself.
    pub fn listen() -> std::io::Result<Self> {
        listen(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::TSTP]).map(Self)
    }

    /// Passes signals on for as long as the loop runs: those of the operator. What the agent sends is recorded.
    pub fn watch(
        self,
        handle: LoopHandle,
        reporter: Reporter,
        terminal: Terminal,
    ) -> JoinHandle<()> {
        let (slow, mut asked) = channel(SLOW_MAX);
        let mut heard = Heard {
            handle: handle.clone(),
            reporter: reporter.clone(),
            terminal,
            presses: 0,
            slow,
        };
        // A thread of its own, which ends with the program: it looks at who sent a signal before they are gone, and the third press
        // counts also when the loop's is stuck.
        std::thread::spawn(move || self.0.hear(|signal, sender| heard.take(signal, sender)));
        tokio::spawn(async move {
            // Ends when it is aborted with the run.
            while let Some(asked) = asked.recv().await {
                match asked {
                    Slow::Suspend => suspend(&handle, &reporter).await,
                    Slow::Reload => {
                        let handle = handle.clone();
                        // What came of it is in the journal, and other signals do not wait for it.
                        tokio::spawn(async move { drop(handle.reload().await) });
                    }
                }
            }
        })
    }
}

/// Who hears the signals of a run.
struct Heard {
    handle: LoopHandle,
    reporter: Reporter,
    terminal: Terminal,
    /// Of Ctrl-C.
    presses: u32,
    slow: Sender<Slow>,
}

impl Heard {
    fn take(&mut self, signal: i32, sender: process::Sender) {
        let reloads = signal == Signal::HUP.as_raw() && self.terminal == Terminal::Detached;
        // Who is gone cannot be told from the agent. To have it end the loop is no more than it could do with SIGKILL; to have it
        // choose its rules is.
        if !self.handle.is_operators(signal, sender, !reloads) {
            return;
        }
        if signal == Signal::INT.as_raw() {
            self.press();
        } else if signal == Signal::TERM.as_raw() {
            self.handle.shut_down(signal, Urgency::Now);
        } else if signal == Signal::HUP.as_raw() {
            match self.terminal {
                Terminal::Foreground => self.handle.shut_down(signal, Urgency::Graceful),
                Terminal::Detached => self.later(Slow::Reload),
            }
        } else {
            self.later(Slow::Suspend);
        }
    }

    fn later(&self, slow: Slow) {
        // When the queue is full, it was asked often enough.
        let _ = self.slow.try_send(slow);
    }

    /// Counts the presses of Ctrl-C: first = stop, second = now, third = kill and exit.
    fn press(&mut self) {
        self.presses += 1;
        let signal = Signal::INT.as_raw();
        self.handle.shut_down(signal, urgency_of(self.presses));
        if self.presses < PRESSES_MAX {
            return;
        }
        wake_children();
        std::thread::sleep(KILL_TIMEOUT);
        self.reporter.hide_progress();
        raw::lend();
        std::process::exit(128 + signal);
    }
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
