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

/// How long a stop script may take. A check that takes longer should be a gate.
pub(crate) const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Additional time before the core gives a check up, in which scripts are ended and their results reported.
const SLACK: Duration = Duration::from_secs(10);

/// The name of the task in an error message.
const CHECK: &str = "check after an iteration";

/// The result of a check.
#[derive(Debug)]
pub(crate) enum CheckOutput {
    Answers(Answers),
    Gates(GatesRan),
}

/// A check that runs. Dropping it aborts it.
#[derive(Debug)]
pub(crate) struct CheckRun {
    /// The number of the core's order, which the result must have.
    pub number: u64,
    pub task: CancellableTask<CheckOutput>,
}

impl CheckRun {
    /// Reads objectives and runs stop scripts after the check `before` has ended.
    pub fn ask(number: u64, questions: Questions, before: Option<Self>) -> Self {
        let ask = |orders| async move { CheckOutput::Answers(questions.ask(orders).await) };
        Self::begin(number, before, ask)
    }

    /// Runs gates after the check `before` has ended.
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

/// The directory and variables of a check.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub iteration: u32,
    pub session: u32,
    pub working_dir: PathBuf,
    /// The text on the stdin of a script.
    pub context: ScriptContext,
}

/// The facts that a stop script gets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScriptContext {
    /// Whether completion is claimed.
    claimed: bool,
    /// The working directory of the loop.
    working_dir: String,
    /// The same as `tachikoma status --json` prints.
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

/// Returns the rules for believing a claim of completion.
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
