//! Checks after an iteration: gates, stop scripts and objectives.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tachikoma_core::{Input, Owed, State, TestsSeen};
use tokio::sync::oneshot;

use super::autocommit::Autocommit;
use super::context::{Context, InputQueue, warning_input};
use super::maintenance::Maintenance;
use crate::config::LoopConfig;
use crate::gates::{CheckOutput, CheckRun, GateRun, GatesRan, Questions, Scene, TestHistory};
use crate::store::layout::gates_dir;
use crate::store::test_history;
use crate::task::await_some;
use tachikoma_core::error_chain as chain;

/// The running check, and state of checks that is not in the journal.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The check that the loop waits for, or that is being canceled; `None` if no check runs.
    run: Option<CheckRun>,
    /// The test history to write after the test run is recorded.
    unwritten_history: Option<TestsSeen>,
    /// The last warnings about test results, so that they are not repeated.
    reported: Vec<String>,
    /// Stop scripts that cannot be run, with the reason that was already reported.
    unusable_scripts: BTreeMap<PathBuf, String>,
    /// Gates that wait for the survey at the start of the run: the number of their check, and their names.
    gates_after_opening: Option<(u64, Vec<String>)>,
}

impl Checks {
    /// Reads the objectives and runs the stop scripts.
    pub fn ask(
        &mut self,
        context: Context<'_>,
        number: u64,
        autocommit: &Autocommit,
        queue: &mut InputQueue,
    ) {
        queue.extend(self.script_warnings(context.config));
        let conditions = &context.config.settings.stop_conditions;
        let objectives = conditions.objectives.as_deref();
        // Scripts do not run before the first iteration, because there is no work to judge yet.
        let after_iteration = context.state.completion.owed != Owed::Nothing;
        let scripts = conditions.custom_scripts.iter().filter(|script| {
            // Scripts that cannot be run are left out. A warning was reported above.
            after_iteration && !self.unusable_scripts.contains_key(*script)
        });
        let scripts = scripts.map(|script| (context.config.resolve(script), context.shell()));
        let questions = Questions {
            objectives: objectives.map(|path| context.config.resolve(path)),
            scripts: scripts.collect(),
            scene: scene(context),
        };
        if !questions.scripts.is_empty() {
            autocommit.owe_survey();
        }
        self.run = Some(CheckRun::ask(number, questions, self.run.take()));
    }

    /// Returns a warning for each stop script that cannot be run, unless it was reported before.
    pub fn script_warnings(&mut self, config: &LoopConfig) -> Vec<Input> {
        let scripts = &config.settings.stop_conditions.custom_scripts;
        let problem = |script: &PathBuf| Some((script.clone(), script_problem(config, script)?));
        let unusable: BTreeMap<PathBuf, String> = scripts.iter().filter_map(problem).collect();
        let known = std::mem::replace(&mut self.unusable_scripts, unusable);
        let new = self.unusable_scripts.iter();
        let new = new.filter(|(script, _)| !known.contains_key(*script));
        new.map(|(script, why)| {
            warning_input(format!(
                "the stop script `{}` cannot be asked: {why}",
                script.display()
            ))
        })
        .collect()
    }

    /// Starts gates.
    pub fn run_gates(
        &mut self,
        context: Context<'_>,
        number: u64,
        names: &[String],
        autocommit: &Autocommit,
    ) {
        // The gates wait for the survey at the start, which would attribute their changes to others.
        if autocommit.is_opening() {
            self.gates_after_opening = Some((number, names.to_vec()));
            return;
        }
        let config = context.config;
        let gates = (1..).zip(&config.settings.gate);
        let gates = gates.filter(|(_, gate)| names.contains(&gate.name));
        let dir = context.loop_dir();
        let progress = &context.state.progress;
        let gates = GateRun {
            gates: gates.map(|(place, gate)| (place, gate.clone())).collect(),
            scene: scene(context),
            directory: gates_dir(&dir),
            all: config.settings.gate.len(),
            history: TestHistory {
                any: progress.tests.is_some(),
                changed: progress.untested || context.policy.autocommit.is_none(),
                dir,
                encryption: config.encryption.clone(),
            },
            shell: context.shell(),
        };
        // Changes that gates make in the work tree belong to the loop.
        autocommit.owe_survey();
        self.run = Some(CheckRun::gates(number, gates, self.run.take()));
    }

    /// Starts the gates that waited for the survey at the start of the run, if the loop still waits for them.
    pub fn run_gates_after_opening(&mut self, context: Context<'_>, autocommit: &Autocommit) {
        let waits = context.state.check().is_some();
        if let Some((number, names)) = self.gates_after_opening.take()
            && waits
            && number == context.state.completion.number
        {
            self.run_gates(context, number, &names, autocommit);
        }
    }

