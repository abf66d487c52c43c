//! State of one agent in the guard: running, being ended, or ended with leftover processes.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::{TICK, kill};
use crate::protocol::GuardReport;
use crate::{Exit, Leftover, StopSignal, children};

/// Time for leftover processes of an agent to end after SIGTERM. Most servers and watchers have little to save.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

/// How long to wait for killed processes. SIGKILL takes effect at once unless a process is stuck in the kernel, which can last long.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of leftover processes that are reported one by one. A fork bomb leaves thousands of processes.
const LEFTOVERS_NAMED_MAX: usize = 64;

/// One agent, identified by its generation.
pub(super) struct Agent {
    pub(super) generation: u64,
    leader: Pid,
    exit: Option<Exit>,
    ending: Ending,
    leftovers: Vec<Leftover>,
    leftovers_unnamed: usize,
    asked: Vec<Pid>,
}

/// Progress of ending the agent's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// No process is being ended.
    No,
    /// The agent has ended, and its leftover processes got SIGTERM.
    Asked { until: Instant },
    /// All processes are being killed.
    Killing { until: Instant },
}

/// Result of a step in ending the agent's processes.
pub(super) enum Progress {
    /// Not finished. The death of a child or the tick causes the next step.
    Waiting,
    /// The agent and its leftover processes have ended, except for `survivors`.
    Ended {
        report: GuardReport,
        survivors: Vec<Pid>,
    },
}

impl Agent {
    pub(super) fn new(generation: u64, leader: Pid) -> Self {
        Self {
            generation,
            leader,
            exit: None,
            ending: Ending::No,
            leftovers: Vec::new(),
            leftovers_unnamed: 0,
            asked: Vec::new(),
        }
    }

    /// Notes the death of a child, which may be the agent itself.
    pub(super) fn died(&mut self, pid: Pid, exit: Exit, now: Instant) {
        if pid == self.leader && self.exit.is_none() {
            self.exit = Some(exit);
            if let Ending::Killing { until } = &mut self.ending {
                // The agent's children become children of the guard only now, so they get the whole time to end.
                *until = now + KILL_TIMEOUT;
            }
        }
        // A new process may reuse the id, and has not received SIGTERM yet.
        self.asked.retain(|other| *other != pid);
    }

    /// Interrupts, terminates or kills the agent with a signal.
    pub(super) fn signal(&mut self, signal: StopSignal, now: Instant) {
        match signal {
            StopSignal::Interrupt => self.signal_group(Signal::INT),
            StopSignal::Terminate => {
                self.signal_group(Signal::TERM);
                self.signal_group(Signal::CONT);
            }
            StopSignal::Kill => {
                self.signal_group(Signal::KILL);
                self.ending = Ending::Killing {
                    until: now + KILL_TIMEOUT,
                };
            }
        }
    }

    /// Sends a signal to the agent's process group, unless the agent was reaped: then another process may have its id.
    pub(super) fn signal_group(&self, signal: Signal) {
        if self.exit.is_none() {
            // Sending fails if the group is empty, which does not matter.
            let _ = rustix::process::kill_process_group(self.leader, signal);
        }
    }

    /// Returns whether [`Self::advance`] has anything to do.
    pub(super) fn is_ending(&self) -> bool {
        self.exit.is_some() || self.ending != Ending::No
    }

    /// Returns the time until the next step if no event happens before.
    pub(super) fn tick(&self) -> Option<Duration> {
        match self.ending {
            Ending::No => None,
            Ending::Asked { .. } | Ending::Killing { .. } => Some(TICK),
        }
    }

    /// Takes the next step in ending the agent's processes. `others_left` says whether the guard has children that are not `written_off`.
    pub(super) fn advance(
        &mut self,
        others_left: bool,
        written_off: &[Pid],
        now: Instant,
    ) -> Progress {
        if let (Some(exit), false) = (self.exit, others_left) {
            return self.ended(exit, Vec::new());
        }
        let mut remaining = children::own();
        remaining.retain(|child| !written_off.contains(child));
        match self.ending {
            Ending::No => {
                self.ask(&remaining);
                let until = now + LEFTOVER_GRACE;
                self.ending = Ending::Asked { until };
            }
            Ending::Asked { until } if now < until => self.ask(&remaining),
            Ending::Asked { .. } => {
                kill_all(&remaining);
                let until = now + KILL_TIMEOUT;
                self.ending = Ending::Killing { until };
            }
            Ending::Killing { until } => {
                kill_all(&remaining);
                // The end of an agent that is stuck in the kernel cannot be reported. The runner has its own timeout for that.
                if let (Some(exit), true) = (self.exit, now >= until) {
                    return self.ended(exit, remaining);
                }
            }
        }
        Progress::Waiting
    }

    fn ask(&mut self, remaining: &[Pid]) {
        for child in remaining {
            if self.asked.contains(child) {
                continue;
            }
            self.asked.push(*child);
            let dead = children::stat(*child).is_none_or(|stat| stat.dead);
            if !dead {
                self.name(*child);
                kill(*child, Signal::TERM);
                kill(*child, Signal::CONT);
            }
        }
    }

    fn name(&mut self, child: Pid) {
        if self.leftovers.len() < LEFTOVERS_NAMED_MAX {
            self.leftovers.push(children::describe(child));
        } else {
            self.leftovers_unnamed += 1;
        }
    }

    fn ended(&mut self, exit: Exit, survivors: Vec<Pid>) -> Progress {
        for survivor in &survivors {
            let pid = survivor.as_raw_pid();
            if !self.leftovers.iter().any(|named| named.pid == pid) {
                self.leftovers.push(children::describe(*survivor));
            }
            for named in self.leftovers.iter_mut().filter(|named| named.pid == pid) {
                named.unkillable = true;
            }
        }
        let report = GuardReport::Exited {
            generation: self.generation,
            exit,
            leftovers: std::mem::take(&mut self.leftovers),
            leftovers_unnamed: self.leftovers_unnamed,
        };
        Progress::Ended { report, survivors }
    }
}

fn kill_all(remaining: &[Pid]) {
    for child in remaining {
        kill(*child, Signal::KILL);
    }
}
