//! Gates at work, one after the other: all of them run, so that the agent hears of everything that fails.

use std::path::PathBuf;

use tachikoma_core::GateResult;
use tokio::sync::mpsc;

use super::Scene;
use super::tested::{TestHistory, TestRun, TestsRead};
use crate::clock;
use crate::session::transcript::Transcript;
use crate::settings::Gate;
use crate::shell::{Job, Limit, Said, Shell, TaskCommand};

/// Of a gate's output its end is recorded, which says what failed. The journal is no place for more.
const OUTPUT_BYTES_MAX: usize = 8 << 10;

/// Of a gate's output all is kept in a file, up to this: a person reads it, and a parser of test results.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Gates that are to be run, and with what.
#[derive(Debug)]
pub(crate) struct GateRun {
    /// Each with its place in the configuration, from 1.
    pub gates: Vec<(u32, Gate)>,
    pub scene: Scene,
    /// Where what they say is kept.
    pub directory: PathBuf,
    pub shell: Shell,
    /// How many gates there are, whether they run or not.
    pub all: usize,
    /// What is known of the tests in them.
    pub history: TestHistory,
}

/// What came of gates.
#[derive(Debug)]
pub(crate) struct GatesRan {
    /// How each went, in order.
    pub results: Vec<GateResult>,
    /// What the tests in them came to, where there are any.
    pub tests: Option<TestRun>,
    /// What a person should know of these.
    pub warnings: Vec<String>,
}

impl GateRun {
    pub async fn run(mut self, mut orders: mpsc::Receiver<TaskCommand>) -> GatesRan {
        let mut results = Vec::new();
        let mut left = Vec::new();
        for (place, gate) in &self.gates {
            let began = clock::monotonic();
            let since = clock::file_time();
            let job = self.job(*place, gate);
            let ended = self.shell.run(job, &mut orders).await;
            let timeout = gate.timeout.get();
            let error = ended.failure.map(|failure| failure.words(timeout));
            let (tail, file) = ended.said.close();
            let file = file.ok().flatten();
            left.push((gate.clone(), since, file.clone()));
            results.push(GateResult {
                name: gate.name.clone(),
                duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                error,
                output: tail.text(),
                file: file.map(|file| file.to_string_lossy().into_owned()),
            });
            if ended.called_off {
                break;
            }
        }
        self.shell.close().await;
        let (all, scene, before) = (self.all, self.scene, self.history);
        let read = tokio::task::spawn_blocking(move || {
            let mut read = TestsRead::default();
            for (gate, since, file) in &left {
                let printed = file.as_deref().map(|file| (file, &before.vault));
                read.gate(gate, &scene.working_dir, *since, printed, all);
            }
            let tests = read.compare(scene.iteration, &before);
            (tests, read.warnings)
        });
        let (tests, warnings) = read.await.unwrap_or_else(|error| {
            let warning = format!("what gates said of tests is not known: {error}");
            (None, vec![warning])
        });
        GatesRan {
            results,
            tests,
            warnings,
        }
    }

    fn job(&self, place: u32, gate: &Gate) -> Job {
        let (program, args) = Job::line(&gate.command);
        let mut env = self.scene.variables();
        env.push(("TACHIKOMA_GATE_NAME".into(), gate.name.clone().into()));
        let iteration = self.scene.iteration.into();
        let file = Transcript::new(self.directory.clone(), iteration, place, FILE_BYTES_MAX);
        Job {
            program,
            args,
            env,
            working_dir: self.scene.working_dir.clone(),
            input: Vec::new(),
            limit: Limit::new(gate.timeout.get()),
            said: Said::whole(
                OUTPUT_BYTES_MAX,
                file.labelled(&gate.name).kept_in(&self.history.vault),
            ),
        }
    }
}
