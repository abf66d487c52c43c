//! What is said of what happened between a loop and its operator.

use super::{Explain, Inputs};
use crate::operator::{AnsweredBy, OperatorEvent};
use crate::record::Record;

impl Explain<'_> {
    pub(super) fn operator(&mut self, record: &Record, event: &OperatorEvent) {
        match event {
            OperatorEvent::Asked(question) => {
                let words = format!("asked the operator: {}", question.about);
                self.decide(record, words, question.until, Inputs::new());
            }
            OperatorEvent::Answered { id, choice, by, .. } => match by {
                AnsweredBy::Operator => {
                    self.fact(
                        record,
                        format!("the operator answered question {id}: {choice}"),
                    );
                }
                AnsweredBy::Default => {
                    let words = format!("nobody answered question {id} in time: {choice}");
                    self.decide(record, words, None, Inputs::new());
                }
            },
            OperatorEvent::Held { id, until } => {
                let words = match until {
                    None => format!("the operator writes the answer to question {id}"),
                    Some(_) => format!(
                        "the operator does not write any more; question {id} has its whole time again"
                    ),
                };
                self.fact(record, words);
            }
            OperatorEvent::RolledBack { iteration, error } => {
                let words = match error {
                    None => format!("the work tree is as it was before iteration {iteration}"),
                    Some(error) => format!("the work tree was not brought back: {error}"),
                };
                self.fact(record, words);
            }
            OperatorEvent::Attended { on } => {
                let words = if *on {
                    "the operator is there to be asked"
                } else {
                    "the operator is not there to be asked"
                };
                self.fact(record, words);
            }
            OperatorEvent::Told { .. } => self.fact(record, "the operator has words for the agent"),
            OperatorEvent::PassedOn { .. } => {
                self.fact(record, "the agent was told the words of the operator");
            }
            OperatorEvent::Reloaded { changes, .. } => {
                let keys: Vec<&str> = changes.iter().map(|it| it.key.as_str()).collect();
                let keys = keys.join(", ");
                self.fact(record, format!("the configuration was read again: {keys}"));
            }
        }
    }
}
