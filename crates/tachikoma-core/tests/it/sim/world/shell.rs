//! The simulated shell: writes the records to the journal, carries out the effects, and sometimes dies while it does so.

use std::time::Duration;

use tachikoma_core::{
    AgentInput, Effect, Exit, Generation, Input, LoopEvent, Phase, RebootStage, Record, Step,
    StopSignal, Ticket, TurnEnd, apply, next_deadline, step,
};

use super::super::Coverage;
use super::super::agent::{self, Agent};
use super::{World, at};
use crate::words;

impl World {
    /// Gives the core one input and carries out its effects, unless the shell dies meanwhile.
    /// Returns whether the step did nothing; `None` if the shell died.
    pub(super) fn feed(&mut self, coverage: &mut Coverage, input: Input) -> Option<bool> {
        let ticket = match &input {
            Input::Command { ticket, .. }
            | Input::OperatorRequest { ticket, .. }
            | Input::Note { ticket, .. }
            | Input::CompletionClaimed { ticket, .. } => Some(*ticket),
            _ => None,
        };
        let was = words::phase(&self.state.phase);
        let mut clock = self.now;
        if !matches!(input, Input::Wake) && self.dice.one_in(50) {
            clock -= self.dice.between(0, 20_000);
        }
        let step = step(&self.policy, &mut self.state, at(clock), input);
        *coverage.entry(was).or_default() += 1;
        check_effects(&step, ticket);
        if self.crashes_left > 0 && self.dice.one_in(20) {
            self.crash(coverage, step);
            return None;
        }
        let idle = step.records.is_empty() && step.effects.is_empty();
        for record in step.records {
            self.remember(coverage, record);
        }
        self.check();
        for effect in &step.effects {
            self.act(effect);
        }
        Some(idle)
    }

    /// The shell dies between any two records or, once all are synced, between any two effects.
    fn crash(&mut self, coverage: &mut Coverage, step: Step) {
        *coverage.entry("crash").or_default() += 1;
        self.crashes_left -= 1;
        let synced = self.dice.below(step.records.len() as u64 + 2);
        let done = self.dice.below(step.effects.len() as u64 + 1);
        let all = synced >= step.records.len() as u64;
        for (_, record) in (0..synced).zip(step.records) {
            self.remember(coverage, record);
        }
        if all {
            for (_, effect) in (0..done).zip(&step.effects) {
                self.act(effect);
            }
        }
        // The guard ends the agent. Scheduled events are lost.
        self.queue.clear();
        self.state = self.replayed.clone();
        self.check();
        if !matches!(self.state.phase, Phase::Ended { .. }) {
            self.start(coverage);
        }
    }

    pub(super) fn remember(&mut self, coverage: &mut Coverage, record: Record) {
        let record = if self.through_text {
            let text = serde_json::to_string(&record).expect("a record can be written");
            let read = serde_json::from_str(&text).expect("a record can be read");
            assert_eq!(record, read, "a record is the same after JSON: {text}");
            read
        } else {
            record
        };
        assert_eq!(
            record.loop_id, self.state.loop_id,
            "each record has the id of its loop"
        );
        *coverage.entry(words::event(&record.event)).or_default() += 1;
        if matches!(record.event, LoopEvent::SessionStarted { .. }) {
            self.fill = 0;
            self.cost = 0;
        }
        self.audit.take(&self.policy, &record);
        apply(&mut self.replayed, &record);
        self.journal.push(record);
    }

