//! Checks after an iteration: objectives, stop scripts, gates, and the verdict on a claim of completion.

use std::time::Duration;

use super::{HELD, PASSED, Stage, StageResult, Stepper};
use crate::policy::completion::{Next, baseline, next};
use crate::policy::stop;
use crate::{
    Answer, Answers, Check, CheckStage, Claim, Effect, GateResult, HookPoint, LoopEvent,
    NOTE_BYTES_MAX, ObjectivesSeen, Owed, Phase, Refusal, ScriptVerdict, Stop, TestsReport, Ticket,
    Urgency, Wait,
};

/// Timeout of the first survey of the work tree, for which the gates before the first iteration wait.
const FIRST_SURVEY_TIMEOUT: Duration = Duration::from_secs(300);

impl Stepper<'_> {
    /// Starts the checks that have to finish before the next iteration. After the last one, judges a claim of completion and measures
    /// the progress.
    pub(super) fn check(&mut self, then: Option<Wait>) -> StageResult {
        let goes_on = stop::verdict(self.policy, self.state, self.now).is_none();
        if let Some(stage) = baseline(self.policy, self.state).filter(|_| goes_on) {
            return self.begin_check(stage, then);
        }
        match next(self.policy, self.state) {
            Next::Check(stage) => self.begin_check(stage, then),
            // An accepted claim ends the loop later, in the stage `End`.
            Next::Refuse { .. } | Next::Believe | Next::Nothing => {
                self.refuse_claim();
                let iteration = self.state.iteration;
                let tests_passed = self.state.completion.gates_passed_after(iteration);
                if let Some(measured) = self.state.progress.measure(iteration, tests_passed) {
                    self.record(LoopEvent::ProgressMeasured(measured));
                    if measured.score == 0 {
                        self.run_background_hooks(HookPoint::NoProgress);
                    }
                }
                PASSED
            }
        }
    }

    /// Refuses a claim if there are doubts about it.
    fn refuse_claim(&mut self) {
        if let Next::Refuse { reasons, confirmed } = next(self.policy, self.state) {
            self.record(LoopEvent::ClaimRefused(Refusal {
                claims: self.state.completion.claims.clone(),
                reasons,
                confirmed,
            }));
        }
    }

    /// Starts the checks when a runner starts or resumes the loop. The objectives are read before the first iteration, to notice later
    /// which were ticked.
    pub(super) fn check_at_start(&mut self, then: Option<Wait>) {
        let known = &self.state.completion;
        let unread = known.owed == Owed::Nothing && known.ticked_before.is_none();
        let goes_on = stop::verdict(self.policy, self.state, self.now).is_none();
        if unread && goes_on && self.policy.completion.objectives {
            let _held = self.begin_check(CheckStage::Asking, then);
        } else {
            self.advance(Stage::Check, then);
        }
    }

    fn begin_check(&mut self, stage: CheckStage, then: Option<Wait>) -> StageResult {
        let rules = &self.policy.completion;
        let limit = match &stage {
            CheckStage::Asking => rules.asking,
            CheckStage::Gates { names, .. } => rules.limit(names),
        };
        // Before the first iteration the gates wait for the first survey of the work tree.
        let opening = match (&stage, self.state.iteration) {
            (CheckStage::Gates { .. }, 0) => FIRST_SURVEY_TIMEOUT,
            _ => Duration::ZERO,
        };
        let until = limit.map(|limit| self.now.after(limit + opening));
        let check = Check { stage, until, then };
        self.record(LoopEvent::CheckStarted {
            check: check.clone(),
        });
        let number = self.state.completion.number;
        self.emit(match check.stage {
            CheckStage::Asking => Effect::CheckConditions { number },
            CheckStage::Gates { names, .. } => Effect::RunGates { number, names },
        });
        HELD
    }

    /// The objectives were read and the stop scripts have answered.
    pub(super) fn conditions_answered(&mut self, number: u64, answers: Answers) {
        let Some(check) = self.awaited_check(number, |stage| *stage == CheckStage::Asking) else {
            return;
        };
        let known = self.state.completion.objectives.as_ref();
        let was_unknown = matches!(known, Some(ObjectivesSeen::Unknown { .. }));
        let lost = match &answers.objectives {
            Some(ObjectivesSeen::Unknown { reason }) if !was_unknown => Some(reason.clone()),
            Some(_) | None => None,
        };
        let mut unclear = answers.unclear();
        unclear.retain(|warning| !self.state.completion.unclear.contains(warning));
        let odd = self.objective_warnings(&answers);
        let stop = answers
            .scripts
            .iter()
            .find(|script| script.verdict == ScriptVerdict::Stop)
            .map(|script| {
                let why = script.words.as_deref().unwrap_or("without words");
                format!("the stop script `{}` ended the loop: {why}", script.name)
            });
        self.record(LoopEvent::ConditionsAnswered { answers });
        if let Some(reason) = lost {
            let warning = format!(
                "the objectives cannot be read, so claims of completion are refused: {reason}"
            );
            self.record(LoopEvent::Warned { warning });
        }
        for warning in odd.into_iter().chain(unclear) {
            self.record(LoopEvent::Warned { warning });
        }
        if let Some(reason) = stop {
            self.request_stop(Stop::Script { reason }, Urgency::Graceful);
        }
        self.advance(Stage::Check, check.then);
    }

    /// Returns warnings about unusual objectives, unless they were given before.
    fn objective_warnings(&self, answers: &Answers) -> Vec<String> {
        let Some(ObjectivesSeen::Read { objectives: now }) = &answers.objectives else {
            return Vec::new();
        };
        let known = &self.state.completion;
        let before = match &known.objectives {
            Some(ObjectivesSeen::Read { objectives }) => Some(objectives),
            Some(ObjectivesSeen::Unknown { .. }) | None => None,
        };
        let mut odd = Vec::new();
        if now.total == 0 && before.is_none_or(|before| before.total > 0) {
            odd.push(
                "the objectives have no check box, so claims of completion are refused; a check box is \
                 `- [ ]` or `- [x]`"
                    .to_owned(),
            );
        } else if let Some(before) = before.filter(|before| before.total > now.total) {
            odd.push(format!(
                "the objectives had {} check boxes, and now have {}",
                before.total, now.total
            ));
        }
        if known.ticked_before.is_none() && now.all_ticked() {
            odd.push(format!(
                "all objectives ({}) were ticked before the first iteration, so they prove nothing",
                now.total
            ));
        }
        if !now.odd.is_empty() && before.is_none_or(|before| before.odd != now.odd) {
            let lines: Vec<String> = now.odd.iter().map(|line| format!("`{line}`")).collect();
            odd.push(format!(
                "these lines of the objectives look like check boxes but are not: {}; a check box is `- [ ]` or `- [x]`",
                lines.join(", ")
            ));
        }
        odd
    }

    pub(super) fn gates_ran(
        &mut self,
        number: u64,
        results: Vec<GateResult>,
        tests: Option<TestsReport>,
    ) {
        let gates = |stage: &CheckStage| matches!(stage, CheckStage::Gates { .. });
        let Some(check) = self.awaited_check(number, gates) else {
            return;
        };
        let iteration = self.state.iteration;
        self.record(LoopEvent::GatesRan { iteration, results });
        if let Some(report) = tests {
            let before = self.state.progress.tests.clone();
            self.record(LoopEvent::TestsRan(report));
            self.run_test_hooks(before.as_ref());
        }
        self.advance(Stage::Check, check.then);
    }

    /// Returns the check that an answer belongs to; `None` if the answer is no longer awaited.
    fn awaited_check(&self, number: u64, stage: impl Fn(&CheckStage) -> bool) -> Option<Check> {
        let check = self.state.check().filter(|check| stage(&check.stage));
        check
            .filter(|_| number == self.state.completion.number)
            .cloned()
    }

    pub(super) fn check_overdue(&mut self, check: &Check) {
        let what = match check.stage {
            CheckStage::Asking => "the stop scripts",
            CheckStage::Gates { .. } => "the gates",
        };
        self.give_up_check(&format!("{what} did not end in time"), check.then);
    }

    /// Continues without the result of the check. The runner ends the check.
    pub(super) fn give_up_check(&mut self, reason: &str, then: Option<Wait>) {
        let reason = reason.to_owned();
        self.record(LoopEvent::CheckGivenUp { reason });
        self.advance(Stage::Check, then);
    }

    /// Cancels the checks that are due. The claim is refused, because the prompt, the agent or the work tree has changed since.
    pub(super) fn cancel_due_checks(&mut self, reason: &str) {
        let known = &self.state.completion;
        let owes = match known.owed {
            Owed::Nothing => false,
            Owed::Judgement => !known.claims.is_empty(),
            Owed::Answers | Owed::Gates => true,
        };
        if owes {
            let reason = reason.to_owned();
            self.record(LoopEvent::CheckGivenUp { reason });
        }
    }

    /// The work tree was rolled back by a command. If no check follows the current phase, the claim is refused now.
    pub(super) fn rolled_back_by_command(&mut self) {
        self.cancel_due_checks("the work tree was rolled back after the claim");
        match &self.state.phase {
            Phase::Waiting { .. } | Phase::Rebooting { .. } | Phase::Paused { .. } => {
                self.refuse_claim();
            }
            Phase::Hooking { hooking } if hooking.outcome.is_none() => self.refuse_claim(),
            Phase::Idle
            | Phase::Working { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Ended { .. } => {}
        }
    }

    /// `tachikoma done` claims that the whole work is complete.
    pub(super) fn completion_claimed(&mut self, ticket: Ticket, reason: Option<String>) {
        let answer = if self.state.work().is_some() {
            let reason = reason.map(|reason| {
                let end = reason.floor_char_boundary(NOTE_BYTES_MAX);
                reason.get(..end).unwrap_or_default().to_owned()
            });
            let claim = Claim::Done {
                reason: reason.clone(),
            };
            if self.state.completion.is_news(&claim) {
                self.record(LoopEvent::Claimed { reason });
            }
            let note = self.required_checks();
            Answer::Accepted { note }
        } else {
            self.refused("no iteration is running")
        };
        self.emit(Effect::Reply { ticket, answer });
    }

    fn required_checks(&self) -> String {
        let rules = &self.policy.completion;
        let names = rules.gates.iter().map(|gate| format!("`{}`", gate.name));
        let names: Vec<String> = names.collect();
        let mut asked = Vec::new();
        if rules.confirmations > 1 {
            asked.push(format!(
                "completion is claimed {} times in a row",
                rules.confirmations
            ));
        }
        if rules.objectives {
            asked.push("all objectives are ticked".to_owned());
        }
        if !names.is_empty() {
            asked.push(format!("these gates pass: {}", names.join(", ")));
        }
        let judged = format!(
            "end your turn; the claim is checked after iteration {}",
            self.state.iteration
        );
        match asked.join(" and ").as_str() {
            "" => judged,
            asked => format!("{judged}, and accepted if {asked}"),
        }
    }
}
