//! The loop as it would have gone by other rules: the core itself decides, and the record is the world that it lives in.
//!
//! What the record cannot tell is guessed, and marked: how a turn goes on that the recorded loop ended, how an agent takes an
//! interrupt that it never got, how a reboot goes that there never was, how full a context is that was emptied earlier or later.

mod guess;

use std::time::Duration;

use guess::ROUNDS_MAX;

use super::ByPlace;
use super::decision::Side;
use super::derive::{Scene, Taken};
use super::readings::Readings;
use crate::effect::Effect;
use crate::event::LoopEvent;
use crate::input::{Input, LoopCommand, News, TurnEnd};
use crate::outcome::{Problem, Spent};
use crate::phase::{Phase, Work};
use crate::policy::Policy;
use crate::record::Record;
use crate::state::State;
use crate::step::step;
use crate::time::Timestamp;

/// The loop by other rules.
pub(super) struct Shadow {
    rules: ByPlace,
    kept: bool,
    /// Those of the rules that hold.
    pub policy: Policy,
    pub state: State,
    pub side: Side,
    /// Whether something was guessed since the iteration began.
    pub guessed: bool,
    /// Whether it ended where the recorded loop went on.
    pub over: bool,
    /// What turns cost that it ended earlier: their work has to be done all the same.
    pub owed_microusd: u64,
    /// By how much its clock is ahead, in milliseconds.
    offset: i64,
    /// Whether it has begun an attempt that the recorded loop has not.
    early: bool,
    /// Whether the recorded attempt is of no more concern to it.
    deaf: bool,
    readings: Readings,
    /// How long the last recorded reboot took.
    reboot_takes: Duration,
    /// Whether the processes of the agent are looked at in the record.
    recorded_looks: bool,
}

impl Shadow {
    pub fn new(state: State) -> Self {
        Self {
            rules: ByPlace::default(),
            kept: false,
            policy: Policy::default(),
            recorded_looks: false,
            state,
            side: Side::default(),
            guessed: false,
            over: false,
            owed_microusd: 0,
            offset: 0,
            early: false,
            deaf: false,
            readings: Readings::default(),
            reboot_takes: Duration::ZERO,
        }
    }

    pub fn set_rules(&mut self, rules: ByPlace) {
        self.policy.clone_from(rules.of(self.kept));
        self.rules = rules;
    }

    /// Begins anew where the recorded loop stands.
    pub fn begin(&mut self, state: &State) {
        self.state.clone_from(state);
        self.offset = 0;
        self.early = false;
        self.deaf = false;
        self.readings = Readings::default();
    }

    /// Lives through a step of the recorded loop, which stands at `recorded` after it.
    pub fn take(&mut self, taken: &Taken, recorded: &State) {
        let Some(first) = taken.records.first().filter(|_| !self.over) else {
            return;
        };
        if taken.kept != self.kept {
            self.kept = taken.kept;
            self.policy.clone_from(self.rules.of(self.kept));
        }
        self.recorded_looks =
            matches!(&recorded.phase, Phase::Working { work } if work.look.is_some());
        let now = self.at(first.time);
        self.overdue(now, &taken.scene);
        if let Some(input) = &taken.input {
            self.tell(now, input, taken);
        }
        for record in &taken.records {
            self.watch(record, taken, recorded);
        }
        if self.state.keep().is_some() && recorded.keep().is_none() {
            self.finish_keep(now);
        }
        if self.is_rebooting() && !matches!(recorded.phase, Phase::Rebooting { .. }) {
            self.finish_reboot(now);
        }
        let ended = |state: &State| matches!(state.phase, Phase::Ended { .. });
        self.over = ended(&self.state) && !ended(recorded);
    }

    fn watch(&mut self, record: &Record, taken: &Taken, recorded: &State) {
        if let LoopEvent::SessionStarted { .. } = &record.event {
            self.readings.recorded_anew();
        }
        if let LoopEvent::RebootCompleted { duration_ms, .. } = &record.event {
            self.reboot_takes = Duration::from_millis(*duration_ms);
        }
        if let LoopEvent::IterationStarted { .. } = &record.event {
            self.join(record, &taken.scene, recorded);
        }
    }

    /// Tells by its clock what time it is.
    fn at(&self, recorded: Timestamp) -> Timestamp {
        Timestamp::from_millis(recorded.as_millis().saturating_add(self.offset))
    }

