//! How claims, gates and scripts change the state.

use super::State;
use crate::completion::{
    Answers, AttemptEnd, Check, Claim, Completion, GateResult, ObjectivesSeen, Owed, Refusal,
    ScriptVerdict, end_of,
};
use crate::keep::Kept;
use crate::objectives::Objectives;
use crate::outcome::{IterationOutcome, Stop};
use crate::phase::Phase;
use crate::progress::Measured;

/// What is kept of the output of all gates that failed: as much as an agent is told of it.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// Claims of one iteration that are told apart; whoever claims the same thing more often says nothing new.
const CLAIMS_MAX: usize = 8;

impl Completion {
    /// Returns what is known of a loop that has not begun.
    pub(super) fn of_a_new_loop() -> Self {
        Self {
            idle: true,
            ..Self::default()
        }
    }

    pub(super) fn attempt_started(&mut self) {
        self.owed = Owed::Nothing;
        self.claims.clear();
        self.given_up = None;
    }

    pub(super) fn attempt_ended(&mut self, end: AttemptEnd) {
        self.ended = end;
        self.owed = match end {
            AttemptEnd::Succeeded | AttemptEnd::HandedOver | AttemptEnd::Failed => Owed::Answers,
            AttemptEnd::Cut => Owed::Judgement,
        };
        if end == AttemptEnd::Succeeded {
            // It was told with the prompt, and the agent has done what it can about it.
            self.to_be_told = false;
            self.refused.clear();
        }
    }

    /// Returns whether a claim says what nobody has said in this iteration.
    pub(crate) fn is_news(&self, claim: &Claim) -> bool {
        self.claims.len() < CLAIMS_MAX && !self.claims.contains(claim)
    }

    /// Takes in what the objectives are. Returns whether that is a claim: all are ticked behind an attempt that went well, and
    /// not all of them were before.
    fn objectives_read(&mut self, objectives: &Objectives) -> bool {
        let ticked = objectives.ticked;
        let before = *self.ticked_before.get_or_insert(ticked);
        self.most_objectives = self.most_objectives.max(objectives.total);
        let went_well = self.owed != Owed::Nothing && self.ended == AttemptEnd::Succeeded;
        went_well && objectives.all_ticked() && ticked > before
    }

    pub(super) fn seen_in_the_tree(&mut self, kept: &Kept) {
        // What is committed without a change was there before the attempt: gates and scripts write, too.
        if kept.changed > 0 || kept.head_moved {
            self.idle = false;
        }
    }
}

impl From<IterationOutcome> for AttemptEnd {
    fn from(outcome: IterationOutcome) -> Self {
        match outcome {
            IterationOutcome::Succeeded => Self::Succeeded,
            IterationOutcome::HandedOver => Self::HandedOver,
            IterationOutcome::Failed => Self::Failed,
            IterationOutcome::Skipped | IterationOutcome::Interrupted => Self::Cut,
        }
    }
}

impl State {
    /// Returns what is being found out at the moment.
    #[must_use]
    pub fn check(&self) -> Option<&Check> {
        match &self.phase {
            Phase::Checking { check } => Some(check),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Working { .. }
            | Phase::Keeping { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => None,
        }
    }

    pub(super) fn iteration_over(&mut self, outcome: IterationOutcome) {
        let claimed = !self.completion.claims.is_empty();
        let interrupted = outcome == IterationOutcome::Interrupted;
        // It was said before the money was gone, and gates cost none.
        let end = match claimed && interrupted && self.is_for_budget() {
            true => AttemptEnd::HandedOver,
            false => outcome.into(),
        };
        self.attempt_ended(end);
    }

    /// Returns whether a turn that is interrupted now is so because a budget is used up: by us, or by an agent that minds it itself.
    fn is_for_budget(&self) -> bool {
        match &self.stop {
            Some(Stop::Budget { .. }) => true,
            Some(
                Stop::Operator
                | Stop::Signal { .. }
                | Stop::Unable { .. }
                | Stop::Script { .. }
                | Stop::Hook { .. },
            ) => false,
            None => self.limits.is_spent(self, self.time),
        }
    }

    pub(super) fn attempt_ended(&mut self, end: AttemptEnd) {
        self.completion.attempt_ended(end);
        self.progress.attempt_ended(end != AttemptEnd::Cut);
    }

    pub(super) fn progress_measured(&mut self, measured: &Measured) {
        let streak = &mut self.stats.no_progress_count;
        *streak = match measured.score {
            0 => streak.saturating_add(1),
            _ => 0,
        };
        self.progress.measured(measured);
    }

    pub(super) fn claim(&mut self, claim: Claim) {
        self.claimed = true;
        if self.completion.is_news(&claim) {
            self.completion.claims.push(claim);
        }
    }

    pub(super) fn check_started(&mut self, check: &Check) {
        self.completion.number += 1;
        self.completion.given_up = None;
        self.kept.checked = true;
        self.phase = Phase::Checking {
            check: check.clone(),
        };
    }

    pub(super) fn conditions_answered(&mut self, answers: &Answers) {
        let before = self.completion.objectives.as_ref();
        self.progress.answered(before, answers);
        if let Some(seen) = &answers.objectives {
            if let ObjectivesSeen::Read { objectives } = seen
                && self.completion.objectives_read(objectives)
            {
                self.claim(Claim::Objectives);
            }
            self.completion.objectives = Some(seen.clone());
        }
        self.completion.unclear = answers.unclear();
        for script in &answers.scripts {
            if script.verdict == ScriptVerdict::Claim && self.completion.owed != Owed::Nothing {
                let name = script.name.clone();
                self.claim(Claim::Script { name });
            }
        }
        if self.completion.owed != Owed::Nothing {
            self.completion.owed = Owed::Gates;
        }
        self.phase = Phase::Idle;
    }

    pub(super) fn gates_ran(&mut self, iteration: u32, results: &[GateResult]) {
        let failed = results.iter().filter(|result| !result.passed()).count();
        self.stats.test_failure_streak = match failed {
            0 => 0,
            _ => self.stats.test_failure_streak.saturating_add(1),
        };
        let known = &mut self.completion;
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
        if failed > 0 {
            known.to_be_told = true;
            known.told_of = iteration;
        }
        known.owed = Owed::Judgement;
        self.phase = Phase::Idle;
    }

    pub(super) fn check_given_up(&mut self, reason: &str) {
        self.completion.given_up = Some(reason.to_owned());
        if self.completion.owed != Owed::Nothing {
            self.completion.owed = Owed::Judgement;
        }
        // Nobody may have begun to ask, or may be there to go on: the phase stays what it is.
    }

    pub(super) fn claim_refused(&mut self, refusal: &Refusal) {
        let succeeded = self.stats.successful;
        self.claimed = false;
        let known = &mut self.completion;
        known.refused.clone_from(&refusal.reasons);
        known.to_be_told = true;
        known.told_of = self.iteration;
        known.confirmed = refusal.confirmed;
        known.confirmed_at = succeeded;
        known.claims.clear();
        known.owed = Owed::Nothing;
    }
}
