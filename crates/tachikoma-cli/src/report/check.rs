//! Results of the checks after an iteration, as lines for people.

use std::fmt::Write as _;
use std::time::Duration;

use tachikoma_core::{
    Answers, Check, CheckStage, CompletionSummary, GateResult, GateSummary, ObjectivesSeen,
    Refusal, ScriptVerdict, TestsReport,
};

use super::symbol::Symbol;
use crate::sanitize::sanitize;
use crate::view::number;
use crate::view::text::Text;

/// Returns a line about a check that starts, if it may take a while.
pub fn started(check: &Check) -> Vec<String> {
    match &check.stage {
        CheckStage::Asking => Vec::new(),
        CheckStage::Gates { names, claimed } => {
            let names = sanitize(&names.join(", ")).into_owned();
            vec![if *claimed {
                format!("completion is claimed; gates: {names}")
            } else {
                format!("gates: {names}")
            }]
        }
    }
}

/// Reports the answers of stop scripts, except the answer to continue. Errors of scripts are separate warnings.
pub fn answered(answers: &Answers) -> Vec<String> {
    let said = answers.scripts.iter().filter_map(|script| {
        let name = sanitize(&script.name);
        match script.verdict {
            ScriptVerdict::Claim => Some(format!("stop script {name}: the work is complete")),
            ScriptVerdict::Stop => Some(format!("stop script {name}: the loop is to end")),
            ScriptVerdict::GoOn | ScriptVerdict::Unclear { .. } => None,
        }
    });
    said.collect()
}

/// Reports the result of each gate. A failure before the first iteration has no effect on the loop, but may show that a gate is broken.
pub fn gates(iteration: u32, results: &[GateResult]) -> Vec<Text> {
    let when = match iteration {
        0 => "before the first iteration: ",
        _ => "",
    };
    let said = results.iter().map(|gate| {
        let name = sanitize(&gate.name);
        let took = number::duration(Duration::from_millis(gate.duration_ms));
        match &gate.error {
            None => Symbol::Done.line(format!("{when}gate {name} passed in {took}")),
            Some(error) => {
                let error = sanitize(error);
                Symbol::Failed.line(format!("{when}gate {name} failed after {took}: {error}"))
            }
        }
    });
    said.collect()
}

/// Returns after which iteration gates ran, as text.
pub fn at_iteration(iteration: u32) -> String {
    match iteration {
        0 => "before the first iteration".to_owned(),
        iteration => format!("at iteration {iteration}"),
    }
}

/// Reports the test results, and how they changed.
pub fn tests(report: &TestsReport) -> String {
    format!("tests: {}", tests_words(report))
}

/// Describes the test results for `status`.
pub fn tests_words(report: &TestsReport) -> String {
    let mut said = format!("{} passed, {} failed", report.passed, report.failed);
    if report.skipped > 0 {
        let _ = write!(said, ", {} skipped", report.skipped);
    }
    for (what, names) in [
        ("newly failing", &report.newly_failing),
        ("fixed", &report.fixed),
        ("flaky", &report.flaky),
    ] {
        if !names.is_empty() {
            let _ = write!(said, "; {what}: {}", first_names(names));
        }
    }
    said
}

/// Lists the first names, and counts the rest.
fn first_names(names: &[String]) -> String {
    const NAMED_MAX: usize = 3;
    let named = names.get(..NAMED_MAX.min(names.len())).unwrap_or(&[]);
    let mut said = sanitize(&named.join(", ")).into_owned();
    if names.len() > NAMED_MAX {
        let _ = write!(said, " and {} more", names.len() - NAMED_MAX);
    }
    said
}

/// Explains why a claim of completion is refused.
pub fn refused(refusal: &Refusal) -> String {
    let claims: Vec<String> = refusal.claims.iter().map(ToString::to_string).collect();
    let claims = claims.join(", ");
    let (claims, why) = (sanitize(&claims), refusal.reasons.join("; "));
    let why = sanitize(&why);
    match refusal.confirmed {
        0 => format!("the claim of completion is rejected ({claims}): {why}"),
        // No check rejected the claim, so it only needs confirmation.
        _ => format!("completion has to be confirmed ({claims}): {why}"),
    }
}

/// Returns labels and texts about completion for `status`.
pub fn summary(known: &CompletionSummary) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match &known.checking {
        Some(CheckStage::Asking) => {
            lines.push(("checking", "stop scripts and objectives".to_owned()));
        }
        Some(CheckStage::Gates { names, .. }) => {
            lines.push((
                "checking",
                format!("gates: {}", sanitize(&names.join(", "))),
            ));
        }
        None => {}
    }
    if !known.gates.is_empty() {
        let gate = |gate: &GateSummary| match &gate.error {
            None => format!("{} passed", sanitize(&gate.name)),
            Some(error) => format!("{} failed ({})", sanitize(&gate.name), sanitize(error)),
        };
        let gates: Vec<String> = known.gates.iter().map(gate).collect();
        let iteration = known.gates_iteration;
        lines.push((
            "gates",
            format!("{}; {}", gates.join(", "), at_iteration(iteration)),
        ));
    }
    match &known.objectives {
        Some(ObjectivesSeen::Read { objectives }) => lines.push((
            "objectives",
            format!("{} of {} ticked", objectives.ticked, objectives.total),
        )),
        Some(ObjectivesSeen::Unknown { reason }) => {
            lines.push(("objectives", format!("not known: {}", sanitize(reason))));
        }
        None => {}
    }
    if known.claimed {
        lines.push(("claim", "made, not checked yet".to_owned()));
    } else if !known.refused.is_empty() {
        let reasons = sanitize(&known.refused.join("; ")).into_owned();
        lines.push(("claim", format!("refused: {reasons}")));
    }
    lines
}