    /// Waits until the running check ends. Cancel-safe.
    pub async fn next_event(&mut self) -> Result<CheckOutput, String> {
        await_some(self.run.as_mut().map(|run| run.task.ended())).await
    }

    /// Returns the input that reports the result of a check to the core.
    pub fn ended(
        &mut self,
        context: Context<'_>,
        result: Result<CheckOutput, String>,
        maintenance: &mut Maintenance,
        queue: &mut InputQueue,
    ) -> Option<Input> {
        let number = self.run.take()?.number;
        let ran = match result {
            Ok(CheckOutput::Answers(answers)) => {
                return Some(Input::ConditionsAnswered { number, answers });
            }
            Ok(CheckOutput::Gates(ran)) => ran,
            Err(reason) => return Some(Input::Broken { reason }),
        };
        let GatesRan {
            mut results,
            tests,
            warnings,
        } = ran;
        for result in &mut results {
            let Some(file) = &result.file else { continue };
            maintenance.compress_transcript(file.into(), &context.config.encryption);
            // Only the name of the file is recorded, because the directory of the loop may be moved.
            let name = Path::new(file).file_name();
            result.file = name.map(|name| name.to_string_lossy().into_owned());
        }
        let tests = tests.map(|tested| {
            self.unwritten_history = Some(tested.history);
            tested.report
        });
        self.report(warnings, queue);
        // The result is queued after the warnings, because the loop may end with it.
        queue.push(Input::GatesRan {
            number,
            results,
            tests,
        });
        None
    }

    /// Queues warnings about test results, unless the last warnings differ only in numbers.
    fn report(&mut self, warnings: Vec<String>, queue: &mut InputQueue) {
        let without_numbers = |warnings: &[String]| -> Vec<String> {
            let words = warnings.iter();
            words
                .map(|words| words.replace(|c: char| c.is_ascii_digit(), ""))
                .collect()
        };
        if without_numbers(&warnings) != without_numbers(&self.reported) {
            queue.extend(warnings.iter().map(warning_input));
            self.reported = warnings;
        }
    }

    /// Writes the test history after the test run was recorded.
    pub fn write_test_history(&mut self, context: Context<'_>, queue: &mut InputQueue) {
        let Some(history) = self.unwritten_history.take() else {
            return;
        };
        let written = test_history::write(&context.loop_dir(), history, &context.config.encryption);
        if let Err(error) = written {
            queue.warn(format!(
                "the history of the tests cannot be written: {}",
                chain(&error)
            ));
        }
    }

    /// Cancels a check that the loop no longer waits for, because of its timeout or the end of the loop.
    pub fn cancel_outdated(&self, state: &State) {
        let awaited = state.check().map(|_| state.completion.number);
        if let Some(run) = &self.run
            && awaited != Some(run.number)
        {
            run.task.cancel();
        }
    }

    /// Cancels the check.
    pub fn cancel(&self) {
        if let Some(run) = &self.run {
            run.task.cancel();
        }
    }

    /// Suspends the check, as Ctrl-Z does, and then sends `done`.
    pub fn suspend(&self, done: oneshot::Sender<()>) {
        match &self.run {
            Some(run) => run.task.suspend(done),
            // Sending fails if the caller no longer waits, which does not matter.
            None => drop(done.send(())),
        }
    }

    /// Continues a suspended check.
    pub fn resume(&self) {
        if let Some(run) = &self.run {
            run.task.resume();
        }
    }

    /// Cancels the check and waits until it has ended.
    pub async fn shutdown(&mut self) {
        if let Some(run) = self.run.take() {
            run.task.cancel_and_wait().await;
        }
    }
}

fn scene(context: Context<'_>) -> Scene {
    Scene::of(context.state, context.config.working_dir.clone())
}

fn script_problem(config: &LoopConfig, script: &Path) -> Option<String> {
    let path = config.resolve(script);
    match std::fs::metadata(&path) {
        Ok(there) if !there.is_file() => Some("it is not a file".to_owned()),
        Ok(there) if there.permissions().mode() & 0o111 == 0 => {
            Some("it is not executable: run `chmod +x` on it".to_owned())
        }
        Ok(_) => None,
        Err(error) if script.as_os_str().as_bytes().contains(&b' ') => Some(format!(
            "{error}; it has to be the path of a program, not a command line: put that into a script"
        )),
        Err(error) => Some(error.to_string()),
    }
}