    /// Checks the invariants that apply after every step.
    pub(super) fn check(&self) {
        assert_eq!(
            self.replayed, self.state,
            "the live state equals the replayed state"
        );
        assert!(self.state.stats.close(), "the totals add up");
        assert_eq!(self.state.stats, self.audit.stats);
        let limits = &self.policy.timeouts;
        let bounded = match &self.state.phase {
            Phase::Waiting { .. } => {
                let question = self.state.question();
                question.is_none_or(|question| question.until.is_some())
            }
            Phase::Hooking { .. } => true,
            Phase::Autocommitting { autocommit } => autocommit.until.is_some(),
            Phase::Checking { check } => check.until.is_some(),
            Phase::Rebooting { reboot } => {
                let limited = match &reboot.stage {
                    // This stage exists only between two records of one step.
                    RebootStage::Begun => false,
                    RebootStage::Opening { .. } => {
                        limits.renew > Duration::ZERO || limits.first_output > Duration::ZERO
                    }
                    RebootStage::Autocommitting { autocommit } => autocommit.until.is_some(),
                    _ => true,
                };
                let timed = self.policy.budgets.duration > Duration::ZERO
                    && self.state.stop.is_none()
                    && !matches!(reboot.stage, RebootStage::Autocommitting { .. });
                let limited = limited || timed;
                let deadline = next_deadline(&self.policy, &self.state);
                assert_eq!(
                    deadline.is_some(),
                    limited,
                    "a timeout of 0 means no deadline"
                );
                limited
            }
            Phase::Working { work } => {
                let limit = match work.launched {
                    None => limits.launch,
                    Some(_) => limits.session,
                };
                let ending = work.ending.is_some() && work.launched.is_some();
                limit > Duration::ZERO || ending || work.escalation.is_some()
            }
            Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => false,
        };
        assert!(
            !bounded || next_deadline(&self.policy, &self.state).is_some(),
            "a phase with a timeout has a deadline"
        );
    }

    fn act(&mut self, effect: &Effect) {
        match effect {
            Effect::Launch {
                generation,
                iteration,
                ..
            } => {
                self.snapshot(*iteration);
                self.launch(*generation);
            }
            Effect::Prompt {
                generation,
                iteration,
                ..
            } => {
                self.snapshot(*iteration);
                self.is_up(*generation);
                let lines = agent::turn(&mut self.dice, &mut self.fill);
                self.say(*generation, lines);
            }
            Effect::AskCost { generation } => self.tell_cost(*generation),
            Effect::AskHandOff { generation } => {
                self.is_up(*generation);
                let lines = agent::hand_off(&mut self.dice);
                self.say(*generation, lines);
            }
            Effect::Advise { generation, .. } | Effect::SendMessage { generation, .. } => {
                self.is_up(*generation);
            }
            Effect::RollBack { iteration, .. } => self.roll_back(*iteration),
            Effect::SampleProcesses { generation } => {
                self.is_up(*generation);
                let lines = agent::look(&mut self.dice);
                self.say(*generation, lines);
            }
            Effect::Close { generation } => self.close(*generation),
            Effect::OpenSession { generation, .. } => {
                self.begin(*generation);
                let lines = agent::opening(&mut self.dice);
                self.say(*generation, lines);
            }
            Effect::RunHooks { point, .. } => self.hooks(*point),
            Effect::Autocommit { number, commit, .. } => self.autocommit(*number, commit.is_some()),
            Effect::CancelAutocommit => self.cancel_autocommit(),
            Effect::CheckConditions { number } => self.ask(*number),
            Effect::RunGates { number, names } => self.gates(*number, names),
            Effect::Signal { generation, signal } => self.signal(*generation, *signal),
            Effect::Finish => {
                self.obey_by = None;
                // Remaining processes of the agent are ended with the run.
                for agent in &mut self.agents {
                    agent.alive = false;
                }
                self.queue.clear();
            }
            Effect::Reply { .. } | Effect::AttributeChanges => {}
        }
    }

    fn launch(&mut self, generation: Generation) {
        self.begin(generation);
        let traits = self.policy.agent;
        let lines = agent::script(
            &mut self.dice,
            traits.event_stream,
            traits.persistent,
            &mut self.fill,
        );
        self.say(generation, lines);
    }

