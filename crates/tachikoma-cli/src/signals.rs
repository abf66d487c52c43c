//! Signals to the runner, and their effects on the loop.

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

/// Whether a loop runs in a terminal that can hang up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The loop runs in the foreground: SIGHUP ends it.
    Foreground,
    /// The loop is detached: SIGHUP reloads its configuration.
    Detached,
}

/// The request that a signal makes to a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Stop, because of the signal with this number.
    Stop(i32),
    /// Reload the configuration.
    Reload,
}

/// The signals of a supervisor.
#[derive(Debug)]
pub struct Requests {
    signals: process::Signals,
    /// The meaning of SIGHUP: stop in a terminal, reload when detached.
    hangup: Asked,
}

impl Requests {
    /// Starts listening for signals.
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

    /// Returns the operator's requests. Signals of agents and tools are refused and recorded. A sender that has ended may stop the server,
    /// as with a run, but may not reload its configuration.
    pub fn of(self, handle: SupervisorHandle) -> Receiver<Asked> {
        let (ask, asked) = channel(SLOW_MAX);
        let Self { signals, hangup } = self;
        std::thread::spawn(move || {
            signals.for_each(|signal, sender| {
                let wanted = match signal == Signal::HUP.as_raw() {
                    true => hangup,
                    false => Asked::Stop(signal),
                };
                if handle.is_operators(signal, sender, wanted != Asked::Reload) {
                    // If the queue is full, it already contains enough requests.
                    let _ = ask.try_send(wanted);
                }
            });
        });
        asked
    }
}

/// Listens for signals, except those that were ignored when this program was started.
fn listen(wanted: &[Signal]) -> std::io::Result<process::Signals> {
    let ignored = ignored();
    let wanted = wanted.iter().filter(|wanted| !ignored.contains(**wanted));
    let wanted: Vec<i32> = wanted.map(|wanted| wanted.as_raw()).collect();
    process::Signals::listen(&wanted)
}

/// Number of Ctrl-C presses that have different effects. Further presses have no effect.
const PRESSES_MAX: u32 = 3;

/// How long the run may take to end after the third Ctrl-C. After that this program exits, and the guard ends all processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The signals of a run. Signals that were ignored at the start (`nohup`, a background job of
/// a script) are not listened to, because they are not meant for this program.
#[derive(Debug)]
pub struct Signals(process::Signals);

/// A request that takes some time. A task handles it, so that the signal thread is not blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Reload,
    Suspend,
}

/// Size of the queue of slow requests. When it is full, further requests are dropped, because they would change nothing.
const SLOW_MAX: usize = 8;

impl Signals {
    /// Starts listening for signals. From now on they no longer end the program by default.
    pub fn listen() -> std::io::Result<Self> {
        listen(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::TSTP]).map(Self)
    }

    /// Forwards signals of the operator to the loop until it ends. Signals of the agent are refused and recorded.
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
        // A separate thread identifies the sender of a signal before that process exits. The third Ctrl-C
        // works even if the thread of the loop is blocked.
        std::thread::spawn(move || self.0.for_each(|signal, sender| heard.take(signal, sender)));
        tokio::spawn(async move {
            // This task ends when it is aborted with the run.
            while let Some(asked) = asked.recv().await {
                match asked {
                    Slow::Suspend => suspend(&handle, &reporter).await,
                    Slow::Reload => {
                        let handle = handle.clone();
                        // The reload runs in its own task, so that other signals do not wait for it. The journal has the result.
                        tokio::spawn(async move { drop(handle.reload().await) });
                    }
                }
            }
        })
    }
}

/// Handles the signals of a run.
struct Heard {
    handle: LoopHandle,
    reporter: Reporter,
    terminal: Terminal,
    /// Number of times that Ctrl-C was pressed.
    presses: u32,
    slow: Sender<Slow>,
}

impl Heard {
    fn take(&mut self, signal: i32, sender: process::Sender) {
        let reloads = signal == Signal::HUP.as_raw() && self.terminal == Terminal::Detached;
        // A sender that has ended could be the agent. It may end the loop, which it could also do with SIGKILL. It may not reload
        // the configuration.
        if !self.handle.is_operators(signal, sender, !reloads) {
            return;
        }
        if signal == Signal::INT.as_raw() {
            self.interrupt();
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
        // If the queue is full, it already contains enough requests.
        let _ = self.slow.try_send(slow);
    }

    /// Handles a press of Ctrl-C: the first one stops, the second one stops now, the third one kills and exits.
    fn interrupt(&mut self) {
        self.presses += 1;
        let signal = Signal::INT.as_raw();
        self.handle.shut_down(signal, urgency_of(self.presses));
        if self.presses < PRESSES_MAX {
            return;
        }
        wake_children();
        std::thread::sleep(KILL_TIMEOUT);
        self.reporter.hide_progress();
        raw::release();
        std::process::exit(128 + signal);
    }
}

/// A set of signals in the format of `/proc/self/status`.
#[derive(Clone, Copy)]
struct Mask(u64);

impl Mask {
    fn contains(self, signal: Signal) -> bool {
        self.0 >> (signal.as_raw() - 1) & 1 == 1
    }
}

/// Returns the signals that were ignored when this program was started. Must be called before handlers are installed. Without
/// `/proc` the set is empty.
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

/// Handles Ctrl-Z: suspends the agent, restores the terminal, and then suspends this process. SIGCONT reverses this.
async fn suspend(handle: &LoopHandle, reporter: &Reporter) {
    handle.suspend().await;
    reporter.hide_progress();
    raw::release();
    // SIGSTOP cannot be caught, so this call returns after SIGCONT.
    let _ = kill_process(rustix::process::getpid(), Signal::STOP);
    raw::reclaim();
    handle.go_on().await;
    reporter.show_progress();
}
