//! A loop in a temporary directory, driven through the public interface of the crate with real child processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tachikoma_loop_runner::store::encryption::Encryption;

use tachikoma_core::{Answer, Launch, LoopEvent, Outcome, PromptSource, Record, Seq, State, apply};
use tachikoma_loop_runner::settings::{AgentName, HumanDuration, Settings};
use tachikoma_loop_runner::store::{journal, layout, loops};
use tachikoma_loop_runner::{LoopConfig, LoopRunner, LoopState, Notice};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::support::{PATIENCE, example};

/// Shell code that makes an agent wait until the test calls [`Place::go`] with the number of the agent's iteration.
pub(crate) const UNTIL_GO: &str = "while [ ! -e \"go$TACHIKOMA_ITERATION\" ]; do sleep 0.01; done;";

/// A temporary directory with a working directory and a directory for the control socket.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// Creates these directories below `parent`.
    pub(crate) fn below(parent: &Path) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        fs::create_dir(dir.path().join("w")).unwrap();
        Self { dir }
    }

    pub(crate) fn working_dir(&self) -> PathBuf {
        self.dir.path().join("w")
    }

    /// Returns a configuration: the shell runs `script` in every iteration, without delay and without a limit.
    pub(crate) fn config(&self, script: &str) -> LoopConfig {
        let mut settings = Settings::default();
        settings.agent.name = AgentName::Command;
        settings.agents.command.program = ["sh", "-c", script].map(str::to_owned).to_vec();
        settings.iteration_delay = HumanDuration::from_secs(0);
        // Most agents of these tests change no files, which would end the loop.
        settings.stop_conditions.max_no_progress_iterations = 0;
        let launch = Launch {
            agent: "command".to_owned(),
            prompt: PromptSource::Text {
                text: "work".to_owned(),
            },
            ..Launch::default()
        };
        LoopConfig {
            guard: vec![example("guard").into_os_string()],
            runtime_dir: self.dir.path().join("r"),
            temporary_dir: self.dir.path().join("t"),
            search_path: std::env::var_os("PATH"),
            ..LoopConfig::new(settings, self.working_dir(), launch)
        }
    }

    /// Lets the agent of an iteration continue that waits with [`UNTIL_GO`].
    pub(crate) fn go(&self, iteration: u32) {
        fs::write(self.working_dir().join(format!("go{iteration}")), "").unwrap();
    }

    /// Reads the history of the current loop from its journal.
    pub(crate) fn history(&self) -> Vec<Record> {
        let snapshot = self.working_dir().join(".ralph/state.json");
        let loop_id = loops::current(&self.working_dir(), &snapshot, &Encryption::plain());
        let loop_id = loop_id.unwrap().unwrap();
        let mut records = Vec::new();
        let dir = layout::loop_dir(&self.working_dir(), loop_id);
        journal::read_records(&dir, &Encryption::plain(), Seq(0), |record| {
            records.push(record);
        })
        .unwrap();
        records
    }
}

pub(crate) async fn open(config: LoopConfig) -> LoopRunner {
    LoopRunner::open(config).await.unwrap()
}

/// Parses a duration such as "300ms".
pub(crate) fn lasting(text: &str) -> HumanDuration {
    text.parse().unwrap()
}

/// Returns the public states that follow from the records, in order. The state between two records of one decision is never published, and is
/// left out.
pub(crate) fn states(history: &[Record]) -> Vec<LoopState> {
    let mut state = State::new(history[0].loop_id);
    let mut seen = vec![state.public()];
    for record in history {
        apply(&mut state, record);
        let public = state.public();
        if public != LoopState::Idle && seen.last() != Some(&public) {
            seen.push(public);
        }
    }
    seen
}

/// Returns the text of an answer that accepts a command. Panics if the command was refused.
pub(crate) fn accepted(answer: Answer) -> String {
    match answer {
        Answer::Accepted { note } => note,
        Answer::Refused { reason, .. } => panic!("refused: {reason}"),
    }
}

/// Outcome of a loop that the operator stopped.
pub(crate) const BY_OPERATOR: Outcome = Outcome::Operator;

/// A subscriber that remembers all records and output lines of a loop.
pub(crate) struct Watch {
    notices: Receiver<Notice>,
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) lines: Vec<String>,
}

impl Watch {
    pub(crate) fn on(runner: &LoopRunner) -> Self {
        Self {
            notices: runner.handle().subscribe(),
            records: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Waits for an event and returns its record.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        reached: impl Fn(&LoopEvent) -> bool,
    ) -> Arc<Record> {
        let waiting = async {
            loop {
                if let Some(record) = self.next().await
                    && reached(&record.event)
                {
                    return record;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(record) => record,
            Err(_) => panic!("not reached: {what}; seen {:#?}", self.records),
        }
    }

    /// Waits until the agent of an iteration has started, and returns its process id.
    pub(crate) async fn launched(&mut self, wanted: u32) -> i32 {
        let started = |event: &LoopEvent| matches!(event, LoopEvent::IterationStarted { iteration, .. } if *iteration == wanted);
        self.until("the iteration starts", started).await;
        let up = |event: &LoopEvent| matches!(event, LoopEvent::AgentLaunched { .. });
        let record = self.until("the agent is up", up).await;
        match record.event {
            LoopEvent::AgentLaunched { pid } => i32::try_from(pid).unwrap(),
            _ => unreachable!("`until` returned a record of another type"),
        }
    }

    /// Waits until the agent prints a line.
    pub(crate) async fn said(&mut self, line: &str) {
        let waiting = async {
            while !self.lines.iter().any(|said| said == line) {
                self.next().await;
            }
        };
        let came = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(
            came.is_ok(),
            "the agent never printed: {line}; it printed {:?}",
            self.lines
        );
    }

    async fn next(&mut self) -> Option<Arc<Record>> {
        match self.notices.recv().await {
            Ok(Notice::Recorded(record)) => {
                self.records.push(Arc::clone(&record));
                Some(record)
            }
            Ok(Notice::Output { line, .. }) => {
                self.lines.push(line.to_string());
                None
            }
            Ok(Notice::OutputSkipped { .. } | Notice::DiskFull { .. }) => None,
            Err(RecvError::Lagged(missed)) => panic!("the test subscriber missed {missed} notices"),
            Err(RecvError::Closed) => panic!(
                "the runner was dropped; records so far: {:#?}",
                self.records
            ),
        }
    }

    /// Receives the notices that have already arrived.
    pub(crate) fn catch_up(&mut self) {
        while let Ok(notice) = self.notices.try_recv() {
            if let Notice::Recorded(record) = notice {
                self.records.push(record);
            }
        }
    }
}

/// Returns the time between two records.
pub(crate) fn between(earlier: &Record, later: &Record) -> Duration {
    later.time.since(earlier.time)
}
