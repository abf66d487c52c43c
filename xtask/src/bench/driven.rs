//! A loop that is driven in this process: the core decides, the product's journal records, and no effect is performed.
//! A hundred thousand iterations take a second, and the journal is the same as that of real runs.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tachikoma_loop_runner::store::encryption::Encryption;

use tachikoma_core::{
    AgentInput, Context, Exit, Input, Policy, Runner, State, Step, Timestamp, step,
};
use tachikoma_loop_runner::chain;
use tachikoma_loop_runner::store::journal::Journal;
use tachikoma_loop_runner::store::recover::open_journal;
use tachikoma_loop_runner::store::{StoreError, layout, loops};

const SNAPSHOT: &str = ".ralph/state.json";

/// Time that the simulated agent takes to start, and to end.
const MOMENT: Duration = Duration::from_millis(3);

/// Process id in the records, with as many digits as on a busy machine.
const PID: u32 = 1_234_567;

/// Number of tool calls of a simulated iteration in [`Driven::converse`].
const CALLS: u64 = 3;

/// A loop that is driven without a runner, with its journal.
pub struct Driven {
    pub dir: PathBuf,
    pub state: State,
    journal: Journal,
    policy: Policy,
    now: Timestamp,
}

/// Function that writes the records of a step.
pub type Write<'a> = &'a mut dyn FnMut(&mut Journal, &Step) -> Result<(), StoreError>;

impl Driven {
    /// Resumes the loop of a working directory without a runner, and starts its next iteration.
    pub fn take_up(working_dir: &Path) -> Result<Self, String> {
        let snapshot = working_dir.join(SNAPSHOT);
        let loop_id = loops::current(working_dir, &snapshot, &Encryption::plain())
            .map_err(|error| chain(&error))?;
        let loop_id = loop_id.ok_or("there is no loop to take up")?;
        let dir = layout::loop_dir(working_dir, loop_id);
        let (journal, state) =
            open_journal(&dir, &Encryption::plain()).map_err(|error| chain(&error))?;
        let policy = Policy {
            iteration_delay: Duration::ZERO,
            ..Policy::default()
        };
        let now = state.time;
        let launch = state.launch.clone();
        let runner = Runner {
            pid: PID,
            since: now,
            containment: "none".to_owned(),
            follows_until: None,
            repository: None,
        };
        let mut driven = Self {
            dir,
            state,
            journal,
            policy,
            now,
        };
        let start = Input::Start { launch, runner };
        driven.take(start, &mut |journal, step| {
            journal.append_synced(&step.records)
        })?;
        Ok(driven)
    }

    /// Ends the running iteration like a quiet agent, and starts the next one.
    pub fn iterate(&mut self, write: Write<'_>) -> Result<(), String> {
        let generation = self.state.generation;
        let exited = AgentInput::Exited {
            exit: Exit::Code(0),
            claimed: false,
            stop_pattern: None,
            leftovers: Vec::new(),
            last_words: None,
            problem: None,
        };
        for news in [AgentInput::Launched { pid: PID }, exited] {
            self.take(
                Input::Agent {
                    generation,
                    event: news,
                },
                write,
            )?;
        }
        match self.state.generation == generation {
            true => Err("no iteration follows".into()),
            false => Ok(()),
        }
    }

    /// Ends the running iteration like an agent with some tool calls and a context report, and starts the next one.
    pub fn converse(&mut self, write: Write<'_>) -> Result<(), String> {
        let generation = self.state.generation;
        let iteration = u64::from(self.state.iteration);
        let mut tell = |driven: &mut Self, news| {
            driven.take(
                Input::Agent {
                    generation,
                    event: news,
                },
                write,
            )
        };
        tell(self, AgentInput::Launched { pid: PID })?;
        for call in 0..CALLS {
            let id = format!("toolu_{iteration}_{call}");
            let context = Context {
                // The context fills up and becomes empty again, as with reboots.
                tokens: 10_000 + (iteration * CALLS + call) * 500 % 160_000,
                window: 200_000,
                estimated: false,
            };
            let (name, summary) = ("Bash".to_owned(), format!("cargo test --lib {call}"));
            let answering = false;
            tell(self, AgentInput::ContextMeasured { context, answering })?;
            let started = AgentInput::ToolStarted {
                id: id.clone(),
                name,
                summary,
            };
            tell(self, started)?;
            tell(self, AgentInput::ToolEnded { id, error: None })?;
        }
        let exited = AgentInput::Exited {
            exit: Exit::Code(0),
            claimed: false,
            stop_pattern: None,
            leftovers: Vec::new(),
            last_words: None,
            problem: None,
        };
        tell(self, exited)
    }

    fn take(&mut self, input: Input, write: Write<'_>) -> Result<(), String> {
        self.now = self.now.after(MOMENT);
        let decided = step(&self.policy, &mut self.state, self.now, input);
        write(&mut self.journal, &decided).map_err(|error| chain(&error))?;
        if self.journal.is_full() {
            let opened = self.journal.next_segment(&mut self.state, self.now);
            opened.map_err(|error| chain(&error))?;
        }
        Ok(())
    }
}
