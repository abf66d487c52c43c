//! The simulated shell: journals what the core decides, does what it wishes, and dies over it at times.

use std::time::Duration;

use tachikoma_core::{
    Answers, Committed, Effect, Exit, GateResult, Generation, HookPoint, HookResult, Input, Kept,
    LoopEvent, News, Objectives, ObjectivesSeen, Phase, RebootStage, Record, Rung, ScriptResult,
    ScriptVerdict, Step, TestsReport, Ticket, TurnEnd, step,
};

use super::super::Coverage;
use super::super::agent::{self, Agent};
use super::{World, at};
use crate::words;

impl World {
    /// Gives the core one input and does what it wishes, unless the shell dies over it. Returns whether nothing
    /// came of it, if the shell lived.
    pub(super) fn feed(&mut self, coverage: &mut Coverage, input: Input) -> Option<bool> {
        let ticket = match &input {
            Input::Command { ticket, .. }
            | Input::Note { ticket, .. }
            | Input::Done { ticket, .. } => Some(*ticket),
            Input::Start { .. }
            | Input::Wake
            | Input::Shutdown { .. }
            | Input::Agent { .. }
            | Input::HooksRan { .. }
            | Input::Snapshot { .. }
            | Input::Kept { .. }
            | Input::Answered { .. }
            | Input::GatesRan { .. }
            | Input::Decline { .. }
            | Input::Broken { .. }
            | Input::StoodStill { .. }
            | Input::Set { .. }
            | Input::Trouble { .. }
            | Input::DiskWasFull { .. }
            | Input::Repaired { .. } => None,
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
        // The guard ends the agent; nothing that was under way comes back.
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
            assert_eq!(record, read, "a record survives its text: {text}");
            read
        } else {
            record
        };
        assert_eq!(record.loop_id, self.state.loop_id, "each names its loop");
        *coverage.entry(words::event(&record.event)).or_default() += 1;
        if matches!(record.event, LoopEvent::SessionStarted { .. }) {
            self.fill = 0;
            self.cost = 0;
        }
        self.audit.take(&self.policy, &record);
        self.replayed.apply(&record);
        self.journal.push(record);
    }

