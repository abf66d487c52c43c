//! Simulation of everything around one loop: agents, operator, clock, and a shell that may die at any moment.

mod git_work;
mod operator;
mod shell;

use std::collections::BTreeMap;
use std::time::Duration;

use tachikoma_core::{
    AgentInput, Effect, Epoch, Generation, HookKind, HookPoint, Incident, Input, Launch,
    LoopCommand, LoopEvent, LoopId, Phase, Policy, RebootStage, Record, Repair, Runner, State,
    Ticket, Timestamp, Urgency, Work, apply, next_deadline, step,
};

use super::Coverage;
use super::agent::{self, Agent};
use super::audit::Audit;
use super::dice::Dice;
use crate::words;

/// After this many steps the operator stops the loop.
const PATIENCE_STEPS: u32 = 60;
/// Maximum number of steps of a loop. More steps mean that it does not end.
const STEPS_MAX: u32 = 400;

pub struct World {
    dice: Dice,
    pub policy: Policy,
    now: i64,
    state: State,
    /// The state of the same loop, rebuilt from its journal.
    replayed: State,
    pub journal: Vec<Record>,
    audit: Audit,
    agents: Vec<Agent>,
    /// Scheduled inputs, by time in milliseconds and then by order of scheduling.
    queue: BTreeMap<(i64, u64), Input>,
    order: u64,
    fill: u64,
    /// Cost of the conversation in millionths of a dollar.
    cost: u64,
    /// Files that the loop changed and that are not committed.
    files: u32,
    tickets: u64,
    steps: u32,
    crashes_left: u32,
    runs_left: u32,
    /// Time by which a requested stop must have ended the loop; `None` if no stop was requested.
    obey_by: Option<Timestamp>,
    /// Whether every record is written as JSON and read again before it enters the journal.
    through_text: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let state = State::new(LoopId::from_u128(u128::from(seed)));
        Self {
            policy: agent::policy(&mut dice),
            now: 1_700_000_000_000,
            replayed: state.clone(),
            state,
            journal: Vec::new(),
            audit: Audit::default(),
            agents: Vec::new(),
            queue: BTreeMap::new(),
            order: 0,
            fill: 0,
            cost: 0,
            files: 0,
            tickets: 0,
            steps: 0,
            crashes_left: u32::try_from(dice.below(5)).expect("small"),
            runs_left: u32::try_from(dice.below(3)).expect("small"),
            obey_by: None,
            through_text: seed.is_multiple_of(super::THROUGH_TEXT_EVERY),
            dice,
        }
    }

    /// Simulates the whole loop.
    pub fn run(&mut self, coverage: &mut Coverage) {
        if self.dice.one_in(30) {
            self.operate(coverage);
        }
        self.start(coverage);
        loop {
            self.steps += 1;
            assert!(self.steps < STEPS_MAX, "the loop does not end");
            if matches!(self.state.phase, Phase::Ended { .. }) {
                if self.dice.one_in(3) {
                    self.operate(coverage);
                }
                if self.runs_left == 0 || self.state.startable().is_err() {
                    break;
                }
                self.runs_left -= 1;
                self.start(coverage);
            } else {
                self.live(coverage);
            }
        }
        let mut again = State::new(self.state.loop_id);
        for record in &self.journal {
            apply(&mut again, record);
        }
        assert_eq!(again, self.state, "the journal gives the same state");
        *coverage.entry(words::phase(&self.state.phase)).or_default() += 1;
        if self.state.startable().is_err() {
            let input = self.start_input();
            let step = step(&self.policy, &mut self.state, at(self.now), input);
            assert!(
                step.records.is_empty() && step.effects == [Effect::Finish],
                "a loop that is done does not start again"
            );
        }
    }

    /// Simulates the next event of a running loop.
    fn live(&mut self, coverage: &mut Coverage) {
        if let Some(bound) = self.obey_by {
            assert!(
                at(self.now) <= bound,
                "a stop ends the loop within the grace periods"
            );
        }
        let deadline = next_deadline(&self.policy, &self.state).map(Timestamp::as_millis);
        let event = self.queue.first_key_value().map(|(key, _)| key.0);
        let next = deadline.into_iter().chain(event).min();
        let patience = PATIENCE_STEPS < self.steps;
        if patience && self.steps.is_multiple_of(2) {
            let urgency = match self.steps % 6 {
                0 => Urgency::Graceful,
                2 => Urgency::Now,
                _ => Urgency::Kill,
            };
            return self.command(coverage, LoopCommand::Stop(urgency));
        }
        if self.state.question().is_some() && self.dice.one_in(2) {
            return self.answer(coverage);
        }
        if self.work().is_some_and(|work| !work.tools.is_empty()) && self.dice.one_in(15) {
            return self.request_something(coverage);
        }
        if next.is_none() || self.dice.one_in(10) {
            let latest = next.unwrap_or(self.now + 60_000).max(self.now);
            self.now = self.dice.between(self.now, latest);
            return self.operate(coverage);
        }
        if self.dice.one_in(40) {
            return self.rotate(coverage);
        }
        let next = next.expect("checked above");
        if self.dice.one_in(20) && deadline.is_none_or(|deadline| self.now < deadline) {
            let step = self.feed(coverage, Input::Wake);
            assert_ne!(step, Some(false), "a spurious wake does nothing");
            return;
        }
        let both = deadline == Some(next) && event == Some(next);
        let wake = deadline == Some(next) && !(both && self.dice.one_in(2));
        self.now = self.now.max(next);
        if wake {
            if self.obey_by.is_none() && self.dice.one_in(8) {
                self.now += self.dice.between(0, 90_000);
            }
            let idle = self.feed(coverage, Input::Wake);
            assert_ne!(
                idle,
                Some(true),
                "a wake at the deadline changes something, otherwise the shell would loop"
            );
        } else {
            let (_, input) = self.queue.pop_first().expect("checked above");
            self.deliver(coverage, input);
        }
    }

    fn deliver(&mut self, coverage: &mut Coverage, input: Input) {
        let stale = match &input {
            Input::Agent { generation, event } => {
                self.buried(*generation, event);
                let agent = self.state.agent;
                agent.is_none_or(|agent| agent.generation != *generation)
            }
            Input::HooksRan { point, .. } if point.kind() == HookKind::Blocking => {
                let hooking = self.state.hooking();
                hooking.is_none_or(|hooking| hooking.point != *point)
            }
            Input::HooksRan { point, .. } if point.kind() == HookKind::Background => {
                matches!(self.state.phase, Phase::Idle | Phase::Ended { .. })
            }
            Input::HooksRan { point, .. } => !self.state.rebooting().is_some_and(
                |reboot| matches!(&reboot.stage, RebootStage::Hooks { point: p, .. } if p == point),
            ),
            Input::ConditionsAnswered { number, .. } | Input::GatesRan { number, .. } => {
                self.state.check().is_none() || *number != self.state.completion.number
            }
            Input::AutocommitFinished { number, .. } => {
                self.state.autocommit().is_none() || *number != self.state.tracked_work.number
            }
            Input::RolledBack { .. } => self.state.operator.rolling_back.is_none(),
            _ => false,
        };
        let idle = self.feed(coverage, input);
        if stale {
            *coverage.entry("stale event").or_default() += 1;
            assert_ne!(idle, Some(false), "stale event changes nothing");
        }
    }

    /// Marks an agent as ended. Its exit event may arrive a second time.
    fn buried(&mut self, generation: Generation, event: &AgentInput) {
        let over = matches!(
            event,
            AgentInput::Exited { .. } | AgentInput::NotLaunched { .. } | AgentInput::GuardLost
        );
        if !over {
            return;
        }
        let mut ended = false;
        for agent in &mut self.agents {
            if agent.generation == generation {
                ended |= agent.alive;
                agent.alive = false;
            }
        }
        if ended && self.dice.one_in(4) {
            let late = self.now + self.dice.between(0, 8_000);
            let event = event.clone();
            self.schedule(late, Input::Agent { generation, event });
        }
    }

    fn start_input(&self) -> Input {
        Input::Start {
            launch: Launch {
                // The hash of the settings changes between some runs.
                config_hash: (self.now % 2).to_string(),
                ..Launch::default()
            },
            runner: Runner {
                pid: 1,
                since: at(self.now),
                containment: "guard".to_owned(),
                follows_until: None,
                repository: None,
            },
        }
    }

    /// Simulates a runner that starts the loop after all processes of an earlier runner have ended.
    fn start(&mut self, coverage: &mut Coverage) {
        for agent in &mut self.agents {
            agent.alive = false;
        }
        assert!(
            self.state.needs_survey() || !self.audit.needs_survey(),
            "a new runner surveys changes that the loop may have made"
        );
        self.obey_by = None;
        self.now += self.dice.between(0, 5_000);
        let input = self.start_input();
        self.feed(coverage, input);
    }

    /// Simulates a random command or request of the operator, a fault, or a signal to the runner.
    fn operate(&mut self, coverage: &mut Coverage) {
        if self.dice.one_in(12) {
            let trouble = self.trouble();
            self.feed(coverage, trouble);
            return;
        }
        if self.dice.one_in(10) {
            return self.request_something(coverage);
        }
        let urgency = self
            .dice
            .pick(&[Urgency::Graceful, Urgency::Now, Urgency::Kill]);
        if self.dice.one_in(16) {
            self.expect_end(urgency);
            let signal = self.dice.pick(&[2, 15, 1]);
            let before = self.state.phase.clone();
            self.feed(coverage, Input::Shutdown { signal, urgency });
            return self.check_obeyed(&before);
        }
        let command = match self.dice.below(13) {
            0 => LoopCommand::Stop(urgency),
            1..=3 => LoopCommand::Pause(urgency),
            4..=7 => LoopCommand::Resume,
            8..=9 => LoopCommand::ForceReboot,
            _ => LoopCommand::SkipIteration,
        };
        self.command(coverage, command);
    }

    fn command(&mut self, coverage: &mut Coverage, command: LoopCommand) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let before = self.state.phase.clone();
        if let LoopCommand::Stop(urgency) = command {
            self.expect_end(urgency);
        }
        self.feed(coverage, Input::Command { ticket, command });
        if matches!(command, LoopCommand::Stop(_)) {
            self.check_obeyed(&before);
        }
    }

    /// Computes by when a stop that is requested now has to end the loop.
    fn expect_end(&mut self, urgency: Urgency) {
        let limits = &self.policy.timeouts;
        let graces = &self.policy.stop_timeouts;
        // An agent that is interrupted for a reboot already has a grace period, which may be longer.
        let interrupt = graces.interrupt.max(self.policy.reboot.graceful_delay);
        let escalation = interrupt + graces.terminate + graces.reap;
        let Some(kept) = self.keep_bound(urgency) else {
            return;
        };
        let Some(work) = self.work() else {
            if self.state.autocommit().is_some() {
                self.obey_within(kept + self.hooks_bound(urgency));
            }
            return;
        };
        let bound = match work.launched {
            _ if urgency == Urgency::Kill => graces.reap,
            Some(_) if urgency == Urgency::Graceful => limits.graceful + escalation,
            Some(_) => escalation,
            None if limits.launch == Duration::ZERO => return,
            None => limits.launch + escalation,
        };
        self.obey_within(bound + kept + self.hooks_bound(urgency));
    }

    /// Computes how long hooks may delay a stop: after the iteration and at the end.
    fn hooks_bound(&self, urgency: Urgency) -> Duration {
        const URGENT: Duration = Duration::from_secs(5);
        let frames = [HookPoint::IterationEnd, HookPoint::LoopEnd];
        let limits = frames.iter().filter_map(|it| self.policy.hooks.get(it));
        let limit: Duration = limits.sum();
        match urgency {
            Urgency::Graceful => limit,
            Urgency::Now | Urgency::Kill => limit.min(URGENT),
        }
    }

    /// Computes how long auto-commits may delay a stop; `None` means without limit.
    fn keep_bound(&self, urgency: Urgency) -> Option<Duration> {
        const LOOK: Duration = Duration::from_secs(60);
        const URGENT: Duration = Duration::from_secs(5);
        match self.policy.autocommit {
            None => Some(Duration::ZERO),
            Some(_) if urgency >= Urgency::Now => Some(URGENT),
            Some(rules) if rules.timeout.is_zero() => None,
            // There may be one commit after the iteration and one at the end of the loop.
            Some(rules) => Some((rules.timeout + LOOK) * 2),
        }
    }

    fn obey_within(&mut self, bound: Duration) {
        let bound = at(self.now).after(bound);
        self.obey_by = Some(self.obey_by.map_or(bound, |before| before.min(bound)));
    }

    /// Checks that a stop takes effect at once if no agent has to be ended.
    fn check_obeyed(&self, before: &Phase) {
        match before {
            Phase::Waiting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. } => {
                let crashed = self.state.runner.is_some();
                assert!(
                    crashed
                        || self.state.autocommit().is_some()
                        || self.state.hooking().is_some_and(|it| it.outcome.is_some())
                        || matches!(self.state.phase, Phase::Ended { .. }),
                    "a stop between iterations is obeyed at once"
                );
            }
            _ => {}
        }
    }

    fn trouble(&mut self) -> Input {
        let text = "the disk".to_owned();
        self.tickets += 1;
        match self.dice.below(7) {
            6 => Input::Incident(Incident::AccessRefused {
                request: "stop".to_owned(),
                pid: Some(7),
                agent: true,
                gone: false,
            }),
            4..6 => Input::CompletionClaimed {
                ticket: Ticket(self.tickets),
                reason: None,
            },
            0 => Input::Warning { warning: text },
            3 => Input::Note {
                ticket: Ticket(self.tickets),
                text,
                tell: self.tickets.is_multiple_of(2),
                operator: self.tickets.is_multiple_of(2),
            },
            1 => Input::DiskWasFull {
                duration: Duration::from_secs(7),
            },
            _ => Input::Repaired {
                what: Repair::Lock,
                how: text,
            },
        }
    }

    /// The journal starts a new segment.
    fn rotate(&mut self, coverage: &mut Coverage) {
        let record = Record {
            seq: self.state.seq.next(),
            time: self.state.time,
            loop_id: self.state.loop_id,
            event: LoopEvent::SegmentOpened {
                format: 1,
                segment: 2,
                state: Box::new(self.state.clone()),
                after_loss: false,
                epoch: Epoch::new(uuid::Uuid::from_u128(2)),
            },
            input: None,
            reasons: Vec::new(),
        };
        apply(&mut self.state, &record);
        self.remember(coverage, record);
        self.check();
    }

    fn work(&self) -> Option<&Work> {
        match &self.state.phase {
            Phase::Working { work } => Some(work),
            _ => None,
        }
    }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}
