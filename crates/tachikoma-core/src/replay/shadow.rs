//! The loop as it would have gone by other rules: the core itself decides, and the record is the world that it lives in.
//!
//! What the record cannot tell is guessed, and marked: how a turn goes on that the recorded loop ended, how an agent takes an
//! interrupt that it never got, how a reboot goes that there never was, how full a context is that was emptied earlier or later.

mod check;
mod guess;
mod news;

use std::collections::BTreeMap;
use std::time::Duration;

use guess::{ROUNDS_MAX, is_closing};

use super::ByPlace;
use super::decision::Side;
use super::derive::{Scene, Taken};
use super::readings::Readings;
use crate::apply::apply;
use crate::completion::{Check, GateResult, ObjectivesSeen};
use crate::effect::Effect;
use crate::event::LoopEvent;
use crate::input::{Input, LoopCommand, News};
use crate::ledger::TurnSpending;
use crate::operator::Wish;
use crate::phase::{Phase, Work};
use crate::policy::Policy;
use crate::policy::budget::{Budgets, out_of_time};
use crate::policy::timeout::next_deadline;
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
    /// What was taken for granted for it, in words.
    pub assumed: Vec<String>,
    /// What turns spent that it ended earlier: their work has to be done all the same.
    pub owed: TurnSpending,
    /// What it spent of that itself.
    heard: TurnSpending,
    /// By how much its clock is ahead, in milliseconds.
    offset: i64,
    /// Whether it has begun an attempt that the recorded loop has not.
    early: bool,
    /// Whether the recorded attempt is of no more concern to it.
    deaf: bool,
    readings: Readings,
    /// By how many tokens the answers of the turn under way would have been longer or shorter.
    more_tokens: i64,
    /// The same of the answer under way.
    more_in_answer: i64,
    /// How each gate went last in the record.
    gates: BTreeMap<String, GateResult>,
    /// What the objectives were when they were last read in the record.
    objectives: Option<ObjectivesSeen>,
    /// What was last found out in the record.
    recorded_check: Option<Check>,
    /// What the recorded loop might spend: only of that is told what a turn spends before its end.
    recorded_budgets: Budgets,
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
            assumed: Vec::new(),
            owed: TurnSpending::default(),
            heard: TurnSpending::default(),
            more_tokens: 0,
            more_in_answer: 0,
            gates: BTreeMap::new(),
            objectives: None,
            recorded_check: None,
            recorded_budgets: Budgets::default(),
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
        self.recorded_budgets = taken.scene.budgets;
        let now = self.at(first.time);
        self.overdue(now, &taken.scene);
        if let Some(input) = &taken.input {
            self.tell(now, input, taken);
        }
        for record in &taken.records {
            self.watch(record, taken, recorded);
        }
        self.catch_up(now, recorded);
        let ended = |state: &State| matches!(state.phase, Phase::Ended { .. });
        self.over = ended(&self.state) && !ended(recorded);
    }

    /// Comes to an end with what the recorded loop is not at, or not any more.
    fn catch_up(&mut self, now: Timestamp, recorded: &State) {
        if !is_closing(recorded) {
            self.finish_closing(now);
        }
        for _ in 0..ROUNDS_MAX {
            if self.state.keep().is_some() && recorded.keep().is_none() {
                self.finish_keep(now);
            } else if self.state.check().is_some() && recorded.check().is_none() {
                self.finish_check(now);
            } else if self.is_rebooting() && !matches!(recorded.phase, Phase::Rebooting { .. }) {
                self.finish_reboot(now);
            } else {
                return;
            }
        }
    }

    fn watch(&mut self, record: &Record, taken: &Taken, recorded: &State) {
        if let LoopEvent::SessionStarted { .. } = &record.event {
            self.readings.recorded_anew();
        }
        if let LoopEvent::RebootCompleted { duration_ms, .. } = &record.event {
            self.reboot_takes = Duration::from_millis(*duration_ms);
        }
        if let LoopEvent::CheckStarted { check } = &record.event {
            self.recorded_check = Some(check.clone());
        }
        if let LoopEvent::ConditionsAnswered { answers } = &record.event {
            self.objectives.clone_from(&answers.objectives);
        }
        if let LoopEvent::GatesRan { results, .. } = &record.event {
            let results = results.iter();
            self.gates
                .extend(results.map(|result| (result.name.clone(), result.clone())));
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
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
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
                    apply(&mut self.state, record);
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
            if let LoopEvent::StopConditionTriggered { condition, .. } = &record.event {
                self.doubt(condition);
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
            let ours = match &self.state.phase {
                // When it wakes is not known before the recorded loop does.
                Phase::Waiting { .. } => out_of_time(&self.policy, &self.state),
                Phase::Working { .. }
                | Phase::Keeping { .. }
                | Phase::Checking { .. }
                | Phase::Hooking { .. }
                | Phase::Rebooting { .. } => next_deadline(&self.policy, &self.state),
                Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => return,
            };
            let theirs = scene.deadline.map(|deadline| self.at(deadline));
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
                Phase::Waiting { .. } => {
                    let due = self.due(scene, now);
                    // It wakes when its next attempt is heard of, unless the recorded loop wakes from a wait as well.
                    if due > now || scene.waiting.is_none() {
                        return;
                    }
                    self.feed(due, Input::Wake, written)
                }
                Phase::Working { .. }
                | Phase::Keeping { .. }
                | Phase::Checking { .. }
                | Phase::Hooking { .. }
                | Phase::Rebooting { .. } => self.feed(now, Input::Wake, written),
                Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => return,
            },
            Input::Command { command, .. } => {
                // It has skipped the wait already.
                if self.early && *command == LoopCommand::SkipIteration {
                    return;
                }
                let now = match &self.state.phase {
                    Phase::Waiting { .. } => now.min(self.due(scene, now)),
                    Phase::Idle
                    | Phase::Working { .. }
                    | Phase::Keeping { .. }
                    | Phase::Checking { .. }
                    | Phase::Hooking { .. }
                    | Phase::Rebooting { .. }
                    | Phase::Paused { .. }
                    | Phase::Ended { .. } => now,
                };
                self.feed(now, input.clone(), written)
            }
            Input::Operator { ticket, wish } => {
                let wish = match wish {
                    // Only a question of its own can be answered.
                    Wish::Answer { choice, prompt, .. } => match self.state.question() {
                        None => return,
                        Some(question) => Wish::Answer {
                            id: Some(question.id),
                            choice: *choice,
                            prompt: prompt.clone(),
                        },
                    },
                    Wish::Hold { writing, .. } => match self.state.question() {
                        None => return,
                        Some(question) => Wish::Hold {
                            id: question.id,
                            writing: *writing,
                        },
                    },
                    Wish::Attend { .. }
                    | Wish::Tell { .. }
                    | Wish::Reload { .. }
                    | Wish::StopBehindHooks => wish.clone(),
                };
                let ticket = *ticket;
                self.feed(now, Input::Operator { ticket, wish }, written)
            }
            Input::Kept { kept, .. } => {
                let (number, kept) = (self.state.kept.number, kept.clone());
                self.feed(now, Input::Kept { number, kept }, written)
            }
            Input::Answered { answers, .. } => return self.answered(now, answers, written),
            Input::GatesRan { results, tests, .. } => {
                return self.gates_ran(now, results, tests.clone(), written);
            }
            // Of a turn that it does not hear.
            Input::Done { .. } if self.deaf || self.early => return,
            Input::Start { .. }
            | Input::Done { .. }
            | Input::Snapshot { .. }
            | Input::Shutdown { .. }
            | Input::Decline { .. }
            | Input::Broken { .. }
            | Input::StoodStill { .. }
            // It says that time has passed, before a runner dies.
            | Input::Note { .. }
            | Input::RolledBack { .. }
            | Input::HooksRan { .. } => self.feed(now, input.clone(), written),
            // They decide nothing.
            Input::Set { .. }
            | Input::Trouble { .. }
            | Input::DiskWasFull { .. }
            | Input::Incident(_)
            | Input::Repaired { .. } => return,
        };
        self.react(&effects, ending);
    }

    /// The recorded loop begins an attempt: what it does in it is the next that is heard.
    fn join(&mut self, record: &Record, scene: &Scene, recorded: &State) {
        let now = self.at(record.time);
        for _ in 0..ROUNDS_MAX {
            if self.early {
                break;
            }
            match &self.state.phase {
                Phase::Waiting { .. } => {
                    let due = self.due(scene, now);
                    let _ = self.feed(due, Input::Wake, None);
                }
                Phase::Keeping { .. } => self.finish_keep(now),
                Phase::Checking { .. } => self.finish_check(now),
                Phase::Hooking { .. } => self.finish_hooks(now),
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
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
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

    /// Tells when it wakes from a wait: as late as the recorded loop does.
    fn due(&self, scene: &Scene, now: Timestamp) -> Timestamp {
        let recorded = Timestamp::from_millis(now.as_millis().saturating_sub(self.offset));
        let deadline = scene.deadline.filter(|_| scene.waiting.is_some());
        let late = deadline.map_or(Duration::ZERO, |deadline| recorded.since(deadline));
        let due = next_deadline(&self.policy, &self.state).unwrap_or(now);
        due.after(late)
    }
}
