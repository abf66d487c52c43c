//! What is found out behind an iteration: begun, heard of and called off.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tachikoma_core::{Input, Owed, TestsReport, TestsSeen};

use super::LoopRunner;
use super::upkeep::Task;
use crate::error::chain;
use crate::gates::{Before, CheckRun, Found, GateRun, GatesRan, Questions, Scene, Tested};
use crate::shell::{Ran, Shell};
use crate::store::{gates_dir, loops, tests_book};

/// What is known of what is found out in this run, besides what is recorded.
#[derive(Debug, Default)]
pub(super) struct ChecksKnown {
    /// Books that are written when their run is recorded.
    books: Option<TestsSeen>,
    /// What was last said to be wrong.
    said: Vec<String>,
    /// Stop scripts that cannot be asked, and why; that was said.
    unaskable: BTreeMap<PathBuf, String>,
    /// Gates that start when the opening look at the work tree is over: the number of their order, and their names.
    gates_after_opening: Option<(u64, Vec<String>)>,
}

impl LoopRunner {
    fn scene(&self) -> Scene {
        Scene::of(&self.state, self.config.working_dir.clone())
    }

    /// Reads the objectives and asks the stop scripts.
    pub(super) fn ask(&mut self, number: u64) {
        let problems = self.problems_of_scripts();
        self.queue.extend(problems);
        let conditions = &self.config.settings.stop_conditions;
        let objectives = conditions.objectives.as_deref();
        // Before the first iteration there is nothing that a script could have a say in.
        let behind = self.state.completion.owed != Owed::Nothing;
        let unaskable = &self.checks.unaskable;
        let scripts = conditions.custom_scripts.iter().filter(|script| {
            // One that cannot be asked was warned of.
            behind && !unaskable.contains_key(*script)
        });
        let scripts = scripts.map(|script| {
            let shell = Shell::new(self.guard_options());
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

    /// Says which stop scripts cannot be asked, unless it was said.
    pub(super) fn problems_of_scripts(&mut self) -> Vec<Input> {
        let scripts = &self.config.settings.stop_conditions.custom_scripts;
        let problem = |script: &PathBuf| Some((script.clone(), self.why_unaskable(script)?));
        let unaskable: BTreeMap<PathBuf, String> = scripts.iter().filter_map(problem).collect();
        let known = std::mem::replace(&mut self.checks.unaskable, unaskable);
        let news = self.checks.unaskable.iter();
        let news = news.filter(|(script, _)| !known.contains_key(*script));
        news.map(|(script, why)| Input::Warning {
            warning: format!(
                "the stop script `{}` cannot be asked: {why}",
                script.display()
            ),
        })
        .collect()
    }

    fn why_unaskable(&self, script: &Path) -> Option<String> {
        let path = self.config.resolve(script);
        match std::fs::metadata(&path) {
            Ok(there) if !there.is_file() => Some("it is no file".to_owned()),
            Ok(there) if there.permissions().mode() & 0o111 == 0 => {
                Some("it may not be executed".to_owned())
            }
            Ok(_) => None,
            Err(error) if script.as_os_str().as_bytes().contains(&b' ') => Some(format!(
                "{error}; it has to be the path of a program, not a command line: put that into a script"
            )),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Starts gates.
    pub(super) fn run_gates(&mut self, number: u64, names: &[String]) {
        // What they change during the opening look would pass for somebody else's.
        if self.keeping.is_opening() {
            self.checks.gates_after_opening = Some((number, names.to_vec()));
            return;
        }
        let gates = (1..).zip(&self.config.settings.gate);
        let gates = gates.filter(|(_, gate)| names.contains(&gate.name));
        let root = self.config.store_root(self.state.loop_id);
        let dir = loops::dir(&root, self.state.loop_id);
        let progress = &self.state.progress;
        let gates = GateRun {
            gates: gates.map(|(place, gate)| (place, gate.clone())).collect(),
            scene: self.scene(),
            directory: gates_dir(&dir),
            all: self.config.settings.gate.len(),
            before: Before {
                any: progress.tests.is_some(),
                changed: progress.untested || self.policy.autocommit.is_none(),
                dir,
                vault: self.config.vault.clone(),
            },
            shell: Shell::new(self.guard_options()),
        };
        // What they change in the work tree is no stranger's doing.
        self.keeping.owe_a_look();
        self.check = Some(CheckRun::gates(number, gates, self.check.take()));
    }

    /// Starts the gates that waited for the opening look, if their answer is still waited for.
    pub(super) fn run_gates_after_opening(&mut self) {
        let waits = self.state.check().is_some();
        if let Some((number, names)) = self.checks.gates_after_opening.take()
            && waits
            && number == self.state.completion.number
        {
            self.run_gates(number, &names);
        }
    }

    pub(super) fn check_ended(&mut self, ran: Ran<Found>) -> Option<Input> {
        let number = self.check.take()?.number;
        Some(match ran {
            Ran::With(Found::Answers(answers)) => Input::ConditionsAnswered { number, answers },
            Ran::With(Found::Gates(ran)) => {
                let GatesRan {
                    mut results,
                    tests,
                    warnings,
                } = ran;

                for result in &mut results {
                    let Some(file) = &result.file else { continue };
                    self.upkeep.leave(Task::CompressTranscript {
                        path: file.into(),
                        vault: self.config.vault.clone(),
                    });
                    // Where the loop's own directory is may change, and is known to whoever asks.
                    let name = Path::new(file).file_name();
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
        self.checks.books = Some(tested.books);
        tested.report
    }

    /// Says what is wrong with results of tests, unless it was the same the last time, at whatever line.
    fn say_of_tests(&mut self, warnings: Vec<String>) {
        let without_numbers = |warnings: &[String]| -> Vec<String> {
            let words = warnings.iter();
            words
                .map(|words| words.replace(|c: char| c.is_ascii_digit(), ""))
                .collect()
        };
        if without_numbers(&warnings) == without_numbers(&self.checks.said) {
            return;
        }
        let said = warnings.iter().cloned();
        let troubles = said.map(|warning| Input::Warning { warning });
        self.queue.extend(troubles);
        self.checks.said = warnings;
    }

    /// Writes the books of the tests: what they have is recorded.
    pub(super) fn write_tests_book(&mut self) {
        let Some(books) = self.checks.books.take() else {
            return;
        };
        let root = self.config.store_root(self.state.loop_id);
        let dir = loops::dir(&root, self.state.loop_id);
        if let Err(error) = tests_book::write(&dir, books, &self.config.vault) {
            let warning = format!("the books of the tests are not kept: {}", chain(&error));
            self.queue.push_back(Input::Warning { warning });
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
