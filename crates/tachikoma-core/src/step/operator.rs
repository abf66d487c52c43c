//! Questions to the operator, their answers, messages to the agent, and reloaded settings.

use std::mem::discriminant;

use super::command::NOT_RUNNING;
use super::{HELD, PASSED, Stage, StageResult, Stepper};
use crate::operator::ROLLBACK_TIMEOUT;
use crate::policy::reboot;
use crate::policy::stop::{self};
use crate::{
    Answer, AnsweredBy, Choice, EditedPrompt, Effect, HookPoint, Launch, Limits, LoopEvent,
    MESSAGES_MAX, NOTE_BYTES_MAX, OperatorEvent, OperatorRequest, Outcome, PUT_OFF_ITERATIONS,
    Phase, Question, QuestionKind, RebootReason, Stop, Ticket, Timestamp, Urgency, Wait,
};

/// Error of a rollback that was interrupted by the end of the loop.
const ROLLBACK_CUT: &str = "the loop ended during the rollback; the work tree may be rolled back in part; its earlier content is saved (`git for-each-ref refs/tachikoma`)";

impl Stepper<'_> {
    pub(super) fn operator_request(&mut self, ticket: Ticket, request: OperatorRequest) {
        let answer = match request {
            OperatorRequest::Answer { id, choice, prompt } => self.answer(id, choice, prompt),
            OperatorRequest::Hold { id, writing } => self.hold_question(id, writing),
            OperatorRequest::Attend { on } => self.set_attended(on),
            OperatorRequest::Tell { text } => self.queue_message(&text),
            OperatorRequest::Reload {
                launch,
                later,
                limits,
            } => self.reload(*launch, later, limits),
            OperatorRequest::StopAfterHooks => self.stop_after_hooks(),
        };
        self.emit(Effect::Reply { ticket, answer });
    }

    fn record_operator(&mut self, event: OperatorEvent) {
        self.record(LoopEvent::Operator(event));
    }

    /// Returns whether a reboot for this reason needs the operator's consent.
    pub(super) fn must_confirm(&self, reason: &RebootReason) -> bool {
        self.policy.reboot.confirm.is_some() && *reason != RebootReason::Manual
    }

    /// Returns whether the operator answered `no` to the pending reboot within the last iterations.
    pub(super) fn reboot_is_put_off(&self) -> bool {
        let next = self.state.next_iteration();
        let put_off = self.state.operator.put_off.is_some_and(|last| next <= last);
        put_off && !self.takes_no_prompt()
    }

    /// Returns whether the operator has to be asked before the next iteration.
    pub(super) fn must_ask(&self) -> bool {
        self.policy.is_attended(&self.state.operator) && !self.state.operator.agreed
    }

    /// Returns whether the operator has to be asked about the last iteration before the loop ends by itself. An operator who
    /// stopped it is not asked.
    pub(super) fn must_ask_about_the_end(&self) -> bool {
        self.must_ask() && self.state.operator.iteration_ended && self.state.stop.is_none()
    }

    /// Asks about the last iteration before the loop ends.
    pub(super) fn ask_about_the_end(&mut self, outcome: &Outcome, then: Option<Wait>) {
        let kind = QuestionKind::AfterIteration;
        let iteration = self.state.iteration;
        let about = format!(
            "{}; `continue` ends the loop: {outcome}",
            self.iteration_result()
        );
        let mut choices = vec![Choice::Continue];
        choices.extend(self.rollback_of(kind, iteration));
        choices.extend([Choice::Pause, Choice::Stop]);
        self.ask_question(kind, iteration, choices, about, then);
    }

    /// Returns the choice to roll an iteration back, if that is possible.
    fn rollback_of(&self, kind: QuestionKind, iteration: u32) -> Option<Choice> {
        let known = self.state.tracked_work.snapshot.is_some();
        let done = self.state.operator.rolled_back == Some(iteration);
        let offered = kind == QuestionKind::AfterIteration && known && !done;
        offered.then_some(Choice::Rollback)
    }

    /// Asks the operator in attended mode: before the next iteration, or about the last one.
    pub(super) fn ask_if_attended(&mut self, then: Option<Wait>) -> StageResult {
        if !self.must_ask() {
            return PASSED;
        }
        let state = &self.state;
        let (kind, iteration, about) = if state.operator.iteration_ended {
            let iteration = state.iteration;
            (
                QuestionKind::AfterIteration,
                iteration,
                self.iteration_result(),
            )
        } else {
            let iteration = state.next_iteration();
            let about = format!("iteration {iteration} is next");
            (QuestionKind::BeforeIteration, iteration, about)
        };
        let mut choices = vec![Choice::Continue];
        if then.is_some_and(|wait| wait.until > self.now) {
            choices.push(Choice::Skip);
        }
        choices.push(Choice::Reboot);
        choices.extend(self.rollback_of(kind, iteration));
        choices.extend([Choice::Edit, Choice::Pause, Choice::Stop]);
        self.ask_question(kind, iteration, choices, about, then);
        HELD
    }

    /// Asks whether to reboot. If the context is full, `no` is not offered.
    pub(super) fn ask_to_reboot(&mut self, wanted: &RebootReason, then: Option<Wait>) {
        let reason = self.current_reason(wanted);
        let mut choices = vec![Choice::Yes];
        if !self.takes_no_prompt() {
            choices.push(Choice::No);
        }
        choices.extend([Choice::Pause, Choice::Stop]);
        let about = format!("a reboot is due: {reason}");
        let iteration = self.state.iteration;
        self.ask_question(QuestionKind::ConfirmReboot, iteration, choices, about, then);
    }

    /// Returns the reason for a reboot with current values, because the reboot may have been pending for long.
    fn current_reason(&mut self, wanted: &RebootReason) -> RebootReason {
        let same = |reason: &RebootReason| discriminant(reason) == discriminant(wanted);
        match reboot::verdict(self.policy, self.state) {
            reboot::Verdict::Reboot(now) if same(&now) && now != *wanted => {
                self.request_reboot(now.clone(), None);
                now
            }
            reboot::Verdict::Reboot(_)
            | reboot::Verdict::Exhausted { .. }
            | reboot::Verdict::GoOn => wanted.clone(),
        }
    }

    fn ask_question(
        &mut self,
        kind: QuestionKind,
        iteration: u32,
        choices: Vec<Choice>,
        about: String,
        then: Option<Wait>,
    ) {
        self.record_operator(OperatorEvent::Asked(Question {
            id: self.state.operator.asked.saturating_add(1),
            kind,
            iteration,
            asked_at: self.now,
            until: self.question_deadline(kind),
            default: Choice::Pause,
            choices,
            about,
            then,
        }));
        self.run_background_hooks(HookPoint::Question);
    }

    /// Returns the deadline of a question that is asked now; `None` = no deadline.
    fn question_deadline(&self, kind: QuestionKind) -> Option<Timestamp> {
        let timeout = match kind {
            QuestionKind::BeforeIteration | QuestionKind::AfterIteration => {
                self.policy.question_timeout
            }
            QuestionKind::ConfirmReboot => self.policy.reboot.confirm.unwrap_or_default(),
        };
        (!timeout.is_zero()).then(|| self.now.after(timeout))
    }

    /// Describes how the last iteration ended.
    fn iteration_result(&self) -> String {
        let state = &self.state;
        let iteration = state.iteration;
        if state.operator.rolled_back == Some(iteration) {
            return format!("iteration {iteration} is over, and was rolled back");
        }
        if let Some(failure) = state
            .last_failure
            .as_ref()
            .filter(|_| state.failure_streak > 0)
        {
            return format!("iteration {iteration} failed: {failure}");
        }
        match state.tracked_work.files_changed {
            Some(1) => format!("iteration {iteration} is over; it changed 1 file"),
            Some(files) => format!("iteration {iteration} is over; it changed {files} files"),
            None => format!("iteration {iteration} is over"),
        }
    }

    /// Resumes a question after the death of a runner. Its deadline stays.
    pub(super) fn resume_question(&mut self, question: &Question) {
        let wanted = match question.kind {
            QuestionKind::BeforeIteration | QuestionKind::AfterIteration => self.must_ask(),
            QuestionKind::ConfirmReboot => {
                let pending = self.state.reboot_pending.clone();
                pending.is_some_and(|reason| self.must_confirm(&reason))
            }
        };
        let ends = stop::verdict(self.policy, self.state, self.now).is_some()
            && !self.must_ask_about_the_end();
        if ends || !wanted {
            self.advance(Stage::IterationEndHooks, question.then);
        } else if question.until.is_some_and(|until| until <= self.now) {
            self.question_overdue(question);
        } else if question.until.is_none() {
            // The answer was being written at the terminal of the dead runner, so the timeout of the question starts again.
            self.set_question_deadline(question, false);
        }
    }

    /// While the operator writes an answer, the question has no deadline. Afterwards its timeout starts again.
    fn hold_question(&mut self, id: u32, writing: bool) -> Answer {
        let open = self.state.question().cloned();
        let Some(question) = open.filter(|question| question.id == id) else {
            return self.refused(&format!("question {id} is no longer open"));
        };
        self.set_question_deadline(&question, writing);
        let note = match writing {
            true => "the timeout of the question is stopped",
            false => "the timeout of the question starts again",
        };
        Answer::Accepted {
            note: note.to_owned(),
        }
    }

    fn set_question_deadline(&mut self, question: &Question, writing: bool) {
        let until = match writing {
            true => None,
            false => self.question_deadline(question.kind),
        };
        if until != question.until {
            let id = question.id;
            self.record_operator(OperatorEvent::Held { id, until });
        }
    }

    /// The question was not answered in time.
    pub(super) fn question_overdue(&mut self, question: &Question) {
        self.choose(question, question.default, AnsweredBy::Default, None);
    }

    fn answer(&mut self, id: Option<u32>, choice: Choice, prompt: Option<EditedPrompt>) -> Answer {
        let question = match self.state.answerable(id, choice, prompt.is_some()) {
            Ok(question) => question.clone(),
            Err(why) => return self.refused(&why),
        };
        let note = match choice {
            Choice::Continue | Choice::Skip => "the loop continues".to_owned(),
            Choice::Reboot => "the loop continues with a new session".to_owned(),
            Choice::Rollback => format!(
                "rolls the work tree back to before iteration {}, then asks again",
                question.iteration
            ),
            Choice::Edit => "the loop continues; the next iteration uses this prompt".to_owned(),
            Choice::Yes => "reboots".to_owned(),
            Choice::No => format!(
                "the loop continues; you are asked again after {PUT_OFF_ITERATIONS} iterations, or when the context is full"
            ),
            Choice::Pause => "paused".to_owned(),
            Choice::Stop => "stops".to_owned(),
        };
        self.choose(&question, choice, AnsweredBy::Operator, prompt);
        Answer::Accepted { note }
    }

    /// Carries out an answer.
    pub(super) fn choose(
        &mut self,
        question: &Question,
        choice: Choice,
        by: AnsweredBy,
        prompt: Option<EditedPrompt>,
    ) {
        let id = question.id;
        let then = question.then;
        self.record_operator(OperatorEvent::Answered {
            id,
            choice,
            by,
            prompt,
        });
        match choice {
            Choice::Continue | Choice::Edit | Choice::No => {
                self.advance(Stage::IterationEndHooks, then);
            }
            Choice::Skip => self.advance(Stage::IterationEndHooks, None),
            Choice::Reboot => self.begin_reboot(RebootReason::Manual, then),
            Choice::Yes => match self.state.reboot_pending.clone() {
                Some(reason) => self.begin_reboot(reason, then),
                None => self.advance(Stage::IterationEndHooks, then),
            },
            Choice::Rollback => self.emit(Effect::RollBack {
                iteration: question.iteration,
                again: false,
            }),
            Choice::Pause => self.record(LoopEvent::Paused { then }),
            Choice::Stop => self.stop_between(Stop::Operator, Urgency::Graceful),
        }
    }

    /// A rollback ended. The next prompt reports it, because the agent's knowledge of the work tree is outdated.
    pub(super) fn rolled_back(&mut self, iteration: u32, result: Result<String, String>) {
        let awaited = self.state.rolling_back();
        let Some(awaited) = awaited.filter(|awaited| awaited.iteration == iteration) else {
            return;
        };
        let (note, error) = match result {
            Ok(note) => (Some(note), None),
            Err(error) => (None, Some(error)),
        };
        self.record_operator(OperatorEvent::RolledBack { iteration, error });
        if let Some(text) = note {
            self.record(LoopEvent::Noted {
                text,
                tell: true,
                operator: true,
            });
            self.cancel_due_checks("the work tree was rolled back after the claim");
        }
        // The check refuses a claim about changes that were rolled back.
        self.advance(Stage::Check, awaited.then);
    }

    /// Records that the end of the loop interrupted a rollback.
    pub(super) fn give_up_rollback(&mut self) {
        if let Some(rolling) = self.state.operator.rolling_back {
            self.record_operator(OperatorEvent::RolledBack {
                iteration: rolling.iteration,
                error: Some(ROLLBACK_CUT.to_owned()),
            });
        }
    }

    /// Handles the passed deadline of a question or a rollback.
    pub(super) fn operator_overdue(&mut self) {
        if let Some(question) = self.state.question().cloned() {
            return self.question_overdue(&question);
        }
        if self.state.rolling_back().is_some() {
            let reason = format!(
                "the rollback did not finish within {} minutes; check the work tree, then run the loop again",
                ROLLBACK_TIMEOUT.as_secs() / 60
            );
            self.end(Outcome::Error { reason });
        }
    }

    /// Returns the wait that is due if a pause or a reboot ends `wait`: a wait for the operator is replaced by the one that follows it.
    pub(super) fn wait_due(&self, wait: Wait) -> Option<Wait> {
        match (self.state.question(), self.state.rolling_back()) {
            (Some(question), _) => question.then,
            (None, Some(rolling)) => rolling.then,
            (None, None) => Some(wait),
        }
    }

    fn set_attended(&mut self, on: bool) -> Answer {
        if matches!(self.state.phase, Phase::Idle | Phase::Ended { .. }) {
            return self.refused(NOT_RUNNING);
        }
        if self.policy.is_attended(&self.state.operator) != on {
            self.record_operator(OperatorEvent::Attended { on });
        }
        let open = self.state.question().cloned();
        let open = open.filter(|question| question.kind != QuestionKind::ConfirmReboot);
        let note = match (on, open) {
            (true, _) => "attended mode is on: you are asked before the next iteration",
            (false, None) => "attended mode is off",
            (false, Some(question)) => {
                self.advance(Stage::IterationEndHooks, question.then);
                "attended mode is off; the loop continues"
            }
        };
        Answer::Accepted {
            note: note.to_owned(),
        }
    }

    fn queue_message(&mut self, text: &str) -> Answer {
        if matches!(self.state.phase, Phase::Idle | Phase::Ended { .. }) {
            return self.refused(NOT_RUNNING);
        }
        if text.trim().is_empty() || text.len() > NOTE_BYTES_MAX {
            return self.refused(&format!(
                "a message to the agent has 1 to {NOTE_BYTES_MAX} bytes; put more text into the prompt"
            ));
        }
        if self.state.operator.messages.len() >= MESSAGES_MAX {
            return self.refused(&format!(
                "{MESSAGES_MAX} messages to the agent are waiting already; put more text into the prompt"
            ));
        }
        let number = self.state.operator.last_message.saturating_add(1);
        let text = text.to_owned();
        self.record_operator(OperatorEvent::MessageQueued { number, text });
        let told_now = self.state.stop.is_none() && self.deliver_messages();
        let steerable = self.policy.agent.steerable;
        let note = match (told_now, self.state.work()) {
            (true, _) => "the message is sent to the agent now, while its tool runs".to_owned(),
            (false, Some(_)) if steerable => {
                "the agent gets the message with its next tool call, or with the next prompt"
                    .to_owned()
            }
            (false, Some(_) | None) => "the agent gets the message with the next prompt".to_owned(),
        };
        Answer::Accepted { note }
    }

    /// Sends the waiting messages to the agent. Only while a tool runs, so that the agent reads them in this turn. Returns whether they were sent.
    pub(super) fn deliver_messages(&mut self) -> bool {
        let waiting = self.state.operator.messages.iter();
        let waiting = waiting.filter(|message| !message.in_prompt && !message.delivered);
        let texts: Vec<&str> = waiting
            .clone()
            .map(|message| message.text.as_str())
            .collect();
        let Some(through) = waiting.map(|message| message.number).max() else {
            return false;
        };
        let in_a_tool = self.state.work().is_some_and(|work| {
            !work.tools.is_empty() && work.ending.is_none() && work.result.is_none()
        });
        let (true, Some(agent)) = (self.policy.agent.steerable && in_a_tool, self.state.agent)
        else {
            return false;
        };
        let text = texts.join("\n\n");
        self.record_operator(OperatorEvent::MessagesDelivered { through });
        self.emit(Effect::SendMessage {
            generation: agent.generation,
            text,
        });
        true
    }

    fn reload(&mut self, mut launch: Launch, later: Vec<String>, limits: Limits) -> Answer {
        if matches!(self.state.phase, Phase::Idle | Phase::Ended { .. }) {
            return self.refused(NOT_RUNNING);
        }
        let before = &self.state.launch;
        launch.start_commit.clone_from(&before.start_commit);
        launch.prompt_hash.clone_from(&before.prompt_hash);
        let changes = launch.changes_since(before).unwrap_or_default();
        let hidden = launch.keep_recorded_values(before);
        let keys: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
        let mut note = match keys.as_slice() {
            [] if hidden.is_empty() => "nothing changed".to_owned(),
            [] => "no effective setting changed".to_owned(),
            keys => format!("changed now: {}", keys.join(", ")),
        };
        if !later.is_empty() {
            note.push_str(&format!("; changed for the next run: {}", later.join(", ")));
        }
        if !hidden.is_empty() {
            let hidden = hidden.join(", ");
            note.push_str(&format!(
                "; changed, but overridden by a flag of this run: {hidden}"
            ));
        }
        if !changes.is_empty() || !later.is_empty() {
            self.record_operator(OperatorEvent::Reloaded {
                launch: Box::new(launch),
                changes,
                later,
                limits,
            });
        }
        Answer::Accepted { note }
    }
}
