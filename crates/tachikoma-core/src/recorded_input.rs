//! The input of a step as the journal stores it, so that a recorded loop can be replayed.
//!
//! Most events contain everything that was in their input. Then the first record of the step only says so. Other inputs are stored
//! in full. Text of the agent that the step did not put into an event is left out, because agent output does not belong into the
//! journal.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::millis;
use crate::{
    AgentInput, Failure, Generation, Input, Leftover, LoopEvent, OperatorEvent, OperatorRequest,
    State, Ticket, TurnEnd,
};

/// The input of a step, stored in the first record of the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RecordedInput {
    /// The events of the step contain the whole input.
    #[serde(rename = "in_events")]
    InEvents,
    /// The input, without its ticket and without text that the events contain.
    #[serde(untagged)]
    Given(Box<Input>),
}

/// Numbers of the current launch, autocommit and check before the step. Inputs with other numbers are dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedNumbers {
    agent: Option<Generation>,
    autocommit: u64,
    check: u64,
}

impl ExpectedNumbers {
    pub(crate) fn of(state: &State) -> Self {
        Self {
            agent: state.agent.map(|agent| agent.generation),
            autocommit: state.tracked_work.number,
            check: state.completion.number,
        }
    }
}

impl RecordedInput {
    /// Returns what the journal stores about the input of a step that led to these events.
    pub(crate) fn new(mut input: Input, before: ExpectedNumbers, events: &[&LoopEvent]) -> Self {
        normalize(&mut input, events);
        if matches!(input, Input::Start { .. })
            || in_events(before, events).as_ref() == Some(&input)
        {
            return Self::InEvents;
        }
        if let Input::Agent {
            event: AgentInput::TurnEnded(end),
            ..
        } = &mut input
        {
            end.text.clear();
        }
        Self::Given(Box::new(input))
    }

    /// Returns the input of the step that led to these events. The events may be incomplete if the runner crashed during the step.
    pub(crate) fn restore(&self, before: ExpectedNumbers, events: &[&LoopEvent]) -> Option<Input> {
        match self {
            Self::InEvents => in_events(before, events),
            Self::Given(input) => {
                let mut input = (**input).clone();
                if let Input::Agent {
                    event: AgentInput::TurnEnded(end),
                    ..
                } = &mut input
                {
                    end.text = hand_off_text(events);
                }
                Some(input)
            }
        }
    }
}

/// Removes parts of the input that the step did not use, and rounds durations to milliseconds.
fn normalize(input: &mut Input, events: &[&LoopEvent]) {
    match input {
        Input::Command { ticket, .. }
        | Input::CompletionClaimed { ticket, .. }
        | Input::Note { ticket, .. }
        | Input::OperatorRequest { ticket, .. }
        | Input::CustomSet { ticket, .. } => *ticket = Ticket::default(),
        Input::Suspended { duration } | Input::DiskWasFull { duration } => {
            *duration = Duration::from_millis(millis(*duration));
        }
        Input::Agent {
            event: AgentInput::TurnEnded(end),
            ..
        } => end.text = hand_off_text(events),
        Input::Agent {
            event: AgentInput::Exited { last_words, .. },
            ..
        } if !events.iter().any(|event| repeats_last_words(event)) => *last_words = None,
        Input::Agent {
            event: AgentInput::HandOffText { text },
            ..
        } => {
            if let Some(LoopEvent::HandOffWritten { text: written, .. }) = events.first() {
                text.clone_from(written);
            }
        }
        _ => {}
    }
}

/// Returns whether the event has the agent's last line on standard error in it.
fn repeats_last_words(event: &LoopEvent) -> bool {
    matches!(
        event,
        LoopEvent::IterationFailed {
            failure: Failure::NoResult { .. },
            ..
        } | LoopEvent::IterationLimited(_)
            | LoopEvent::AttemptCut {
                reason: Some(_),
                ..
            }
    )
}

