//! Test driver: gives inputs to a loop and logs the records and effects of each in one line. Times are relative to the start.

mod operator;

use std::fmt::Write as _;
use std::time::Duration;

use tachikoma_core::{
    Activity, AgentInput, Answers, AutocommitResult, Committed, Context, Exit, GateResult,
    Generation, HookPoint, HookResult, Input, Launch, LoopId, Objectives, ObjectivesSeen, Policy,
    Problem, QuotaWindow, Record, Runner, ScriptResult, ScriptVerdict, Spent, State, Step, Ticket,
    Timestamp, TurnEnd, apply, next_deadline, step,
};

use crate::words;

const START_MILLIS: i64 = 1_700_000_000_000;

pub struct Play {
    pub policy: Policy,
    pub state: State,
    pub journal: Vec<Record>,
    now: Timestamp,
    lines: String,
}

impl Play {
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            state: State::new(LoopId::from_u128(1)),
            journal: Vec::new(),
            now: Timestamp::from_millis(START_MILLIS),
            lines: String::new(),
        }
    }

    /// Plays a loop from its start until the agent of its first iteration is up.
    pub fn up(policy: Policy) -> Self {
        let mut play = Self::new(policy);
        play.start().launched();
        play
    }

    /// Returns the log lines since the last call of this method.
    pub fn log(&mut self) -> String {
        std::mem::take(&mut self.lines)
    }

    /// Clears the log, so that it only has the lines that the test is about.
    pub fn hush(&mut self) -> &mut Self {
        self.lines.clear();
        self
    }

    pub fn after(&mut self, duration: Duration) -> &mut Self {
        self.now = self.now.after(duration);
        self
    }

    pub fn moment(&self) -> Timestamp {
        self.now
    }

    pub fn seconds(&mut self, seconds: u64) -> &mut Self {
        self.after(Duration::from_secs(seconds))
    }

    pub fn input(&mut self, name: &str, input: Input) -> &mut Self {
        let step = self.step(input);
        let time = self.now.as_millis() - START_MILLIS;
        let (seconds, tenths) = (time / 1000, time % 1000 / 100);
        let mut facts: Vec<String> = step.records.iter().map(words::fact).collect();
        if facts.is_empty() {
            facts.push("-".to_owned());
        }
        let effects: Vec<String> = step.effects.iter().map(words::effect_line).collect();
        let _ = write!(
            self.lines,
            "{seconds}.{tenths} {name}: {}",
            facts.join(", ")
        );
        for effect in effects {
            let _ = write!(self.lines, " ! {effect}");
        }
        self.lines.push('\n');
        self
    }

    /// Gives one input to the core without writing it to the log.
    pub fn step(&mut self, input: Input) -> Step {
        let step = step(&self.policy, &mut self.state, self.now, input);
        self.journal.extend(step.records.iter().cloned());
        step
    }

    pub fn start(&mut self) -> &mut Self {
        let input = self.start_input();
        self.input("start", input)
    }

    /// Starts a run with the given agent, prompt and settings.
    pub fn start_with(&mut self, launch: Launch) -> &mut Self {
        let Input::Start { runner, .. } = self.start_input() else {
            unreachable!("`start_input` returns `Input::Start`");
        };
        self.input("start", Input::Start { launch, runner })
    }

    pub fn start_input(&self) -> Input {
        Input::Start {
            launch: Launch::default(),
            runner: Runner {
                pid: 1,
                since: self.now,
                containment: "guard".to_owned(),
                follows_until: None,
                repository: None,
            },
        }
    }

    /// The runner dies with only the first `synced` records in the journal. A new runner then resumes the loop.
    pub fn crash_after(&mut self, synced: usize) -> &mut Self {
        self.journal.truncate(synced);
        self.state = State::new(self.state.loop_id);
        for record in &self.journal {
            apply(&mut self.state, record);
        }
        self.start()
    }

    pub fn crash(&mut self) -> &mut Self {
        self.crash_after(self.journal.len())
    }

    pub fn wake(&mut self) -> &mut Self {
        self.input("wake", Input::Wake)
    }

    /// Advances the clock to the next deadline of the core and wakes it.
    pub fn sleep(&mut self) -> &mut Self {
        let deadline = next_deadline(&self.policy, &self.state);
        self.now = deadline.expect("the loop has a deadline").max(self.now);
        self.wake()
    }

    pub fn event(&mut self, name: &str, event: AgentInput) -> &mut Self {
        let generation = self.state.generation;
        self.input(name, Input::Agent { generation, event })
    }

    pub fn stale(&mut self, name: &str, event: AgentInput) -> &mut Self {
        let generation = Generation(self.state.generation.0 - 1);
        self.input(name, Input::Agent { generation, event })
    }

    pub fn launched(&mut self) -> &mut Self {
        self.event("launched", AgentInput::Launched { pid: 77 })
    }

    pub fn output(&mut self) -> &mut Self {
        self.event("output", AgentInput::Output)
    }

    /// The CPU time of the agent's processes was sampled for one second.
    pub fn looked(&mut self, cpu_ms: u64) -> &mut Self {
        let activity = Some(Activity {
            over_ms: 1_000,
            cpu_ms,
            ..Activity::default()
        });
        self.event("looked", AgentInput::ProcessesSampled { activity })
    }

    pub fn measured(&mut self, tokens: u64) -> &mut Self {
        self.reading(tokens, 1_000)
    }

    pub fn reading(&mut self, tokens: u64, window: u64) -> &mut Self {
        let answering = false;
        let context = context(tokens, window);
        let event = AgentInput::ContextMeasured { context, answering };
        self.event(&format!("measured {tokens}"), event)
    }

    /// Reports the context size in the middle of an answer.
    pub fn answering(&mut self, tokens: u64) -> &mut Self {
        let answering = true;
        let context = context(tokens, 1_000);
        let event = AgentInput::ContextMeasured { context, answering };
        self.event(&format!("answering {tokens}"), event)
    }

    pub fn tool(&mut self, id: &str) -> &mut Self {
        let (id, name) = (id.to_owned(), "Bash".to_owned());
        let summary = "make test".to_owned();
        self.event("tool", AgentInput::ToolStarted { id, name, summary })
    }

    pub fn tool_ended(&mut self, id: &str) -> &mut Self {
        let (id, error) = (id.to_owned(), None);
        self.event("tool ended", AgentInput::ToolEnded { id, error })
    }

    pub fn resulted(&mut self, success: bool) -> &mut Self {
        let end = TurnEnd {
            success,
            ..TurnEnd::default()
        };
        self.event(&format!("resulted {success}"), AgentInput::TurnEnded(end))
    }

    /// The turn fails because the agent cannot continue the conversation.
    pub fn spent(&mut self, spent: Spent) -> &mut Self {
        let end = TurnEnd {
            spent: Some(spent),
            ..TurnEnd::default()
        };
        self.event("spent", AgentInput::TurnEnded(end))
    }

    /// A call to the model has ended and used this many tokens.
    pub fn called(&mut self, tokens: u64) -> &mut Self {
        self.event(
            &format!("called {tokens}"),
            AgentInput::CallEnded { tokens },
        )
    }

    /// The agent reports the total cost of the conversation, in millionths of a dollar.
    pub fn cost(&mut self, conversation_microusd: u64) -> &mut Self {
        let event = AgentInput::Cost {
            conversation_microusd,
        };
        self.event(&format!("cost {conversation_microusd}"), event)
    }

    /// The turn succeeds with this cost and this number of tokens.
    pub fn priced(&mut self, cost_microusd: u64, tokens: u64) -> &mut Self {
        let end = TurnEnd {
            success: true,
            cost_microusd,
            tokens,
            ..TurnEnd::default()
        };
        self.event(
            &format!("resulted for {cost_microusd}"),
            AgentInput::TurnEnded(end),
        )
    }

    pub fn quota(&mut self, window: &str, percent: f64, resets_in: Option<u64>) -> &mut Self {
        let quota = QuotaWindow {
            window: window.to_owned(),
            percent,
            resets_at: resets_in.map(|s| self.now.after(Duration::from_secs(s))),
        };
        self.event(&format!("quota {percent}"), AgentInput::Quota(quota))
    }

    pub fn exited(&mut self, code: i32) -> &mut Self {
        self.event(&format!("exited {code}"), exited(Exit::Code(code), false))
    }

    pub fn killed(&mut self, signal: i32) -> &mut Self {
        let event = exited(Exit::Signal(signal), false);
        self.event(&format!("killed {signal}"), event)
    }

    /// The agent's process ended without a result. `words` is the end of its output.
    pub fn died(&mut self, words: &str, problem: Option<Problem>) -> &mut Self {
        let event = AgentInput::Exited {
            exit: Exit::Code(3),
            claimed: false,
            leftovers: Vec::new(),
            last_words: Some(words.to_owned()),
            problem,
            stop_pattern: None,
        };
        self.event("died", event)
    }

    pub fn claimed(&mut self) -> &mut Self {
        self.event("claimed", exited(Exit::Code(0), true))
    }

    /// The turn fails, and the agent reports the reason.
    pub fn failed(&mut self, reason: &str, problem: Option<Problem>) -> &mut Self {
        let end = TurnEnd {
            reason: Some(reason.to_owned()),
            problem,
            ..TurnEnd::default()
        };
        self.event("failed", AgentInput::TurnEnded(end))
    }

    /// The agent ends its turn successfully with this text.
    pub fn said(&mut self, text: &str) -> &mut Self {
        let end = TurnEnd {
            success: true,
            text: text.to_owned(),
            ..TurnEnd::default()
        };
        self.event("said", AgentInput::TurnEnded(end))
    }

    pub fn hooks(&mut self, point: HookPoint, error: Option<&str>) -> &mut Self {
        let results = vec![HookResult {
            name: "hook.sh".to_owned(),
            duration_ms: 5,
            error: error.map(str::to_owned),
            stop: error == Some("exit 125"),
            ..HookResult::default()
        }];
        self.input("hooks", Input::HooksRan { point, results })
    }

    /// The commit has finished: `changed` files changed in this iteration, and `committed` files were committed.
    pub fn kept(&mut self, changed: u32, committed: u32) -> &mut Self {
        let id = format!("{:07x}", self.state.tracked_work.number);
        let before = self.state.tracked_work.uncommitted;
        let kept = AutocommitResult {
            changed,
            uncommitted: before + changed - committed,
            commit: (committed > 0).then_some(Committed {
                id,
                files: committed,
            }),
            ..AutocommitResult::default()
        };
        self.answer_keep(Ok(kept))
    }

    /// The work tree was surveyed, and the commit failed.
    pub fn not_committed(&mut self, changed: u32, error: &str) -> &mut Self {
        let kept = AutocommitResult {
            changed,
            uncommitted: self.state.tracked_work.uncommitted + changed,
            error: Some(error.to_owned()),
            ..AutocommitResult::default()
        };
        self.answer_keep(Ok(kept))
    }

    pub fn answer_keep(&mut self, result: Result<AutocommitResult, String>) -> &mut Self {
        let number = self.state.tracked_work.number;
        self.input("kept", Input::AutocommitFinished { number, result })
    }

    /// The stop scripts have run. One of them returned this verdict.
    pub fn scripts(&mut self, verdict: ScriptVerdict) -> &mut Self {
        let answers = script(verdict);
        self.answers(answers)
    }

    /// The file of objectives was read.
    pub fn objectives(&mut self, markdown: &str) -> &mut Self {
        let objectives = Objectives::read(markdown);
        self.answers(Answers {
            objectives: Some(ObjectivesSeen::Read { objectives }),
            scripts: Vec::new(),
        })
    }

    pub fn answers(&mut self, answers: Answers) -> &mut Self {
        let number = self.state.completion.number;
        self.input("answered", Input::ConditionsAnswered { number, answers })
    }

    /// Gates have run, each with an error, or `None` if it passed.
    pub fn gates(&mut self, results: &[(&str, Option<&str>)]) -> &mut Self {
        let number = self.state.completion.number;
        let results = results.iter().map(|(name, error)| gate(name, *error));
        let results = results.collect();
        let tests = None;
        let ran = Input::GatesRan {
            number,
            results,
            tests,
        };
        self.input("gates", ran)
    }

    pub fn done(&mut self, reason: Option<&str>) -> &mut Self {
        let ticket = Ticket(1);
        let reason = reason.map(str::to_owned);
        self.input("done", Input::CompletionClaimed { ticket, reason })
    }

    pub fn snapshot(&mut self, commit: &str, uncommitted: u32) -> &mut Self {
        let iteration = self.state.iteration;
        let commit = commit.to_owned();
        let input = Input::SnapshotTaken {
            iteration,
            commit,
            uncommitted,
        };
        self.input("snapshot", input)
    }

    pub fn named(&mut self, agent_id: &str) -> &mut Self {
        let agent_id = agent_id.to_owned();
        self.event("named", AgentInput::SessionNamed { agent_id })
    }

    /// The process of the new session starts and answers its first prompt.
    pub fn opened(&mut self) -> &mut Self {
        self.launched().event("opened", AgentInput::Opened)
    }

    pub fn not_opened(&mut self) -> &mut Self {
        let reason = "no such program".to_owned();
        self.event("not opened", AgentInput::NotLaunched { reason })
    }
}

pub fn gate(name: &str, error: Option<&str>) -> GateResult {
    GateResult {
        name: name.to_owned(),
        duration_ms: 7,
        error: error.map(str::to_owned),
        output: error.map(|error| format!("what {name} said about {error}")),
        file: None,
    }
}

pub fn script(verdict: ScriptVerdict) -> Answers {
    Answers {
        objectives: None,
        scripts: vec![ScriptResult {
            name: "ask.sh".to_owned(),
            duration_ms: 3,
            verdict,
            words: Some("words".to_owned()),
        }],
    }
}

pub fn exited(exit: Exit, claimed: bool) -> AgentInput {
    AgentInput::Exited {
        exit,
        claimed,
        stop_pattern: None,
        leftovers: Vec::new(),
        last_words: None,
        problem: None,
    }
}

fn context(tokens: u64, window: u64) -> Context {
    Context {
        tokens,
        window,
        estimated: false,
    }
}
