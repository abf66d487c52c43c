//! How the operator changes the state.

use super::State;
use crate::operator::{
    AnsweredBy, Choice, OperatorEvent, Question, QuestionKind, RollingBack, Words,
};
use crate::phase::{Phase, Wait, WaitReason};
use crate::policy::Policy;
use crate::time::Timestamp;

impl State {
    /// Returns whether somebody is there to be asked before and after each iteration.
    #[must_use]
    pub fn is_attended(&self, policy: &Policy) -> bool {
        self.operator.attended.unwrap_or(policy.attended)
    }

    /// Returns the question that is open. One over which hooks at the start of a run have begun is so when they have ended.
    #[must_use]
    pub fn question(&self) -> Option<&Question> {
        let question = self.operator.question.as_ref();
        question.filter(|_| awaits_operator(&self.phase))
    }

    /// Returns the question that an answer is one to, or why it is none.
    ///
    /// # Errors
    /// Nothing is asked, or something else.
    pub fn answerable(
        &self,
        id: Option<u32>,
        choice: Choice,
        with_prompt: bool,
    ) -> Result<&Question, String> {
        let question = self.question().ok_or("nothing is asked")?;
        if let Some(stale) = id.filter(|id| *id != question.id) {
            return Err(format!(
                "question {stale} is not open any more; question {} is",
                question.id
            ));
        }
        if !question.choices.contains(&choice) {
            return Err(format!(
                "`{choice}` is no answer to question {}; these are: {}",
                question.id,
                question.offers()
            ));
        }
        if (choice == Choice::Edit) != with_prompt {
            return Err("`edit` goes with a prompt, and nothing else does".to_owned());
        }
        Ok(question)
    }

    /// Returns what is known of a work tree that is being brought back.
    #[must_use]
    pub fn rolling_back(&self) -> Option<RollingBack> {
        let rolling = self.operator.rolling_back;
        rolling.filter(|_| awaits_operator(&self.phase))
    }

    /// A runner takes up a work tree that is being brought back: that has its whole time again.
    pub(super) fn take_up_rollback(&mut self, time: Timestamp) {
        if self.rolling_back().is_some() {
            self.await_operator(Some(time.after(crate::step::ROLLBACK_TIMEOUT)));
        }
    }

    /// Returns when a wait is over: one for the operator may be endless.
    pub(super) fn wait_deadline(&self, wait: Wait) -> Option<Timestamp> {
        match self.question() {
            Some(question) => question.until,
            None => Some(wait.until),
        }
    }

    pub(super) fn operator_event(&mut self, event: &OperatorEvent, time: Timestamp) {
        let known = &mut self.operator;
        match event {
            OperatorEvent::Asked(question) => {
                known.asked = question.id;
                known.unanswered = None;
                known.put |= question.kind != QuestionKind::ConfirmReboot;
                known.question = Some(question.clone());
                self.await_operator(question.until);
            }
            OperatorEvent::Answered {
                id,
                choice,
                by,
                prompt,
            } => {
                known.unanswered = Some(*id).filter(|_| *by == AnsweredBy::Default);
                let then = known.question.take().and_then(|question| question.then);
                match choice {
                    Choice::Continue | Choice::Skip | Choice::Reboot => known.agreed = true,
                    Choice::Edit => {
                        known.agreed = true;
                        known.prompt.clone_from(prompt);
                    }
                    Choice::No => {
                        let last = self.iteration.saturating_add(crate::PUT_OFF_ITERATIONS);
                        known.put_off = Some(last);
                    }
                    Choice::Rollback => {
                        let iteration = self.iteration;
                        known.rolling_back = Some(RollingBack { iteration, then });
                        return self
                            .await_operator(Some(time.after(crate::step::ROLLBACK_TIMEOUT)));
                    }
                    Choice::Yes | Choice::Pause | Choice::Stop => {}
                }
                // What follows is recorded right behind it.
                self.phase = Phase::Idle;
            }
            OperatorEvent::Held { id, until } => {
                if let Some(question) = known.question.as_mut().filter(|it| it.id == *id) {
                    question.until = *until;
                    self.await_operator(*until);
                }
            }
            OperatorEvent::RolledBack { iteration, error } => {
                if error.is_none() {
                    known.rolled_back = Some(*iteration);
                }
                if self.rolling_back().is_some() {
                    self.phase = Phase::Idle;
                }
                self.operator.rolling_back = None;
            }
            OperatorEvent::Attended { on } => known.attended = Some(*on),
            OperatorEvent::Told { number, text } => {
                known.told = *number;
                known.words.push(Words {
                    number: *number,
                    text: text.clone(),
                    in_prompt: false,
                    passed_on: false,
                });
            }
            OperatorEvent::PassedOn { through } => {
                for words in &mut known.words {
                    words.passed_on |= words.number <= *through;
                }
            }
            OperatorEvent::Reloaded {
                launch,
                changes,
                limits,
                ..
            } => {
                self.limits = *limits;
                if changes.iter().any(|change| change.key == "attended_mode") {
                    known.attended = None;
                }
                self.launch = (**launch).clone();
            }
        }
    }

    fn await_operator(&mut self, until: Option<Timestamp>) {
        let reason = WaitReason::Operator;
        let until = until.unwrap_or(Timestamp::from_millis(i64::MAX));
        self.phase = Phase::Waiting {
            wait: Wait { reason, until },
        };
    }

    /// A question is open exactly as long as it is waited for: whatever else happens to the loop withdraws it.
    pub(super) fn withdraw_question(&mut self) {
        let found = match self.hooking() {
            Some(hooking) => hooking.over.as_deref(),
            None => Some(&self.phase),
        };
        if !found.is_some_and(awaits_operator) {
            self.operator.question = None;
            self.operator.rolling_back = None;
        }
    }

    /// An attempt begins: its prompt has all words that wait.
    pub(super) fn attempt_attended(&mut self) {
        self.operator.agreed = false;
        self.operator.put = false;
        self.operator.behind = false;
        self.operator.unanswered = None;
        for words in &mut self.operator.words {
            words.in_prompt = true;
            words.passed_on = false;
        }
    }

    /// An iteration is over. Words in an attempt that failed may not have been heard, and are told again.
    pub(super) fn iteration_attended(&mut self, failed: bool) {
        self.operator.rolled_back = None;
        self.operator.put = false;
        self.operator.behind = true;
        self.operator.prompt = None;
        let heard = |words: &Words| !failed && (words.in_prompt || words.passed_on);
        self.operator.words.retain(|words| !heard(words));
    }

    /// The loop is taken up after its end: whoever was there then may not be.
    pub(super) fn taken_up_anew(&mut self) {
        self.operator.agreed = false;
        self.operator.put = false;
        self.operator.behind = false;
        self.operator.unanswered = None;
        self.operator.attended = None;
    }
}

fn awaits_operator(phase: &Phase) -> bool {
    matches!(phase, Phase::Waiting { wait } if wait.reason == WaitReason::Operator)
}
