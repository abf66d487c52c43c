//! What is found out behind an iteration: begun, heard of and called off.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tachikoma_core::{Input, Owed, TestsReport, TestsSeen};

use super::LoopRunner;
use super::upkeep::Task;
use crate::control::Server;
use crate::error::chain;
use crate::gates::{Before, CheckRun, Found, GateRun, GatesRan, Questions, Scene, Tested};
use crate::shell::{Ran, Shell};
use crate::store::{gates_dir, loops, tests_book};

/// What is known of tests in this run, besides what is recorded.
#[derive(Debug, Default)]
pub(super) struct TestsKnown {
    /// Books that are written when their run is recorded.
    books: Option<TestsSeen>,
    /// What was last said to be wrong.
    said: Vec<String>,
}

impl LoopRunner {
    fn scene(&self) -> Scene {
        Scene::of(&self.state, self.config.working_dir.clone())
    }

    /// Reads the objectives and asks the stop scripts.
    pub(super) fn ask(&mut self, number: u64) {
        let conditions = &self.config.settings.stop_conditions;
        let objectives = conditions.objectives.as_deref();
        // Before the first iteration there is nothing that a script could have a say in.
        let behind = self.state.completion.owed != Owed::Nothing;
        let scripts = conditions.custom_scripts.iter().filter(|_| behind);
        let names = self.control.iter().flat_map(Server::beside);
        let names = names.map(Some).chain(std::iter::repeat(None));
        let scripts = scripts.zip(names).map(|(script, named)| {
            let shell = Shell::new(self.guard_options())
                .hiding(self.secret_names())
                .named(named.cloned());
            (self.config.resolve(script), shell)
        });
        let questions = Questions {
            objectives: objectives.map(|path| self.config.resolve(path)),
            scripts: scripts.collect(),
            scene: self.scene(),
        };
        if !questions.scripts.is_empty() {
            self.keeping.owe_a_look();
        }
        self.check = Some(CheckRun::ask(number, questions, self.check.take()));
    }

    /// Says which stop scripts cannot be asked, before an iteration is spent on finding out.
    pub(super) fn warn_of_scripts(&mut self) {
        let scripts = &self.config.settings.stop_conditions.custom_scripts;
        let problem = |script: &PathBuf| {
            let path = self.config.resolve(script);
            let why = match std::fs::metadata(&path) {
                Ok(there) if !there.is_file() => "it is no file".to_owned(),
                Ok(there) if there.permissions().mode() & 0o111 == 0 => {
                    "it may not be executed".to_owned()
                }
                Ok(_) => return None,
                Err(error) => error.to_string(),
            };
            let shown = script.display();
            let warning = format!("the stop script `{shown}` cannot be asked: {why}");
            Some(Input::Trouble { warning })
        };
        self.queue.extend(scripts.iter().filter_map(problem));
    }

    /// Starts gates.
    pub(super) fn run_gates(&mut self, number: u64, names: &[String]) {
        let gates = (1..).zip(&self.config.settings.gate);
        let gates = gates.filter(|(_, gate)| names.contains(&gate.name));
        let root = self.config.store_root(self.state.loop_id);
        let named = self.control.as_ref();
        let named = named.and_then(|control| control.beside().first().cloned());
        let dir = loops::dir(&root, self.state.loop_id);
        let progress = &self.state.progress;
        let gates = GateRun {
            gates: gates.map(|(place, gate)| (place, gate.clone())).collect(),
            scene: self.scene(),
            directory: gates_dir(&dir),
            all: self.config.settings.gate.len(),
            before: Before {
                any: progress.tests.is_some(),
                changed: progress.untested || self.policy.keep.is_none(),
                dir,
            },
            shell: Shell::new(self.guard_options())
                .hiding(self.secret_names())
                .named(named),
        };
        // What they change in the work tree is no stranger's doing.
        self.keeping.owe_a_look();
        self.check = Some(CheckRun::gates(number, gates, self.check.take()));
    }

    pub(super) fn check_ended(&mut self, ran: Ran<Found>) -> Option<Input> {
        let number = self.check.take()?.number;
        Some(match ran {
            Ran::With(Found::Answers(answers)) => Input::Answered { number, answers },
            Ran::With(Found::Gates(ran)) => {
                let GatesRan {
                    mut results,
                    tests,
                    warnings,
                } = ran;

                for result in &mut results {
                    let Some(file) = &result.file else { continue };
                    self.upkeep.leave(Task::CompressTranscript(file.into()));
                    // Where the loop's own directory is may change, and is known to whoever asks.
                    let name = std::path::Path::new(file).file_name();
                    result.file = name.map(|name| name.to_string_lossy().into_owned());
                }
                let tests = tests.map(|tested| self.remember(tested));
                self.say_of_tests(warnings);
                // Behind what there is to say: the loop may end with it.
                self.queue.push_back(Input::GatesRan {
                    number,
                    results,
                    tests,
                });
                return None;
            }
            Ran::Broken(reason) => Input::Broken { reason },
        })
    }

    /// Keeps the books until what they have is recorded.
    fn remember(&mut self, tested: Tested) -> TestsReport {
        self.tests.books = Some(tested.books);
        tested.report
    }

    /// Says what is wrong with results of tests, unless it was the same the last time.
    fn say_of_tests(&mut self, warnings: Vec<String>) {
        if warnings == self.tests.said {
            return;
        }
        let said = warnings.iter().cloned();
        let troubles = said.map(|warning| Input::Trouble { warning });
        self.queue.extend(troubles);
        self.tests.said = warnings;
    }

    /// Writes the books of the tests: what they have is recorded.
    pub(super) fn write_tests_book(&mut self) {
        let Some(books) = self.tests.books.take() else {
            return;
        };
        let root = self.config.store_root(self.state.loop_id);
        let dir = loops::dir(&root, self.state.loop_id);
        if let Err(error) = tests_book::write(&dir, books) {
            let warning = format!("the books of the tests are not kept: {}", chain(&error));
            self.queue.push_back(Input::Trouble { warning });
        }
    }

    /// Calls a check off that nobody waits for any more: its time is over, or the loop ended. Never waits.
    pub(super) fn call_off_check(&self) {
        let awaited = self.state.check().map(|_| self.state.completion.number);
        if let Some(check) = &self.check
            && awaited != Some(check.number)
        {
            check.errand.call_off();
        }
    }
}
