//! Runs gates one after another. All of them run, so that the agent learns of every failure.

use std::path::PathBuf;

use tachikoma_core::GateResult;
use tokio::sync::mpsc;

use super::Scene;
use super::tested::{TestHistory, TestRun, TestsRead};
use crate::clock;
use crate::session::transcript::Transcript;
use crate::settings::Gate;
use crate::shell::{CommandOutput, Job, Limit, Shell, TaskCommand};

/// Maximum size of the end of a gate's output that is recorded. The end usually shows what failed.
const OUTPUT_BYTES_MAX: usize = 8 << 10;

/// Maximum size of the file with a gate's output, for people and for the parsers of test results.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Gates to run.
#[derive(Debug)]
pub(crate) struct GateRun {
    /// Each gate with its position in the configuration, from 1.
    pub gates: Vec<(u32, Gate)>,
    pub scene: Scene,
    /// Directory of the files with the output of the gates.
    pub directory: PathBuf,
    pub shell: Shell,
    /// Number of configured gates, including gates that do not run now.
    pub all: usize,
    /// The test history of earlier runs of the gates.
    pub history: TestHistory,
}

/// The results of gates.
#[derive(Debug)]
pub(crate) struct GatesRan {
    /// The result of each gate, in order.
    pub results: Vec<GateResult>,
    /// The test results of the gates; `None` if no gate ran tests.
    pub tests: Option<TestRun>,
    /// Warnings about the test results.
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
            let error = ended.failure.map(|failure| failure.describe(timeout));
            let (tail, file) = ended.output.close();
            let file = file.ok().flatten();
            left.push((gate.clone(), since, file.clone()));
            results.push(GateResult {
                name: gate.name.clone(),
                duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                error,
                output: tail.text(),
                file: file.map(|file| file.to_string_lossy().into_owned()),
            });
            if ended.canceled {
                break;
            }
        }
        self.shell.close().await;
        let (all, scene, before) = (self.all, self.scene, self.history);
        let read = tokio::task::spawn_blocking(move || {
            let mut read = TestsRead::default();
            for (gate, since, file) in &left {
                let printed = file.as_deref().map(|file| (file, &before.encryption));
                read.gate(gate, &scene.working_dir, *since, printed, all);
            }
            let tests = read.compare(scene.iteration, &before);
            (tests, read.warnings)
        });
        let (tests, warnings) = read.await.unwrap_or_else(|error| {
            let warning = format!("the test results of gates cannot be read: {error}");
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
            output: CommandOutput::whole(
                OUTPUT_BYTES_MAX,
                file.labelled(&gate.name).kept_in(&self.history.encryption),
            ),
        }
    }
}