    fn work(&self) -> Option<&Work> {
        match &self.state.phase {
            Phase::Working { work } => Some(work),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Keeping { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => None,
        }
    }

    fn is_rebooting(&self) -> bool {
        matches!(self.state.phase, Phase::Rebooting { .. })
    }

    /// Gives it one input. Of the records of a step that was cut, only as many count as were written.
    fn feed(&mut self, now: Timestamp, input: Input, written: Option<usize>) -> Vec<Effect> {
        let made = match written {
            None => step(&self.policy, &mut self.state, now, input),
            Some(written) => {
                let mut made = step(&self.policy, &mut self.state.clone(), now, input);
                made.records.truncate(written);
                made.effects.clear();
                for record in &made.records {
                    self.state.apply(record);
                }
                made
            }
        };
        for record in &made.records {
            if matches!(record.event, LoopEvent::IterationStarted { .. }) {
                self.early = true;
            }
            if matches!(record.event, LoopEvent::SessionStarted { .. }) {
                self.readings.replayed_anew();
            }
            self.side.take(&self.policy, &self.state, record);
        }
        made.effects
    }

    fn agent(&mut self, now: Timestamp, news: News, written: Option<usize>) -> Vec<Effect> {
        // What nobody is there to say is not said.
        let Some(agent) = self.state.agent else {
            return Vec::new();
        };
        let generation = agent.generation;
        self.feed(now, Input::Agent { generation, news }, written)
    }

    /// Wakes it for time-outs of its own that the recorded loop did not have.
    fn overdue(&mut self, now: Timestamp, scene: &Scene) {
        for _ in 0..ROUNDS_MAX {
            let keeps = self.state.keep().is_some();
            if self.work().is_none() && !self.is_rebooting() && !keeps {
                return;
            }
            let theirs = scene.deadline.map(|deadline| self.at(deadline));
            let ours = self.state.next_deadline(&self.policy);
            let Some(due) = ours.filter(|due| *due < now && theirs.is_none_or(|t| *due < t)) else {
                return;
            };
            let effects = self.feed(due, Input::Wake, None);
            self.react(&effects, scene.ending.is_some());
        }
    }

    fn tell(&mut self, now: Timestamp, input: &Input, taken: &Taken) {
        let scene = &taken.scene;
        let written = taken.cut.then_some(taken.records.len());
        let climbs = |record: &Record| matches!(record.event, LoopEvent::RungClimbed { .. });
        let ending = scene.ending.is_some() || taken.records.iter().any(climbs);
        let effects = match input {
            Input::Agent { news, .. } => return self.news(now, news, taken, ending),
            Input::Wake => match &self.state.phase {
                Phase::Waiting { wait } => {
                    let due = wait.until.after(lateness(scene, now, self.offset));
                    // It wakes when its next attempt is heard of, unless the recorded loop wakes from a wait as well.
                    if due > now || scene.waiting.is_none() {
                        return;
                    }
                    self.feed(due, Input::Wake, written)
                }
                Phase::Working { .. } | Phase::Keeping { .. } | Phase::Rebooting { .. } => {
                    self.feed(now, Input::Wake, written)
                }
                Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => return,
            },
            Input::Command { command, .. } => {
                // It has skipped the wait already.
                if self.early && *command == LoopCommand::SkipIteration {
                    return;
                }
                let now = match &self.state.phase {
                    Phase::Waiting { wait } => {
                        now.min(wait.until.after(lateness(scene, now, self.offset)))
                    }
                    Phase::Idle
                    | Phase::Working { .. }
                    | Phase::Keeping { .. }
                    | Phase::Rebooting { .. }
                    | Phase::Paused { .. }
                    | Phase::Ended { .. } => now,
                };
                self.feed(now, input.clone(), written)
            }
            Input::Kept { kept, .. } => {
                let (number, kept) = (self.state.kept.number, kept.clone());
                self.feed(now, Input::Kept { number, kept }, written)
            }
            Input::Start { .. }
            | Input::Snapshot { .. }
            | Input::Shutdown { .. }
            | Input::Decline { .. }
            | Input::Broken { .. }
            | Input::StoodStill { .. }
            | Input::HooksRan { .. } => self.feed(now, input.clone(), written),
            // They decide nothing.
            Input::Note { .. }
            | Input::Set { .. }
            | Input::Trouble { .. }
            | Input::DiskWasFull { .. }
            | Input::Repaired { .. } => return,
        };
        self.react(&effects, ending);
    }

    fn news(&mut self, now: Timestamp, news: &News, taken: &Taken, ending: bool) {
        let written = taken.cut.then_some(taken.records.len());
        if self.deaf || self.early {
            match news {
                News::Measured { context, .. } => self.readings.unheard(*context),
                News::Resulted(end) => self.owes(end.cost_microusd),
                News::Launched { .. }
                | News::NotLaunched { .. }
                | News::Output
                | News::Opened
                | News::Named { .. }
                | News::ToolStarted { .. }
                | News::ToolEnded { .. }
                | News::Denied { .. }
                | News::Touched { .. }
                | News::Exited { .. }
                | News::Looked { .. }
                | News::StreamEnded
                | News::GuardLost => {}
            }
            return;
        }
        let told_to_end = self.work().is_none_or(|work| work.ladder.is_some());
        let untold = taken.scene.ending.filter(|_| !told_to_end);
        let news = match news {
            News::Measured { context, answering } => {
                let would_be = self.readings.heard(*context);
                self.guessed |= would_be != *context;
                let context = would_be;
                News::Measured {
                    context,
                    answering: *answering,
                }
            }
            News::Resulted(end) => match untold {
                Some(cause) if self.goes_on(now, cause, end.cost_microusd) => return,
                Some(_) | None => News::Resulted(self.end(end)),
            },
            News::Exited { .. } | News::GuardLost => match untold {
                Some(cause) if self.goes_on(now, cause, 0) => return,
                Some(_) | None => news.clone(),
            },
            News::Named { .. } if self.readings.apart() => return,
            News::Launched { .. }
            | News::NotLaunched { .. }
            | News::Output
            | News::Opened
            | News::Named { .. }
            | News::ToolStarted { .. }
            | News::ToolEnded { .. }
            | News::Denied { .. }
            | News::Touched { .. }
            | News::Looked { .. }
            | News::StreamEnded => news.clone(),
        };
        let effects = self.agent(now, news, written);
        self.react(&effects, ending);
    }

    fn owes(&mut self, microusd: u64) {
        self.owed_microusd = self.owed_microusd.saturating_add(microusd);
    }

    /// What a turn came to, as far as it would have come to the same.
    fn end(&mut self, end: &TurnEnd) -> TurnEnd {
        let mut end = end.clone();
        if let Some(Problem::Limited { until: Some(until) }) = &mut end.problem {
            *until = Timestamp::from_millis(until.as_millis().saturating_add(self.offset));
        }
        if end.spent == Some(Spent::Full) && self.readings.is_emptier() {
            self.guessed = true;
            end = TurnEnd {
                success: true,
                cost_microusd: end.cost_microusd,
                ..TurnEnd::default()
            };
        }
        end
    }

    /// The recorded loop begins an attempt: what it does in it is the next that is heard.
    fn join(&mut self, record: &Record, scene: &Scene, recorded: &State) {
        let now = self.at(record.time);
        let late = lateness(scene, now, self.offset);
        for _ in 0..ROUNDS_MAX {
            if self.early {
                break;
            }
            match &self.state.phase {
                Phase::Waiting { wait } => {
                    let due = wait.until.after(late);
                    let _ = self.feed(due, Input::Wake, None);
                }
                Phase::Keeping { .. } => self.finish_keep(now),
                Phase::Rebooting { .. } => self.finish_reboot(now),
                Phase::Working { .. } => self.run_out(now),
                Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => break,
            }
        }
        self.deaf = !self.early;
        self.early = false;
        let Some(work) = self.work().filter(|_| !self.deaf) else {
            return;
        };
        let (started, is_up) = (work.started, work.launched.is_some());
        self.offset = started.as_millis() - record.time.as_millis();
        let was_up = match &recorded.phase {
            Phase::Working { work } => work.reused,
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Keeping { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => false,
        };
        if was_up && !is_up {
            let (now, pid) = (self.state.time, 0);
            let effects = self.agent(now, News::Launched { pid }, None);
            self.react(&effects, false);
        }
    }
}

/// How much later than it could the recorded loop ended its wait.
fn lateness(scene: &Scene, now: Timestamp, offset: i64) -> Duration {
    let recorded = Timestamp::from_millis(now.as_millis().saturating_sub(offset));
    scene
        .waiting
        .map_or(Duration::ZERO, |wait| recorded.since(wait.until))
}
