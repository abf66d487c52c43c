//! The clocks of an iteration under way.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::activity::{Activity, Busy};
use crate::id::Generation;
use crate::phase::{Phase, Work};
use crate::policy::{Policy, timeout};
use crate::state::State;
use crate::time::Timestamp;

impl State {
    /// The attempt under way is over without a result; its iteration is owed.
    pub(super) fn cut_short(&mut self, agent_lives: bool) {
        self.cut = true;
        if !agent_lives {
            self.agent = None;
        }
        self.phase = Phase::Idle;
    }

    pub(super) fn begin_work(&mut self, generation: Generation, time: Timestamp) {
        let mut work = Work::new(generation, time);
        match self.agent.filter(|agent| agent.generation == generation) {
            // The process of the session is up, and gets its next prompt.
            Some(agent) => {
                work.pid = agent.pid;
                work.launched = Some(time);
                work.reused = true;
            }
            None => self.launching(generation),
        }
        let work = Box::new(work);
        self.phase = Phase::Working { work };
    }
}

impl Work {
    /// Moves every moment from which a time-out counts.
    pub(super) fn postpone(&mut self, duration: Duration) {
        let moments = [&mut self.started, &mut self.active]
            .into_iter()
            .chain(&mut self.launched)
            .chain(&mut self.stream_ended)
            .chain(&mut self.look)
            .chain(self.busy.as_mut().map(|busy| &mut busy.time))
            .chain(self.tools.values_mut().map(|tool| &mut tool.since))
            .chain(self.result.as_mut().map(|result| &mut result.time))
            .chain(
                self.ending
                    .as_mut()
                    .map(|ending| &mut ending.boundary_until),
            )
            .chain(self.ladder.as_mut().map(|ladder| &mut ladder.until));
        for moment in moments {
            *moment = moment.after(duration);
        }
    }

    /// Notes that the agent was heard of: whatever was to be found out about its silence does not matter any more.
    pub(super) fn heard(&mut self, time: Timestamp) {
        // What it says to our interrupt is no sign of life, and must not hide what was seen before.
        if self.ladder.is_some() {
            return;
        }
        self.spoke = true;
        self.active = time;
        self.look = None;
        self.busy = None;
    }

    /// Notes that its processes are at work.
    pub(super) fn seen(&mut self, activity: Activity, time: Timestamp) {
        self.look = None;
        self.busy = Some(Busy { time, activity });
    }

    pub(super) fn new(generation: Generation, started: Timestamp) -> Self {
        Self {
            generation,
            started,
            pid: None,
            launched: None,
            reused: false,
            active: started,
            spoke: false,
            answering: false,
            look: None,
            busy: None,
            stream_ended: None,
            tools: BTreeMap::new(),
            result: None,
            ending: None,
            ladder: None,
        }
    }

    /// Returns the moment at which something about the iteration is due.
    pub(super) fn deadline(&self, policy: &Policy) -> Option<Timestamp> {
        let work = self;
        if let Some(ladder) = work.ladder {
            return Some(ladder.until);
        }
        let timeout = timeout::next(policy, work).map(|(time, _)| time);
        // An ending that waits for a launch in flight is bounded by the launch's own time-out.
        let boundary = work
            .ending
            .filter(|_| work.launched.is_some())
            .map(|ending| ending.boundary_until);
        boundary.into_iter().chain(timeout).min()
    }
}
