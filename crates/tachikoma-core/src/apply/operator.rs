//! How the operator changes the state.

use crate::{
    AnsweredBy, Choice, OperatorEvent, OperatorMessage, Phase, QuestionKind, RollingBack, State,
    Timestamp, Wait, WaitReason,
};

/// A runner resumes a rollback, which gets its whole timeout again.
pub(super) fn restart_rollback_timeout(state: &mut State, time: Timestamp) {
    if state.rolling_back().is_some() {
        await_operator(state, Some(time.after(crate::operator::ROLLBACK_TIMEOUT)));
    }
}

pub(super) fn operator_event(state: &mut State, event: &OperatorEvent, time: Timestamp) {
    let known = &mut state.operator;
    match event {
        OperatorEvent::Asked(question) => {
            known.asked = question.id;
            known.unanswered = None;
            known.put |= question.kind != QuestionKind::ConfirmReboot;
            known.question = Some(question.clone());
            await_operator(state, question.until);
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
                    let last = state.iteration.saturating_add(crate::PUT_OFF_ITERATIONS);
                    known.put_off = Some(last);
                }
                Choice::Rollback => {
                    let iteration = state.iteration;
                    known.rolling_back = Some(RollingBack { iteration, then });
                    return await_operator(
                        state,
                        Some(time.after(crate::operator::ROLLBACK_TIMEOUT)),
                    );
                }
                Choice::Yes | Choice::Pause | Choice::Stop => {}
            }
            // The next record states what follows.
            state.phase = Phase::Idle;
        }
        OperatorEvent::Held { id, until } => {
            if let Some(question) = known.question.as_mut().filter(|it| it.id == *id) {
                question.until = *until;
                await_operator(state, *until);
            }
        }
        OperatorEvent::RolledBack { iteration, error } => {
            if error.is_none() {
                known.rolled_back = Some(*iteration);
            }
            if state.rolling_back().is_some() {
                state.phase = Phase::Idle;
            }
            state.operator.rolling_back = None;
        }
        OperatorEvent::Attended { on } => known.attended = Some(*on),
        OperatorEvent::MessageQueued { number, text } => {
            known.last_message = *number;
            known.messages.push(OperatorMessage {
                number: *number,
                text: text.clone(),
                in_prompt: false,
                delivered: false,
            });
        }
        OperatorEvent::MessagesDelivered { through } => {
            for message in &mut known.messages {
                message.delivered |= message.number <= *through;
            }
        }
        OperatorEvent::Reloaded {
            launch,
            changes,
            limits,
            ..
        } => {
            state.limits = *limits;
            if changes.iter().any(|change| change.key == "attended_mode") {
                known.attended = None;
            }
            state.launch = (**launch).clone();
        }
    }
}

fn await_operator(state: &mut State, until: Option<Timestamp>) {
    let reason = WaitReason::Operator;
    let until = until.unwrap_or(Timestamp::from_millis(i64::MAX));
    state.phase = Phase::Waiting {
        wait: Wait { reason, until },
    };
}

/// Withdraws the open question unless the loop still waits for its answer.
pub(super) fn withdraw_question(state: &mut State) {
    let found = match state.hooking() {
        Some(hooking) => hooking.over.as_deref(),
        None => Some(&state.phase),
    };
    if !found.is_some_and(Phase::awaits_operator) {
        state.operator.question = None;
        state.operator.rolling_back = None;
    }
}

/// An attempt begins. Its prompt contains all pending messages of the operator.
pub(super) fn attempt_started_attended(state: &mut State) {
    state.operator.agreed = false;
    state.operator.put = false;
    state.operator.iteration_ended = false;
    state.operator.unanswered = None;
    for message in &mut state.operator.messages {
        message.in_prompt = true;
        message.delivered = false;
    }
}

/// An iteration is over. Messages stay pending unless the iteration succeeded, because the agent may have missed them.
pub(super) fn iteration_ended_attended(state: &mut State, succeeded: bool) {
    state.operator.rolled_back = None;
    state.operator.put = false;
    state.operator.iteration_ended = true;
    state.operator.prompt = None;
    let is_delivered =
        |message: &OperatorMessage| succeeded && (message.in_prompt || message.delivered);
    state
        .operator
        .messages
        .retain(|message| !is_delivered(message));
}

/// Resets answers and attended mode when an ended loop is started again: the operator may have left since.
pub(super) fn reset_for_new_run(state: &mut State) {
    state.operator.agreed = false;
    state.operator.put = false;
    state.operator.iteration_ended = false;
    state.operator.unanswered = None;
    state.operator.attended = None;
}
