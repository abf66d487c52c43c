//! Signals to the runner, as the loop understands them.

use rustix::process::{Signal, kill_process};
use tachikoma_core::Urgency;
use tachikoma_loop_runner::LoopHandle;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::report::Reporter;

/// Whether a loop has a terminal that may go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// It runs in the foreground: a hang-up ends it.
    Foreground,
    /// It was detached: a hang-up is none of its business.
    Detached,
}

/// The signals that a run understands.
#[derive(Debug)]
pub struct Signals {
    interrupts: unix::Signal,
    terminations: unix::Signal,
    hangups: unix::Signal,
    stops: unix::Signal,
}

impl Signals {
    /// Begins to listen: from here on none of them ends the program by itself.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupts: signal(SignalKind::interrupt())?,
            terminations: signal(SignalKind::terminate())?,
            hangups: signal(SignalKind::hangup())?,
            stops: signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?,
        })
    }

    /// Passes signals on for as long as the loop runs. First Ctrl-C = stop, second = now, third = kill.
    pub async fn watch(mut self, handle: LoopHandle, reporter: Reporter, terminal: Terminal) {
        let mut presses = 0_u32;
        // Ends when it is aborted with the run.
        loop {
            tokio::select! {
                _ = self.interrupts.recv() => {
                    presses += 1;
                    handle.shut_down(Signal::INT.as_raw(), urgency_of(presses));
                }
                _ = self.terminations.recv() => handle.shut_down(Signal::TERM.as_raw(), Urgency::Now),
                _ = self.hangups.recv() => if terminal == Terminal::Foreground {
                    handle.shut_down(Signal::HUP.as_raw(), Urgency::Graceful);
                },
                _ = self.stops.recv() => suspend(&handle, &reporter).await,
            }
        }
    }
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
    // SIGSTOP cannot be caught: this returns after SIGCONT.
    let _ = kill_process(rustix::process::getpid(), Signal::STOP);
    handle.go_on().await;
    reporter.show_progress();
}