    /// What holds after every step.
    pub(super) fn check(&self) {
        assert_eq!(self.replayed, self.state, "live and replayed are the same");
        assert!(self.state.stats.close(), "the numbers close");
        assert_eq!(self.state.stats, self.audit.stats);
        let limits = &self.policy.timeouts;
        let bounded = match &self.state.phase {
            Phase::Waiting { .. } => true,
            Phase::Keeping { keep } => keep.until.is_some(),
            Phase::Checking { check } => check.until.is_some(),
            Phase::Rebooting { reboot } => {
                let limited = match &reboot.stage {
                    // Between two records of one step.
                    RebootStage::Begun => false,
                    RebootStage::Opening { .. } => {
                        limits.renew > Duration::ZERO || limits.first_output > Duration::ZERO
                    }
                    RebootStage::Keeping { keep } => keep.until.is_some(),
                    RebootStage::HandOff { .. }
                    | RebootStage::Hooks { .. }
                    | RebootStage::Closing { .. } => true,
                };
                let timed = self.policy.budgets.duration > Duration::ZERO
                    && self.state.stop.is_none()
                    && !matches!(reboot.stage, RebootStage::Keeping { .. });
                let limited = limited || timed;
                let deadline = self.state.next_deadline(&self.policy);
                assert_eq!(deadline.is_some(), limited, "0 means no limit");
                limited
            }
            Phase::Working { work } => {
                let limit = match work.launched {
                    None => limits.launch,
                    Some(_) => limits.session,
                };
                let ending = work.ending.is_some() && work.launched.is_some();
                limit > Duration::ZERO || ending || work.ladder.is_some()
            }
            Phase::Idle | Phase::Paused { .. } | Phase::Ended { .. } => false,
        };
        assert!(
            !bounded || self.state.next_deadline(&self.policy).is_some(),
            "whoever waits for the world has a deadline"
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
            Effect::Advise { generation, .. } => self.is_up(*generation),
            Effect::Look { generation } => {
                self.is_up(*generation);
                let lines = agent::look(&mut self.dice);
                self.say(*generation, lines);
            }
            Effect::Close { generation } => self.close(*generation),
            Effect::Open { generation, .. } => {
                self.begin(*generation);
                let lines = agent::opening(&mut self.dice);
                self.say(*generation, lines);
            }
            Effect::RunHooks { point, .. } => self.hooks(*point),
            Effect::Keep { number, commit } => self.keep(*number, commit.is_some()),
            Effect::CallOffKeep => self.call_off_keep(),
            Effect::Ask { number } => self.ask(*number),
            Effect::RunGates { number, names } => self.gates(*number, names),
            Effect::Signal { generation, rung } => self.signal(*generation, *rung),
            Effect::Finish => {
                self.obey_by = None;
                // Whatever is left of the agent is ended with the run.
                for agent in &mut self.agents {
                    agent.alive = false;
                }
                self.queue.clear();
            }
            Effect::Reply { .. } => {}
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
        assert!(up, "only an agent that is up is spoken to");
    }

    fn say(&mut self, generation: Generation, lines: Vec<(i64, News)>) {
        for (after, news) in lines {
            self.schedule(self.now + after, Input::Agent { generation, news });
        }
    }

    /// Some agents forget a part of it, and some answer late or never.
    fn tell_cost(&mut self, generation: Generation) {
        self.is_up(generation);
        self.cost += self.dice.below(400);
        if self.dice.one_in(20) {
            self.cost /= 2;
        }
        if !self.dice.one_in(10) {
            let after = self.dice.pick(&[0, 0, 3, 2_000]);
            let news = News::Cost {
                conversation_microusd: self.cost,
            };
            self.schedule(self.now + after, Input::Agent { generation, news });
        }
    }

    /// Nothing more is asked of the agent: most go.
    fn close(&mut self, generation: Generation) {
        self.is_up(generation);
        if self.dice.one_in(5) {
            return;
        }
        self.silence(generation);
        let lines = vec![(
            self.dice.between(0, 300),
            News::Exited {
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

    fn hooks(&mut self, point: HookPoint) {
        let after = self.dice.pick(&[0, 3_000, 60_000]);
        let failed = self.dice.one_in(5);
        let results = vec![HookResult {
            name: "hook.sh".to_owned(),
            duration_ms: 3,
            error: failed.then(|| "exit 1".to_owned()),
            ..HookResult::default()
        }];
        if !self.dice.one_in(8) {
            self.schedule(self.now + after, Input::HooksRan { point, results });
        }
    }

    /// The work tree before an iteration: of the same content as before it, as a rule.
    fn snapshot(&mut self, iteration: u32) {
        if self.policy.keep.is_none() || self.dice.one_in(8) {
            return;
        }
        let commit = self.dice.below(4).to_string();
        let uncommitted = self.files;
        let input = Input::Snapshot {
            iteration,
            commit,
            uncommitted,
        };
        self.schedule(self.now, input);
    }

    /// What the loop did is looked at and committed; or that fails, hangs, or is refused by a hook.
    fn keep(&mut self, number: u64, commit: bool) {
        assert!(self.policy.keep.is_some(), "there is where to keep it");
        let after = self.dice.pick(&[0, 0, 40, 3_000, 200_000]);
        let changed = self.dice.pick(&[0, 0, 1, 3]);
        let found = self.files + changed;
        let kept = match self.dice.below(8) {
            0 => return,
            1 => Err("git is gone".to_owned()),
            2 if commit => Ok(Kept {
                changed,
                uncommitted: found,
                error: Some("the hook said no".to_owned()),
                ..Kept::default()
            }),
            _ => Ok(Kept {
                changed,
                uncommitted: if commit { 0 } else { found },
                commit: (commit && found > 0).then(|| Committed {
                    id: number.to_string(),
                    files: found,
                }),
                ..Kept::default()
            }),
        };
        if let Ok(kept) = &kept {
            self.files = kept.uncommitted;
        }
        self.schedule(self.now + after, Input::Kept { number, kept });
    }

    /// Most of what is called off answers at once.
    fn call_off_keep(&mut self) {
        let number = self.state.kept.number;
        let under_way =
            |input: &Input| matches!(input, Input::Kept { number: n, .. } if *n == number);
        self.queue.retain(|_, input| !under_way(input));
        if self.dice.one_in(3) {
            return;
        }
        let kept = Ok(Kept {
            uncommitted: self.files,
            error: Some("called off".to_owned()),
            ..Kept::default()
        });
        let after = self.dice.pick(&[1, 20, 8_000]);
        self.schedule(self.now + after, Input::Kept { number, kept });
    }

    /// The objectives are read and the scripts answer, or one of them hangs.
    fn ask(&mut self, number: u64) {
        let rules = &self.policy.completion;
        assert!(rules.asking.is_some(), "there is something to ask");
        let objectives = rules.objectives.then(|| match self.dice.below(6) {
            0 => ObjectivesSeen::Unknown {
                reason: "it is gone".to_owned(),
            },
            1..4 => ObjectivesSeen::Read {
                objectives: Objectives::read("- [x] a\n- [x] b\n"),
            },
            _ => ObjectivesSeen::Read {
                objectives: Objectives::read("- [x] a\n- [ ] b\n"),
            },
        });
        let verdict = match self.dice.below(24) {
            0 => ScriptVerdict::Claim,
            1 => ScriptVerdict::Stop,
            2 => ScriptVerdict::Unclear {
                problem: "exit 3".to_owned(),
            },
            _ => ScriptVerdict::GoOn,
        };
        let scripts = vec![ScriptResult {
            name: "ask.sh".to_owned(),
            duration_ms: 3,
            verdict,
            words: None,
        }];
        let answers = Answers {
            objectives,
            scripts,
        };
        let after = self.dice.pick(&[0, 100, 2_000, 50_000]);
        if !self.dice.one_in(10) {
            self.schedule(self.now + after, Input::Answered { number, answers });
        }
    }

    /// Gates pass, fail, are killed, take long, or never answer.
    fn gates(&mut self, number: u64, names: &[String]) {
        assert!(!names.is_empty(), "only gates that there are are run");
        let results = names.iter().map(|name| GateResult {
            name: name.clone(),
            duration_ms: 3,
            error: match self.dice.below(6) {
                0 => Some("exit 1".to_owned()),
                1 => Some("signal 9".to_owned()),
                _ => None,
            },
            output: None,
            file: None,
        });
        let results = results.collect();
        let after = self.dice.pick(&[0, 100, 2_000, 700_000]);
        if !self.dice.one_in(10) {
            let newly_passing = self.dice.pick(&[0, 0, 1]);
            let tests = self.dice.one_in(2).then(|| TestsReport {
                newly_passing,
                ..TestsReport::default()
            });
            let ran = Input::GatesRan {
                number,
                results,
                tests,
            };
            self.schedule(self.now + after, ran);
        }
    }

    /// What an agent was about to say is not said any more.
    fn silence(&mut self, generation: Generation) {
        self.queue.retain(|_, input| match input {
            Input::Agent { generation: g, .. } => *g != generation,
            Input::Start { .. }
            | Input::Wake
            | Input::Command { .. }
            | Input::Shutdown { .. }
            | Input::HooksRan { .. }
            | Input::Snapshot { .. }
            | Input::Kept { .. }
            | Input::Answered { .. }
            | Input::GatesRan { .. }
            | Input::Done { .. }
            | Input::Decline { .. }
            | Input::Broken { .. }
            | Input::StoodStill { .. }
            | Input::Set { .. }
            | Input::Note { .. }
            | Input::Trouble { .. }
            | Input::DiskWasFull { .. }
            | Input::Repaired { .. } => true,
        });
    }

    fn signal(&mut self, generation: Generation, rung: Rung) {
        let Some(agent) = self.agents.iter().find(|a| a.generation == generation) else {
            panic!("only what was launched is signalled");
        };
        assert!(agent.alive, "the dead are left alone");
        if agent.obeys.is_none_or(|gentlest| rung < gentlest) {
            return;
        }
        self.silence(generation);
        let end = self.now + self.dice.between(0, 300);
        if rung == Rung::Interrupt && self.policy.agent.persistent && !self.dice.one_in(5) {
            // The turn ends, the process stays.
            let success = self.dice.one_in(6);
            let news = News::Resulted(TurnEnd {
                success,
                ..TurnEnd::default()
            });
            return self.schedule(end, Input::Agent { generation, news });
        }
        for news in agent::last_words(&mut self.dice, rung) {
            self.schedule(end, Input::Agent { generation, news });
        }
    }

    pub(super) fn schedule(&mut self, time: i64, input: Input) {
        self.order += 1;
        self.queue.insert((time, self.order), input);
    }
}

/// What holds for the wishes of every step.
fn check_effects(step: &Step, ticket: Option<Ticket>) {
    let mut replies = Vec::new();
    let mut finishes = 0;
    for effect in &step.effects {
        match effect {
            Effect::Reply { ticket, .. } => replies.push(*ticket),
            Effect::Finish => finishes += 1,
            Effect::Launch { .. }
            | Effect::Prompt { .. }
            | Effect::AskHandOff { .. }
            | Effect::AskCost { .. }
            | Effect::Advise { .. }
            | Effect::Look { .. }
            | Effect::Close { .. }
            | Effect::Open { .. }
            | Effect::RunHooks { .. }
            | Effect::Keep { .. }
            | Effect::CallOffKeep
            | Effect::Ask { .. }
            | Effect::RunGates { .. }
            | Effect::Signal { .. } => {}
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
    assert_eq!(finishes, ends.count(), "an end is recorded and acted on");
}
