//! Simulates thousands of servers with random faults, and supervisors that die at any moment.

use std::time::Duration;

use tachikoma_core::supervise::{
    Answered, Jitter, RestartPolicy, ServerEffect, ServerEvent, ServerInput, ServerPhase,
    ServerPolicy, ServerRecord, ServerState, StartedBy, apply, step,
};
use tachikoma_core::{Exit, Generation, StopSignal, Timestamp};

use crate::sim::dice::Dice;

const WORLDS: u64 = 4_000;
const STEPS: usize = 250;

/// A simulated server with its supervisor and random faults.
struct World {
    dice: Dice,
    policy: ServerPolicy,
    state: ServerState,
    journal: Vec<ServerRecord>,
    now: Timestamp,
    /// The running process, and whether it answers health checks.
    process: Option<(Generation, bool)>,
    /// Effects that the core requested and that are not carried out yet.
    asked: Vec<ServerEffect>,
    closed: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let policy = ServerPolicy {
            restart: dice.pick(&[
                RestartPolicy::Always,
                RestartPolicy::Always,
                RestartPolicy::OnCrash,
                RestartPolicy::Never,
            ]),
            max_restart_attempts: dice.pick(&[0, 1, 5]),
            max_rss_bytes: dice.pick(&[0, 1000]),
            ..ServerPolicy::default()
        };
        Self {
            dice,
            policy,
            state: ServerState::default(),
            journal: Vec::new(),
            now: Timestamp::from_millis(1_000),
            process: None,
            asked: Vec::new(),
            closed: false,
        }
    }

    fn tell(&mut self, input: ServerInput) {
        let jitter = Jitter(u8::try_from(self.dice.below(256)).expect("a byte"));
        let stepped = step(&self.policy, &mut self.state, self.now, jitter, input);
        self.journal.extend(stepped.records);
        for effect in stepped.effects {
            match effect {
                ServerEffect::Start { generation } => {
                    assert_eq!(self.process, None, "two servers never run at the same time");
                    self.check_start(generation);
                    self.asked.push(ServerEffect::Start { generation });
                }
                ServerEffect::Finish => self.closed = true,
                ServerEffect::Probe { .. }
                | ServerEffect::Measure { .. }
                | ServerEffect::AskIdle { .. }
                | ServerEffect::Release { .. }
                | ServerEffect::Signal { .. }
                | ServerEffect::Reply { .. } => self.asked.push(effect),
            }
        }
        self.check();
    }

    /// Checks that a start was recorded as a restart and that its delay has passed.
    fn check_start(&self, generation: Generation) {
        let before = self.journal.iter().rev().skip(1);
        let mut reasons = before.filter_map(|record| match &record.event {
            ServerEvent::Restarting { until, .. } | ServerEvent::Rescheduled { until } => {
                Some(*until)
            }
            ServerEvent::Supervising { .. } => Some(Timestamp::default()),
            _ => None,
        });
        let until = reasons.next().expect("the reason of a start is recorded");
        assert!(until <= self.now, "start {generation} did not wait");
    }

    fn check(&self) {
        let mut replayed = ServerState::default();
        // The journal is replayed only every 64 records, because a replay after each record would take quadratic time.
        if self.journal.len().is_multiple_of(64) {
            self.journal
                .iter()
                .for_each(|record| apply(&mut replayed, record));
            replayed.pulse = self.state.pulse.clone();
            assert_eq!(replayed, self.state);
        }
        let max = self.policy.max_restart_attempts;
        assert!(
            max == 0 || self.state.attempts <= max,
            "restart attempts are limited"
        );
        assert!(
            self.state.crashes.len() <= 64,
            "the number of remembered crashes is limited"
        );
        let waits = matches!(
            self.state.phase,
            ServerPhase::Starting { .. } | ServerPhase::Ending { .. } | ServerPhase::Waiting { .. }
        );
        assert!(
            !waits || self.state.next_deadline().is_some(),
            "every wait has a deadline"
        );
    }

    /// Simulates the next event: an effect is carried out, a deadline passes, or a fault happens.
    fn live(&mut self) {
        // A start is carried out first and at once.
        let is_start = |effect: &ServerEffect| matches!(effect, ServerEffect::Start { .. });
        if let Some(index) = self.asked.iter().position(is_start) {
            let effect = self.asked.remove(index);
            return self.obey(&effect);
        }
        if !self.asked.is_empty() && self.dice.below(4) > 0 {
            let index =
                usize::try_from(self.dice.below(self.asked.len() as u64)).expect("an index");
            let effect = self.asked.remove(index);
            return self.obey(&effect);
        }
        match self.dice.below(20) {
            0 => self.supervisor_dies(),
            1 => self.tell(ServerInput::Restart { ticket: None }),
            2 => self.guard_dies(),
            3..=7 => self.server_dies(),
            8 => {
                if let Some((_, answers)) = &mut self.process {
                    *answers = !*answers;
                }
            }
            _ => {
                if let Some(deadline) = self.state.next_deadline() {
                    self.now = self.now.max(deadline);
                    self.tell(ServerInput::Wake);
                } else {
                    self.now = self.now.after(Duration::from_secs(self.dice.below(200)));
                }
            }
        }
        if self.process.is_some() && self.state.phase == ServerPhase::Idle {
            panic!("a closed supervisor has no running server");
        }
    }

    fn obey(&mut self, effect: &ServerEffect) {
        match *effect {
            ServerEffect::Start { generation } => {
                if self.dice.one_in(5) {
                    let why = "no such program".to_owned();
                    return self.tell(ServerInput::NotStarted { generation, why });
                }
                self.process = Some((generation, !self.dice.one_in(4)));
                self.tell(ServerInput::Spawned { generation, pid: 1 });
            }
            ServerEffect::Probe { generation } => {
                let what = "nothing".to_owned();
                let answered = match self.process {
                    Some((running, true)) if running == generation => Answered::Healthy {
                        url: "http://127.0.0.1:1".to_owned(),
                        version: None,
                    },
                    Some(_) | None if self.dice.one_in(2) => Answered::Wrong { what },
                    Some(_) | None => Answered::Silent { what },
                };
                self.tell(ServerInput::Answered {
                    generation,
                    answered,
                });
            }
            ServerEffect::Measure { generation } => {
                let rss_bytes = self.dice.below(1500);
                self.tell(ServerInput::Measured {
                    generation,
                    rss_bytes,
                });
            }
            ServerEffect::AskIdle { generation } => self.tell(ServerInput::Boundary { generation }),
            ServerEffect::Release { generation } => self.tell(ServerInput::Released { generation }),
            ServerEffect::Signal { generation, signal } => {
                let dies = signal == StopSignal::Kill || !self.dice.one_in(3);
                if self
                    .process
                    .is_some_and(|(running, _)| running == generation)
                    && dies
                {
                    self.exits(Exit::Signal(15));
                }
            }
            ServerEffect::Reply { .. } | ServerEffect::Finish => {}
        }
    }

    fn server_dies(&mut self) {
        let exit = self.dice.pick(&[
            Exit::Code(0),
            Exit::Code(1),
            Exit::Signal(9),
            Exit::Signal(9),
            Exit::Signal(11),
            Exit::Signal(15),
        ]);
        self.exits(exit);
    }

    fn exits(&mut self, exit: Exit) {
        if let Some((generation, _)) = self.process.take() {
            self.tell(ServerInput::Exited {
                generation,
                exit,
                leftovers: Vec::new(),
            });
        }
    }

    /// The guard dies: its server ends, and effects that were not carried out are lost.
    fn guard_dies(&mut self) {
        self.process = None;
        self.asked.clear();
        self.tell(ServerInput::GuardLost);
    }

    /// The supervisor dies, and its guard ends the server. The next supervisor reads the journal.
    fn supervisor_dies(&mut self) {
        self.process = None;
        self.asked.clear();
        let mut replayed = ServerState::default();
        self.journal
            .iter()
            .for_each(|record| apply(&mut replayed, record));
        self.state = replayed;
        self.tell(ServerInput::Supervise {
            pid: 2,
            by: StartedBy::Service,
        });
    }
}

