//! Checks after an iteration: gates, which prove that the work is complete, stop scripts, and the objectives of a Markdown file.

mod ask;
mod run;
mod tested;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tachikoma_core::policy::completion::{CompletionRules, GateRule};
use tachikoma_core::{Answers, State, Status};
use tokio::sync::mpsc;

use crate::settings::{GateMoment, Settings};
use crate::shell::{CancellableTask, TaskCommand};

pub(crate) use ask::Questions;
pub(crate) use run::{GateRun, GatesRan};
pub(crate) use tested::TestHistory;

/// Timeout of a stop script. A check that takes longer should be a gate.
pub(crate) const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Additional time until the core cancels a check. In this time scripts are ended and their results reported.
const SLACK: Duration = Duration::from_secs(10);

/// Name of the background task in error messages.
const CHECK: &str = "check after an iteration";

/// The result of a check.
#[derive(Debug)]
pub(crate) enum CheckOutput {
    Answers(Answers),
    Gates(GatesRan),
}

/// A running check. Dropping it aborts the check.
#[derive(Debug)]
pub(crate) struct CheckRun {
    /// Number of the check that the core assigned. The result is reported with the same number.
    pub number: u64,
    pub task: CancellableTask<CheckOutput>,
}

impl CheckRun {
    /// Reads objectives and runs stop scripts. Waits first until the check `before` has ended.
    pub fn ask(number: u64, questions: Questions, before: Option<Self>) -> Self {
        let ask = |orders| async move { CheckOutput::Answers(questions.ask(orders).await) };
        Self::begin(number, before, ask)
    }

    /// Runs gates. Waits first until the check `before` has ended.
    pub fn gates(number: u64, gates: GateRun, before: Option<Self>) -> Self {
        let run = |orders| async move { CheckOutput::Gates(gates.run(orders).await) };
        Self::begin(number, before, run)
    }

    fn begin<W: Future<Output = CheckOutput> + Send>(
        number: u64,
        before: Option<Self>,
        work: impl FnOnce(mpsc::Receiver<TaskCommand>) -> W + Send + 'static,
    ) -> Self {
        let before = before.map(|before| before.task);
        Self {
            number,
            task: CancellableTask::start(CHECK, before, work),
        }
    }
}

/// Working directory and environment of a check's commands.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub iteration: u32,
    pub session: u32,
    pub working_dir: PathBuf,
    /// Facts that are written to the stdin of a script.
    pub context: ScriptContext,
}

/// Facts about the loop that a stop script gets as JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScriptContext {
    /// Whether the agent claims completion.
    claimed: bool,
    /// The working directory of the loop.
    working_dir: String,
    /// The status as `tachikoma status --json` prints it.
    #[serde(flatten)]
    status: Status,
}

impl Scene {
    pub fn of(state: &State, working_dir: PathBuf) -> Self {
        let status = Status::of(state, true);
        Self {
            iteration: state.iteration,
            session: state.session.number.0,
            context: ScriptContext {
                claimed: !state.completion.claims.is_empty(),
                working_dir: working_dir.to_string_lossy().into_owned(),
                status,
            },
            working_dir,
        }
    }

    fn variables(&self) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
        vec![
            (
                "TACHIKOMA_ITERATION".into(),
                self.iteration.to_string().into(),
            ),
            ("TACHIKOMA_SESSION".into(), self.session.to_string().into()),
            ("TACHIKOMA_DIR".into(), self.working_dir.clone().into()),
        ]
    }
}

/// Returns the rules that decide when a claim of completion is accepted.
pub(crate) fn rules(settings: &Settings) -> CompletionRules {
    let conditions = &settings.stop_conditions;
    let gates = settings.gate.iter().map(|gate| GateRule {
        name: gate.name.clone(),
        timeout: gate.timeout.get(),
        each_iteration: gate.when == GateMoment::Iteration,
    });
    let objectives = conditions.objectives.is_some();
    let scripts = !conditions.custom_scripts.is_empty();
    let patience = if scripts {
        SCRIPT_TIMEOUT
    } else {
        Duration::ZERO
    };
    CompletionRules {
        gates: gates.collect(),
        objectives,
        asking: (objectives || scripts).then(|| patience + SLACK),
        confirmations: conditions.confirmations,
        baseline: true,
    }
}
