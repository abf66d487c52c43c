//! How claims, gates and scripts change the state.

use crate::completion::end_of;
use crate::policy::stop;
use crate::{
    Answers, AttemptEnd, Check, CheckStage, Claim, GateResult, IterationOutcome, ObjectivesSeen,
    Owed, Phase, Refusal, ScriptVerdict, State, Stop,
};

/// Maximum size of the output of failed gates that is kept. The prompt quotes no more than that.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

pub(super) fn iteration_over(state: &mut State, outcome: IterationOutcome) {
    let claimed = !state.completion.claims.is_empty();
    let interrupted = outcome == IterationOutcome::Interrupted;
    // A claim stays valid if only a used-up budget ended the turn, because checking it costs nothing.
    let end = match claimed && interrupted && is_for_budget(state) {
        true => AttemptEnd::HandedOver,
        false => outcome.into(),
    };
    attempt_ended(state, end);
}

/// Returns whether a turn that is interrupted now is interrupted because of a used-up budget.
fn is_for_budget(state: &State) -> bool {
    match &state.stop {
        Some(Stop::Budget { .. }) => true,
        Some(
            Stop::Operator
            | Stop::Signal { .. }
            | Stop::Unable { .. }
            | Stop::Script { .. }
            | Stop::Hook { .. },
        ) => false,
        None => stop::is_spent(&state.limits, state, state.time),
    }
}

pub(super) fn attempt_ended(state: &mut State, end: AttemptEnd) {
    state.completion.attempt_ended(end);
    state.progress.attempt_ended(end != AttemptEnd::Cut);
}

pub(super) fn claim(state: &mut State, claim: Claim) {
    state.claimed = true;
    if state.completion.is_news(&claim) {
        state.completion.claims.push(claim);
    }
}

pub(super) fn conditions_answered(state: &mut State, answers: &Answers) {
    let before = state.completion.objectives.as_ref();
    state.progress.answered(before, answers);
    if let Some(seen) = &answers.objectives {
        if let ObjectivesSeen::Read { objectives } = seen
            && state.completion.objectives_read(objectives)
        {
            claim(state, Claim::Objectives);
        }
        state.completion.objectives = Some(seen.clone());
    }
    state.completion.unclear = answers.unclear();
    for script in &answers.scripts {
        if script.verdict == ScriptVerdict::Claim && state.completion.owed != Owed::Nothing {
            let name = script.name.clone();
            claim(state, Claim::Script { name });
        }
    }
    if state.completion.owed != Owed::Nothing {
        state.completion.owed = Owed::Gates;
    }
    state.phase = Phase::Idle;
}

pub(super) fn gates_ran(state: &mut State, iteration: u32, results: &[GateResult]) {
    let failed = results.iter().filter(|result| !result.passed()).count();
    // Gates before the first iteration show the start of the loop. They do not count as failures.
    let baseline = iteration == 0;
    state.stats.test_failure_streak = match failed {
        0 => 0,
        _ if baseline => 0,
        _ => state.stats.test_failure_streak.saturating_add(1),
    };
    let known = &mut state.completion;
    let each = OUTPUT_BYTES_MAX / failed.max(1);
    let kept = results.iter().map(|result| {
        let output = result.output.as_deref().filter(|_| !result.passed());
        GateResult {
            output: output.map(|output| end_of(output, each).to_owned()),
            ..result.clone()
        }
    });
    known.gates = kept.collect();
    known.gates_at = iteration;
    known.baseline |= baseline;
    if failed > 0 && !baseline {
        known.feedback_due = true;
        known.feedback_iteration = iteration;
    }
    if !baseline {
        known.owed = Owed::Judgement;
    }
    state.phase = Phase::Idle;
}

pub(super) fn check_given_up(state: &mut State, reason: &str) {
    state.completion.given_up = Some(reason.to_owned());
    let gates = |check: &Check| matches!(check.stage, CheckStage::Gates { .. });
    state.completion.baseline |= state.iteration == 0 && state.check().is_some_and(gates);
    if state.completion.owed != Owed::Nothing {
        state.completion.owed = Owed::Judgement;
    }
    // The phase is not changed, because checks are also given up before they start, and by a new runner.
}

pub(super) fn claim_refused(state: &mut State, refusal: &Refusal) {
    let succeeded = state.stats.successful;
    state.claimed = false;
    let known = &mut state.completion;
    known.refused.clone_from(&refusal.reasons);
    known.feedback_due = true;
    known.feedback_iteration = state.iteration;
    known.confirmed = refusal.confirmed;
    known.confirmed_at = succeeded;
    known.claims.clear();
    known.owed = Owed::Nothing;
}