    fn begin(&mut self, generation: Generation) {
        assert!(
            self.agents.iter().all(|agent| !agent.alive),
            "two agents must never share a work tree"
        );
        let obeys = agent::obedience(&mut self.dice);
        self.agents = vec![Agent {
            generation,
            obeys,
            alive: true,
        }];
    }

    fn is_up(&self, generation: Generation) {
        let up = self
            .agents
            .iter()
            .any(|agent| agent.alive && agent.generation == generation);
        assert!(up, "messages are only sent to a running agent");
    }

    fn say(&mut self, generation: Generation, lines: Vec<(i64, AgentInput)>) {
        for (after, event) in lines {
            self.schedule(self.now + after, Input::Agent { generation, event });
        }
    }

    /// Reports the cost. Some agents report less than before, some answer late or never.
    fn tell_cost(&mut self, generation: Generation) {
        self.is_up(generation);
        self.cost += self.dice.below(400);
        if self.dice.one_in(20) {
            self.cost /= 2;
        }
        if !self.dice.one_in(10) {
            let after = self.dice.pick(&[0, 0, 3, 2_000]);
            let event = AgentInput::Cost {
                conversation_microusd: self.cost,
            };
            self.schedule(self.now + after, Input::Agent { generation, event });
        }
    }

    /// Closes the agent's standard input. Most agents exit then.
    fn close(&mut self, generation: Generation) {
        self.is_up(generation);
        if self.dice.one_in(5) {
            return;
        }
        self.silence(generation);
        let lines = vec![(
            self.dice.between(0, 300),
            AgentInput::Exited {
                exit: Exit::Code(0),
                claimed: false,
                stop_pattern: None,
                leftovers: Vec::new(),
                last_words: None,
                problem: None,
            },
        )];
        self.say(generation, lines);
    }

    /// Drops all scheduled events of the agent.
    fn silence(&mut self, generation: Generation) {
        self.queue.retain(|_, input| match input {
            Input::Agent { generation: g, .. } => *g != generation,
            _ => true,
        });
    }

    fn signal(&mut self, generation: Generation, signal: StopSignal) {
        let Some(agent) = self.agents.iter().find(|a| a.generation == generation) else {
            panic!("signals are only sent to launched agents");
        };
        assert!(agent.alive, "a dead agent gets no signal");
        if agent.obeys.is_none_or(|gentlest| signal < gentlest) {
            return;
        }
        self.silence(generation);
        let end = self.now + self.dice.between(0, 300);
        if signal == StopSignal::Interrupt && self.policy.agent.persistent && !self.dice.one_in(5) {
            // The signal ends the turn, and the process continues.
            let success = self.dice.one_in(6);
            let event = AgentInput::TurnEnded(TurnEnd {
                success,
                ..TurnEnd::default()
            });
            return self.schedule(end, Input::Agent { generation, event });
        }
        for event in agent::last_words(&mut self.dice, signal) {
            self.schedule(end, Input::Agent { generation, event });
        }
    }

    pub(super) fn schedule(&mut self, time: i64, input: Input) {
        self.order += 1;
        self.queue.insert((time, self.order), input);
    }
}

/// Checks the invariants of the effects of every step.
fn check_effects(step: &Step, ticket: Option<Ticket>) {
    let mut replies = Vec::new();
    let mut finishes = 0;
    for effect in &step.effects {
        match effect {
            Effect::Reply { ticket, .. } => replies.push(*ticket),
            Effect::Finish => finishes += 1,
            _ => {}
        }
    }
    let expected: Vec<_> = ticket.into_iter().collect();
    assert_eq!(replies, expected, "a command gets exactly one answer");
    let ends = step.records.iter().filter(|record| {
        matches!(
            record.event,
            LoopEvent::Completed { .. } | LoopEvent::Stopped { .. } | LoopEvent::Error { .. }
        )
    });
    assert_eq!(
        finishes,
        ends.count(),
        "each recorded end has one finish effect"
    );
}
