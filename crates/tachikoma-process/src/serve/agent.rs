//! One agent as the guard sees it: alive, on the ladder, or gone with children left behind.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::{TICK, kill};
use crate::protocol::Report;
use crate::{Exit, Leftover, Rung, children};

/// What an agent leaves behind is asked to go first; most servers and watchers save nothing worth more than this.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

/// SIGKILL takes effect at once unless a process is stuck in the kernel, which can last; nobody should wait for that.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A fork bomb leaves thousands; the first ones tell enough.
const LEFTOVERS_NAMED_MAX: usize = 64;

/// The agent of one generation.
pub(super) struct Agent {
    generation: u64,
    leader: Pid,
    exit: Option<Exit>,
    ending: Ending,
    leftovers: Vec<Leftover>,
    leftovers_unnamed: usize,
    asked: Vec<Pid>,
}

/// How far the end of its processes has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Nobody is being ended.
    No,
    /// The agent is gone; what it left behind was asked to go.
    Asked { until: Instant },
    /// Everything is being killed.
    Killing { until: Instant },
}

/// What a step towards the end brought.
pub(super) enum Progress {
    /// Not there yet: a child's death or the tick will tell.
    Waiting,
    /// The agent is gone, and all it left behind but `survivors`.
    Ended { report: Report, survivors: Vec<Pid> },
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

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Notes the death of a child, which may be the agent itself.
    pub(super) fn died(&mut self, pid: Pid, exit: Exit, now: Instant) {
        if pid == self.leader && self.exit.is_none() {
            self.exit = Some(exit);
            if let Ending::Killing { until } = &mut self.ending {
                // Its children come to us only with its death: they get the whole time.
                *until = now + KILL_TIMEOUT;
            }
        }
        // Its id may be given to a new process, which was not asked yet.
        self.asked.retain(|other| *other != pid);
    }

    /// Takes a step of the ladder.
    pub(super) fn signal(&mut self, rung: Rung, now: Instant) {
        match rung {
            Rung::Interrupt => self.signal_group(Signal::INT),
            Rung::Terminate => {
                self.signal_group(Signal::TERM);
                self.signal_group(Signal::CONT);
            }
            Rung::Kill => {
                self.signal_group(Signal::KILL);
                self.ending = Ending::Killing {
                    until: now + KILL_TIMEOUT,
                };
            }
        }
    }

    /// Signals the agent's group; only while the agent has not been waited for, since then its id is still its own.
    pub(super) fn signal_group(&self, signal: Signal) {
        if self.exit.is_none() {
            // Nobody left in the group is as good.
            let _ = rustix::process::kill_process_group(self.leader, signal);
        }
    }

    /// Returns whether [`Self::advance`] has anything to do.
    pub(super) fn is_ending(&self) -> bool {
        self.exit.is_some() || self.ending != Ending::No
    }

    /// Returns how soon to look again without being woken.
    pub(super) fn tick(&self) -> Option<Duration> {
        match self.ending {
            Ending::No => None,
            Ending::Asked { .. } | Ending::Killing { .. } => Some(TICK),
        }
    }

    /// Goes on with the end of the agent's processes. `others_left` says whether the guard has children at all, besides
    /// those `written_off`.
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
                // While the agent itself is stuck its end cannot be reported; the runner has its own patience for that.
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
        let report = Report::Exited {
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