#[test]
fn simulated_servers_are_restarted_by_the_rules_and_never_run_twice() {
    let (mut gave_up, mut closed, mut ready) = (0, 0, 0);
    for seed in 0..WORLDS {
        let mut world = World::new(seed);
        world.tell(ServerInput::Supervise {
            pid: 1,
            by: StartedBy::Command,
        });
        for _ in 0..STEPS {
            world.live();
            if let ServerPhase::GaveUp { .. } = world.state.phase {
                // The old process may be stuck in the kernel. A guard starts no second server before it has ended.
                world.process = None;
            }
            gave_up += u32::from(matches!(world.state.phase, ServerPhase::GaveUp { .. }));
            ready += u32::from(matches!(world.state.phase, ServerPhase::Ready { .. }));
        }
        world.tell(ServerInput::Stop { ticket: None });
        for _ in 0..10 {
            if let Some(deadline) = world.state.next_deadline() {
                world.now = world.now.max(deadline);
                world.tell(ServerInput::Wake);
            }
            if world.state.phase.purpose().is_some() {
                world.exits(Exit::Signal(9));
                world.guard_dies();
            }
        }
        assert!(
            world.closed,
            "seed {seed}: a stop always ends the supervisor"
        );
        assert_eq!(world.state.phase, ServerPhase::Idle, "seed {seed}");
        closed += 1;
    }
    assert!(gave_up > 1000 && ready > 1000, "{gave_up} {ready}");
    assert_eq!(closed, WORLDS);
}
