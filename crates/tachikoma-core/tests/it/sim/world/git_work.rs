//! Simulated work after a turn: hooks, snapshots, commits and gates.

use tachikoma_core::{
    Answers, AutocommitPurpose, AutocommitResult, Committed, GateResult, HookKind, HookPoint,
    HookResult, Input, Objectives, ObjectivesSeen, ScriptResult, ScriptVerdict, TestsReport,
};

use super::World;

impl World {
    pub(super) fn hooks(&mut self, point: HookPoint) {
        let after = self.dice.pick(&[0, 3_000, 60_000]);
        let failed = self.dice.one_in(5);
        let stop = failed && point.kind() != HookKind::Reboot && self.dice.one_in(4);
        let value = self.dice.below(3);
        let custom = [("seen".to_owned(), value.into())].into();
        let results = vec![HookResult {
            name: "hook.sh".to_owned(),
            duration_ms: 3,
            error: failed.then(|| "exit 1".to_owned()),
            stop,
            custom,
            ..HookResult::default()
        }];
        if !self.dice.one_in(8) {
            self.schedule(self.now + after, Input::HooksRan { point, results });
        }
    }

    /// Schedules the snapshot of the work tree before an iteration, usually with the same content as the last one.
    pub(super) fn snapshot(&mut self, iteration: u32) {
        if self.policy.autocommit.is_none() || self.dice.one_in(8) {
            return;
        }
        let commit = self.dice.below(4).to_string();
        let uncommitted = self.files;
        let input = Input::SnapshotTaken {
            iteration,
            commit,
            uncommitted,
        };
        self.schedule(self.now, input);
    }

    /// Schedules the result of an auto-commit: it succeeds, fails, hangs, or a git hook rejects it.
    pub(super) fn autocommit(&mut self, number: u64, commit: bool) {
        assert!(
            self.policy.autocommit.is_some(),
            "auto-commit is configured"
        );
        let autocommit = self.state.autocommit().expect("an auto-commit is running");
        assert!(
            autocommit.purpose == AutocommitPurpose::Iteration
                || self.agents.iter().all(|agent| !agent.alive),
            "commits other than that of an iteration need an agent that has ended"
        );
        let after = self.dice.pick(&[0, 0, 40, 3_000, 200_000]);
        let changed = self.dice.pick(&[0, 0, 1, 3]);
        let found = self.files + changed;
        let result = match self.dice.below(8) {
            0 => return,
            1 => Err("git is gone".to_owned()),
            2 if commit => Ok(AutocommitResult {
                changed,
                uncommitted: found,
                error: Some("the hook said no".to_owned()),
                ..AutocommitResult::default()
            }),
            _ => Ok(AutocommitResult {
                changed,
                uncommitted: if commit { 0 } else { found },
                withheld: changed / 2,
                commit: (commit && found > 0).then(|| Committed {
                    id: number.to_string(),
                    files: found,
                }),
                ..AutocommitResult::default()
            }),
        };
        if let Ok(result) = &result {
            self.files = result.uncommitted;
        }
        self.schedule(
            self.now + after,
            Input::AutocommitFinished { number, result },
        );
    }

    /// Cancels the auto-commit. Two in three answer, soon or late.
    pub(super) fn cancel_autocommit(&mut self) {
        let number = self.state.tracked_work.number;
        let under_way = |input: &Input| matches!(input, Input::AutocommitFinished { number: n, .. } if *n == number);
        self.queue.retain(|_, input| !under_way(input));
        if self.dice.one_in(3) {
            return;
        }
        let result = Ok(AutocommitResult {
            uncommitted: self.files,
            error: Some("called off".to_owned()),
            ..AutocommitResult::default()
        });
        let after = self.dice.pick(&[1, 20, 8_000]);
        self.schedule(
            self.now + after,
            Input::AutocommitFinished { number, result },
        );
    }

    /// Schedules the answers of objectives and stop scripts. Sometimes a script hangs.
    pub(super) fn ask(&mut self, number: u64) {
        let rules = &self.policy.completion;
        assert!(
            rules.asking.is_some(),
            "there are objectives or stop scripts"
        );
        let objectives = rules.objectives.then(|| match self.dice.below(6) {
            0 => ObjectivesSeen::Unknown {
                reason: "it is gone".to_owned(),
            },
            1..4 => ObjectivesSeen::Read {
                objectives: Objectives::read("- [x] a\n- [x] b\n"),
            },
            _ => ObjectivesSeen::Read {
                objectives: Objectives::read("- [x] a\n- [ ] b\n"),
            },
        });
        let verdict = match self.dice.below(24) {
            0 => ScriptVerdict::Claim,
            1 => ScriptVerdict::Stop,
            2 => ScriptVerdict::Unclear {
                problem: "exit 3".to_owned(),
            },
            _ => ScriptVerdict::GoOn,
        };
        let scripts = vec![ScriptResult {
            name: "ask.sh".to_owned(),
            duration_ms: 3,
            verdict,
            words: None,
        }];
        let answers = Answers {
            objectives,
            scripts,
        };
        let after = self.dice.pick(&[0, 100, 2_000, 50_000]);
        if !self.dice.one_in(10) {
            self.schedule(
                self.now + after,
                Input::ConditionsAnswered { number, answers },
            );
        }
    }

    /// Schedules the results of gates: they pass, fail, are killed, take long, or never end.
    pub(super) fn gates(&mut self, number: u64, names: &[String]) {
        assert!(!names.is_empty(), "gates run only if there are any");
        let results = names.iter().map(|name| GateResult {
            name: name.clone(),
            duration_ms: 3,
            error: match self.dice.below(6) {
                0 => Some("exit 1".to_owned()),
                1 => Some("signal 9".to_owned()),
                _ => None,
            },
            output: None,
            file: None,
        });
        let results = results.collect();
        let after = self.dice.pick(&[0, 100, 2_000, 700_000]);
        if !self.dice.one_in(10) {
            let newly_passing = self.dice.pick(&[0, 0, 1]);
            let tests = self.dice.one_in(2).then(|| TestsReport {
                newly_passing,
                ..TestsReport::default()
            });
            let ran = Input::GatesRan {
                number,
                results,
                tests,
            };
            self.schedule(self.now + after, ran);
        }
    }
}
