//! What objectives, scripts and gates said in the record, told to a loop that may ask others.

use super::Shadow;
use crate::completion::{Answers, CheckStage, GateResult};
use crate::input::Input;
use crate::tests_report::TestsReport;
use crate::time::Timestamp;

impl Shadow {
    /// Objectives and scripts have answered in the record.
    pub(super) fn answered(&mut self, now: Timestamp, answers: &Answers, written: Option<usize>) {
        let mut answers = answers.clone();
        if !self.policy.completion.objectives {
            answers.objectives = None;
        }
        let number = self.state.completion.number;
        // Who has asked nothing drops it.
        let _ = self.feed(now, Input::Answered { number, answers }, written);
    }

    /// Gates have run in the record.
    pub(super) fn gates_ran(
        &mut self,
        now: Timestamp,
        results: &[GateResult],
        tests: Option<TestsReport>,
        written: Option<usize>,
    ) {
        if self.stage() == Some(CheckStage::Asking) {
            self.finish_check(now);
        }
        let Some(CheckStage::Gates { names, .. }) = self.stage() else {
            return;
        };
        let asked = self.recorded_check.as_ref().map(|check| &check.stage);
        let ran = match asked {
            Some(CheckStage::Gates { names, .. }) => names.clone(),
            Some(CheckStage::Asking) | None => Vec::new(),
        };
        let told = results.iter().filter(|result| names.contains(&result.name));
        let mut results: Vec<GateResult> = told.cloned().collect();
        for name in names.iter().filter(|name| !ran.contains(name)) {
            let result = self.assume(name);
            results.push(result);
        }
        let number = self.state.completion.number;
        let input = Input::GatesRan {
            number,
            results,
            tests,
        };
        let _ = self.feed(now, input, written);
    }

    /// Finds out what the recorded loop did not, from what it found out before.
    pub(super) fn finish_check(&mut self, now: Timestamp) {
        let Some(stage) = self.stage() else { return };
        self.guessed = true;
        let now = now.max(self.state.time);
        let number = self.state.completion.number;
        let input = match stage {
            CheckStage::Asking => {
                self.assumed
                    .push("stop scripts that were not asked are taken to go on".to_owned());
                let answers = Answers {
                    objectives: self.objectives.clone(),
                    scripts: Vec::new(),
                };
                Input::Answered { number, answers }
            }
            CheckStage::Gates { names, .. } => {
                let results = names.iter().map(|name| self.assume(name)).collect();
                Input::GatesRan {
                    number,
                    results,
                    tests: None,
                }
            }
        };
        let _ = self.feed(now, input, None);
    }

    fn stage(&self) -> Option<CheckStage> {
        self.state.check().map(|check| check.stage.clone())
    }

    /// Says how a gate went that did not run: as it went last, and well if it had not run by then.
    fn assume(&mut self, name: &str) -> GateResult {
        self.guessed = true;
        let known = self.gates.get(name).cloned();
        self.assumed.push(match &known {
            Some(result) if result.passed() => {
                format!("the gate `{name}` did not run here and is taken to pass, as it did last")
            }
            Some(_) => {
                format!("the gate `{name}` did not run here and is taken to fail, as it did last")
            }
            None => format!("the gate `{name}` had not run by then and is taken to pass"),
        });
        known.unwrap_or_else(|| GateResult {
            name: name.to_owned(),
            ..GateResult::default()
        })
    }
}