/// Returns the hand-off that a step recorded; empty if it recorded none.
fn hand_off_text(events: &[&LoopEvent]) -> String {
    let text = events.iter().find_map(|event| match event {
        LoopEvent::HandOffWritten { text, .. } => Some(text.clone()),
        _ => None,
    });
    text.unwrap_or_default()
}

/// Returns the input, if its whole content is in the events.
#[expect(clippy::too_many_lines, reason = "one arm for each event")]
fn in_events(before: ExpectedNumbers, events: &[&LoopEvent]) -> Option<Input> {
    let first = *events.iter().find(|event| !is_prelude(event))?;
    let agent = |event| {
        let generation = before.agent?;
        Some(Input::Agent { generation, event })
    };
    let exited = |exit, claimed, last_words, problem| AgentInput::Exited {
        exit,
        claimed,
        stop_pattern: stop_pattern(events),
        leftovers: leftovers(events),
        last_words,
        problem,
    };
    let ticket = Ticket::default();
    let number = before.check;
    match first {
        LoopEvent::Started { launch, runner, .. } => Some(Input::Start {
            launch: launch.clone(),
            runner: runner.clone(),
        }),
        LoopEvent::AgentLaunched { pid } => agent(AgentInput::Launched { pid: *pid }),
        LoopEvent::SessionNamed { agent_id } => agent(AgentInput::SessionNamed {
            agent_id: agent_id.clone(),
        }),
        LoopEvent::OutputSeen => agent(AgentInput::Output),
        LoopEvent::ContextMeasured {
            context, answering, ..
        } => agent(AgentInput::ContextMeasured {
            context: *context,
            answering: *answering,
        }),
        LoopEvent::ToolStarted { id, name, summary } => agent(AgentInput::ToolStarted {
            id: id.clone(),
            name: name.clone(),
            summary: summary.clone(),
        }),
        LoopEvent::ToolEnded { id, error } => agent(AgentInput::ToolEnded {
            id: id.clone(),
            error: error.clone(),
        }),
        LoopEvent::ToolDenied(denial) => agent(AgentInput::ToolDenied {
            tool: denial.name.clone(),
            id: denial.id.clone(),
        }),
        LoopEvent::FileTouched { path } => agent(AgentInput::FileTouched { path: path.clone() }),
        LoopEvent::TurnResulted(report) => agent(AgentInput::TurnEnded(TurnEnd {
            text: hand_off_text(events),
            stop_pattern: stop_pattern(events),
            ..report.clone()
        })),
        LoopEvent::CallEnded { tokens } => agent(AgentInput::CallEnded { tokens: *tokens }),
        LoopEvent::CostReported {
            conversation_microusd,
        } => agent(AgentInput::Cost {
            conversation_microusd: *conversation_microusd,
        }),
        LoopEvent::ConversationResumed(told) => agent(AgentInput::ConversationResumed(*told)),
        LoopEvent::QuotaReported(quota) => agent(AgentInput::Quota(quota.clone())),
        LoopEvent::StreamEnded => agent(AgentInput::StreamEnded),
        LoopEvent::AgentBusy { activity } => agent(AgentInput::ProcessesSampled {
            activity: Some(*activity),
        }),
        LoopEvent::HandOffWritten { text, .. } => {
            agent(AgentInput::HandOffText { text: text.clone() })
        }
        LoopEvent::AgentExited { exit } => agent(exited(*exit, false, None, None)),
        LoopEvent::IterationCompleted { report, .. } => {
            agent(exited(report.exit?, report.claimed, None, None))
        }
        LoopEvent::IterationFailed { failure, .. } => {
            let (exit, last_words, problem) = match failure {
                Failure::Exited { exit } => (*exit, None, None),
                Failure::Reported { exit, .. } => ((*exit)?, None, None),
                Failure::NoResult {
                    exit,
                    last_words,
                    problem,
                } => (*exit, last_words.clone(), problem.clone()),
                Failure::NotLaunched { reason } => {
                    let reason = reason.clone();
                    return agent(AgentInput::NotLaunched { reason });
                }
                Failure::TimedOut { .. } | Failure::GuardLost | Failure::Unkillable { .. } => {
                    return None;
                }
            };
            agent(exited(exit, false, last_words, problem))
        }
        LoopEvent::Claimed { reason } => Some(Input::CompletionClaimed {
            ticket,
            reason: reason.clone(),
        }),
        LoopEvent::ConditionsAnswered { answers } => Some(Input::ConditionsAnswered {
            number,
            answers: answers.clone(),
        }),
        LoopEvent::GatesRan { results, .. } => Some(Input::GatesRan {
            number,
            results: results.clone(),
            tests: events.iter().find_map(|event| match event {
                LoopEvent::TestsRan(report) => Some(report.clone()),
                _ => None,
            }),
        }),
        LoopEvent::Noted {
            text,
            tell,
            operator,
        } => Some(Input::Note {
            ticket,
            text: text.clone(),
            tell: *tell,
            operator: *operator,
        }),
        LoopEvent::Suspended { duration_ms } => Some(Input::Suspended {
            duration: Duration::from_millis(*duration_ms),
        }),
        LoopEvent::SnapshotTaken {
            iteration,
            commit,
            uncommitted,
        } => Some(Input::SnapshotTaken {
            iteration: *iteration,
            commit: commit.clone(),
            uncommitted: *uncommitted,
        }),
        LoopEvent::AutocommitFinished { result, .. } => Some(Input::AutocommitFinished {
            number: before.autocommit,
            result: Ok(result.clone()),
        }),
        LoopEvent::HooksRan(end) => Some(Input::HooksRan {
            point: end.point,
            results: end.results.clone(),
        }),
        LoopEvent::CustomSet { key, value } => Some(Input::CustomSet {
            ticket,
            key: key.clone(),
            value: value.clone(),
        }),
        LoopEvent::Operator(OperatorEvent::Reloaded {
            launch,
            later,
            limits,
            ..
        }) => Some(Input::OperatorRequest {
            ticket,
            request: OperatorRequest::Reload {
                launch: launch.clone(),
                later: later.clone(),
                limits: *limits,
            },
        }),
        LoopEvent::Operator(OperatorEvent::MessageQueued { text, .. }) => {
            Some(Input::OperatorRequest {
                ticket,
                request: OperatorRequest::Tell { text: text.clone() },
            })
        }
        LoopEvent::Warned { warning } => Some(Input::Warning {
            warning: warning.clone(),
        }),
        LoopEvent::DiskWasFull { duration_ms } => Some(Input::DiskWasFull {
            duration: Duration::from_millis(*duration_ms),
        }),
        LoopEvent::Incident(incident) => Some(Input::Incident(incident.clone())),
        LoopEvent::Repaired { what, how } => Some(Input::Repaired {
            what: *what,
            how: how.clone(),
        }),
        _ => None,
    }
}

/// Returns whether the event belongs to the end of a process and comes before the event that names that end.
fn is_prelude(event: &LoopEvent) -> bool {
    matches!(
        event,
        LoopEvent::LeftoversEnded { .. } | LoopEvent::StopPatternMatched { .. }
    )
}

fn leftovers(events: &[&LoopEvent]) -> Vec<Leftover> {
    let leftovers = events.iter().find_map(|event| match event {
        LoopEvent::LeftoversEnded { leftovers } => Some(leftovers.clone()),
        _ => None,
    });
    leftovers.unwrap_or_default()
}

fn stop_pattern(events: &[&LoopEvent]) -> Option<String> {
    events.iter().find_map(|event| match event {
        LoopEvent::StopPatternMatched { pattern } => Some(pattern.clone()),
        _ => None,
    })
}
