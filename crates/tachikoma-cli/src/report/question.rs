//! Formats questions to the operator, and the answers, as lines for people.

use tachikoma_core::{AnsweredBy, OperatorEvent, Question, Record};

use super::changes::change_lines;
use super::symbol::Symbol;
use crate::keys;
use crate::sanitize::sanitize;
use crate::view::number::duration;
use crate::view::text::Text;

/// Returns the lines for an event between the loop and its operator. `by_keys` says whether keys answer questions.
pub fn lines(record: &Record, event: &OperatorEvent, by_keys: bool) -> Vec<Text> {
    let symbol = match event {
        OperatorEvent::Asked(_) => Symbol::Wait,
        OperatorEvent::RolledBack { error: Some(_), .. } => Symbol::Failed,
        _ => Symbol::Detail,
    };
    let lines = texts(record, event, by_keys).into_iter();
    lines.map(|line| symbol.line(line)).collect()
}

fn texts(record: &Record, event: &OperatorEvent, by_keys: bool) -> Vec<String> {
    let line = match event {
        OperatorEvent::Asked(question) => return asked(record, question, by_keys),
        OperatorEvent::Answered { id, choice, by, .. } => match by {
            AnsweredBy::Operator => format!("question {id} is answered: {choice}"),
            AnsweredBy::Default => format!("nobody answered question {id} in time: {choice}"),
        },
        // Nothing is printed while an editor has the terminal.
        OperatorEvent::Held { .. } if by_keys => return Vec::new(),
        OperatorEvent::Held { id, until: None } => {
            format!("question {id} waits for what is written")
        }
        OperatorEvent::Held {
            id,
            until: Some(until),
        } => format!("question {id} waits {}", duration(until.since(record.time))),
        OperatorEvent::RolledBack {
            iteration,
            error: None,
        } => {
            format!("the work tree is restored to its state before iteration {iteration}")
        }
        OperatorEvent::RolledBack {
            error: Some(error), ..
        } => format!("the work tree was not brought back: {}", sanitize(error)),
        OperatorEvent::Attended { on: true } => "attended: asks between iterations".to_owned(),
        OperatorEvent::Attended { on: false } => "unattended: asks nothing".to_owned(),
        OperatorEvent::MessageQueued { text, .. } => format!("to the agent: {}", sanitize(text)),
        OperatorEvent::MessagesDelivered { .. } => {
            "the agent is told while its tool runs".to_owned()
        }
        OperatorEvent::Reloaded { changes, later, .. } => {
            let mut lines = match changes.is_empty() {
                true => Vec::new(),
                false => change_lines(changes),
            };
            if !later.is_empty() {
                let later = later.join(", ");
                lines.push(format!(
                    "changed, and holds with the next run only: {later}"
                ));
            }
            return lines;
        }
    };
    vec![line]
}

fn asked(record: &Record, question: &Question, by_keys: bool) -> Vec<String> {
    let limit = match question.until {
        Some(until) => format!(
            "; {} in {} if nobody answers",
            question.default,
            duration(until.since(record.time))
        ),
        None => String::new(),
    };
    let how = match by_keys {
        true => keys::offers(question),
        false => format!("`tachikoma answer` with one of: {}", question.offers()),
    };
    vec![
        format!("question {}: {}", question.id, sanitize(&question.about)),
        format!("  {how}{limit}"),
    ]
}
