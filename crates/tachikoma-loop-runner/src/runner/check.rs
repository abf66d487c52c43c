//! What is found out behind an iteration: begun, heard of and called off.

use tachikoma_core::Input;

use super::LoopRunner;
use super::upkeep::Task;
use crate::control::Server;
use crate::gates::{CheckRun, Found, GateRun, Questions, Scene};
use crate::shell::{Ran, Shell};
use crate::store::{gates_dir, loops};

impl LoopRunner {
    fn scene(&self) -> Scene {
        Scene::of(&self.state, self.config.working_dir.clone())
    }

    /// Reads the objectives and asks the stop scripts.
    pub(super) fn ask(&mut self, number: u64) {
        let conditions = &self.config.settings.stop_conditions;
        let objectives = conditions.objectives.as_deref();
        let scripts = conditions.custom_scripts.iter().map(|script| {
            let shell = Shell::new(self.guard_options());
            (self.config.resolve(script), shell)
        });
        let questions = Questions {
            objectives: objectives.map(|path| self.config.resolve(path)),
            scripts: scripts.collect(),
            scene: self.scene(),
        };
        self.check = Some(CheckRun::ask(number, questions, self.check.take()));
    }

    /// Starts gates.
    pub(super) fn run_gates(&mut self, number: u64, names: &[String]) {
        let gates = (1..).zip(&self.config.settings.gate);
        let gates = gates.filter(|(_, gate)| names.contains(&gate.name));
        let root = self.config.store_root(self.state.loop_id);
        let named = self.control.as_ref().map(Server::gates);
        let gates = GateRun {
            gates: gates.map(|(place, gate)| (place, gate.clone())).collect(),
            scene: self.scene(),
            directory: gates_dir(&loops::dir(&root, self.state.loop_id)),
            shell: Shell::new(self.guard_options()).named(named),
        };
        // What they change in the work tree is no stranger's doing.
        self.keeping.owe_a_look();
        self.check = Some(CheckRun::gates(number, gates, self.check.take()));
    }

    pub(super) fn check_ended(&mut self, ran: Ran<Found>) -> Option<Input> {
        let number = self.check.take()?.number;
        Some(match ran {
            Ran::With(Found::Answers(answers)) => Input::Answered { number, answers },
            Ran::With(Found::Gates(mut results)) => {
                for result in &mut results {
                    let Some(file) = &result.file else { continue };
                    self.upkeep.leave(Task::CompressTranscript(file.into()));
                    // Where the loop's own directory is may change, and is known to whoever asks.
                    let name = std::path::Path::new(file).file_name();
                    result.file = name.map(|name| name.to_string_lossy().into_owned());
                }
                Input::GatesRan { number, results }
            }
            Ran::Broken(reason) => Input::Broken { reason },
        })
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
