//! What is said of claims of completion, of what was checked about them, and of what was spent.

use serde_json::json;

use super::{Entry, Explain, Inputs, Kind, ends_with};
use crate::completion::{
    Answers, Check, CheckStage, GateResult, ObjectivesSeen, Refusal, ScriptResult, ScriptVerdict,
};
use crate::ledger::QuotaWindow;
use crate::number_format::{Nth, Percent};
use crate::outcome::Stop;
use crate::progress::Measured;
use crate::reasons;
use crate::record::Record;
use crate::tests_report::TestsReport;

impl Explain<'_> {
    pub(super) fn claimed(&mut self, record: &Record, reason: Option<&str>) {
        let why = reason.map(|reason| format!(": {reason}"));
        let words = format!(
            "somebody says with `tachikoma done` that the work is complete{}",
            why.unwrap_or_default()
        );
        self.fact(record, words);
    }

    pub(super) fn check_started(&mut self, record: &Record, check: &Check) {
        let mut inputs = self.claim_inputs();
        let words = match &check.stage {
            CheckStage::Asking => {
                "objectives are read and stop scripts asked before anything is judged".to_owned()
            }
            CheckStage::Gates { names, claimed } => {
                inputs.insert("gates", json!(names));
                let why = match claimed {
                    true => reasons::claims(&self.state.completion.claims),
                    false => "as behind every iteration that went well".to_owned(),
                };
                format!("gates run ({}): {why}", names.join(", "))
            }
        };
        self.decide(record, words, check.until, inputs);
    }

    /// Says that the loop ends while gates, objectives or stop scripts are waited for. Called before the record is applied.
    pub(super) fn tell_cut_check(&mut self, record: &Record) {
        let outcome = ends_with(&record.event);
        let check = self.state.check().map(|check| check.stage.clone());
        let (Some(outcome), Some(stage)) = (outcome, check) else {
            return;
        };
        let what = match stage {
            CheckStage::Asking => "objectives were read and stop scripts asked".to_owned(),
            CheckStage::Gates { names, .. } => format!("gates ran ({})", names.join(", ")),
        };
        let words = format!(
            "{outcome} while {what}: the result was not waited for, and the next run repeats the check"
        );
        self.decide(record, words, None, self.claim_inputs());
    }

    pub(super) fn answered(&mut self, record: &Record, answers: &Answers) {
        let mut parts = Vec::new();
        match &answers.objectives {
            Some(ObjectivesSeen::Read { objectives }) => parts.push(format!(
                "{} of {} objectives are ticked",
                objectives.ticked, objectives.total
            )),
            Some(ObjectivesSeen::Unknown { reason }) => {
                parts.push(format!("the objectives are not known: {reason}"));
            }
            None => {}
        }
        parts.extend(answers.scripts.iter().map(said));
        if parts.is_empty() {
            parts.push("nothing was to be found out".to_owned());
        }
        self.fact(record, parts.join("; "));
    }

    pub(super) fn gates_ran(&mut self, record: &Record, results: &[GateResult]) {
        let words = match results.is_empty() {
            true => "no gate ran".to_owned(),
            false => reasons::gates(results),
        };
        let streak = self.state.stats.test_failure_streak;
        let entry = self.entry(record, Kind::Fact, words);
        self.push(Entry {
            inputs: Inputs::from([("test_failure_streak", json!(streak))]),
            ..entry
        });
    }

    pub(super) fn tests_ran(&mut self, record: &Record, report: &TestsReport) {
        let TestsReport {
            passed,
            failed,
            skipped,
            ..
        } = report;
        let mut words = format!("tests: {passed} passed, {failed} failed, {skipped} skipped");
        for (what, names) in [
            ("newly failing", &report.newly_failing),
            ("fixed", &report.fixed),
            ("flaky", &report.flaky),
        ] {
            if !names.is_empty() {
                words.push_str(&format!("; {what}: {}", names.join(", ")));
            }
        }
        let entry = self.entry(record, Kind::Fact, words);
        self.push(entry);
    }

    pub(super) fn measured(&mut self, record: &Record, measured: &Measured) {
        let score = measured.score;
        let streak = self.state.stats.no_progress_count;
        let words = match score {
            0 => format!("nothing came of it, the {} iteration in a row", Nth(streak)),
            score => format!("worth {score} of 100: {}", measured.evidence.words()),
        };
        let entry = self.entry(record, Kind::Fact, words);
        let inputs = Inputs::from([
            ("score", json!(score)),
            ("evidence", json!(measured.evidence)),
            ("no_progress_count", json!(streak)),
        ]);
        self.push(Entry { inputs, ..entry });
    }

    pub(super) fn refused(&mut self, record: &Record, refusal: &Refusal) {
        self.refused = true;
        let who = reasons::claims(&refusal.claims);
        let why = refusal.reasons.join("; ");
        let mut inputs = self.belief_inputs();
        inputs.insert("claims", json!(refusal.claims));
        inputs.insert("reasons", json!(refusal.reasons));
        inputs.insert("confirmed", json!(refusal.confirmed));
        let words = match refusal.confirmed {
            0 => format!("{who}, and not believed: {why}"),
            _ => format!("{who}, and not enough yet: {why}"),
        };
        self.decide(record, words, None, inputs);
    }

    /// Says why a claim was believed.
    pub(super) fn belief(&self) -> String {
        let rules = &self.policy.completion;
        let known = &self.state.completion;
        let mut parts = vec![reasons::claims(&known.claims)];
        if rules.confirmations > 1 {
            let needed = rules.confirmations;
            parts.push(format!(
                "{needed} times in a row (stop_conditions.confirmations)"
            ));
        }
        if rules.objectives {
            parts.push("all objectives are ticked".to_owned());
        }
        parts.push(match rules.gates.is_empty() {
            true => "no gate is configured".to_owned(),
            false => reasons::gates(&known.gates),
        });
        parts.join("; ")
    }

    pub(super) fn belief_inputs(&self) -> Inputs {
        let (rules, known) = (&self.policy.completion, &self.state.completion);
        let gates = rules.gates.iter().map(|gate| {
            let result = known.gates.iter().find(|result| result.name == gate.name);
            json!({
                "name": gate.name,
                "passed": result.map(GateResult::passed),
                "error": result.and_then(|result| result.error.clone()),
            })
        });
        Inputs::from([
            ("gates", gates.collect()),
            ("objectives", json!(known.objectives)),
            ("stop_conditions.confirmations", json!(rules.confirmations)),
        ])
    }

    fn claim_inputs(&self) -> Inputs {
        Inputs::from([("claims", json!(self.state.completion.claims))])
    }

    pub(super) fn condition_met(&mut self, record: &Record, condition: &str, reason: &str) {
        let mut inputs = self.stop_inputs(record.time);
        if !condition.is_empty() {
            inputs.insert("condition", json!(reasons::condition_key(condition)));
        }
        let words = format!("a stop condition is met: {reason}");
        self.decide(record, words, None, inputs);
    }

    pub(super) fn stop_wanted(&mut self, record: &Record, stop: &Stop) {
        let words = match stop {
            Stop::Operator => "the operator stops the loop".to_owned(),
            Stop::Signal { signal } => format!("signal {signal} stops the loop"),
            Stop::Budget { reason } => {
                format!("the turn under way is not waited for, and the loop ends: {reason}")
            }
            Stop::Hook { reason } | Stop::Script { reason } | Stop::Unable { reason } => {
                format!("the loop has to end: {reason}")
            }
        };
        let inputs = match stop {
            Stop::Budget { .. } => self.stop_inputs(record.time),
            Stop::Operator
            | Stop::Signal { .. }
            | Stop::Hook { .. }
            | Stop::Script { .. }
            | Stop::Unable { .. } => Inputs::new(),
        };
        self.decide(record, words, None, inputs);
    }

    pub(super) fn quota(&mut self, record: &Record, quota: &QuotaWindow) {
        let words = format!(
            "{} of the subscription's window `{}` is used",
            Percent(quota.percent),
            quota.window
        );
        self.fact(record, words);
    }
}

fn said(script: &ScriptResult) -> String {
    let name = &script.name;
    let verdict = match &script.verdict {
        ScriptVerdict::GoOn => "goes on".to_owned(),
        ScriptVerdict::Claim => "claims that the work is complete".to_owned(),
        ScriptVerdict::Stop => "ends the loop".to_owned(),
        ScriptVerdict::Unclear { problem } => format!("is no help ({problem})"),
    };
    let words = script.words.as_ref().map(|words| format!(": {words}"));
    format!(
        "the stop script `{name}` {verdict}{}",
        words.unwrap_or_default()
    )
}
