//! What a record may have been the first consequence of.

mod operator;
mod wishes;

use std::collections::VecDeque;
use std::time::Duration;

use wishes::{command, ends, outcome, shutdowns, stops, urgently, written_off};

use crate::event::LoopEvent;
use crate::exit::{Exit, Leftover};
use crate::id::Ticket;
use crate::input::{Input, LoopCommand, News, TurnEnd, Urgency};
use crate::keep::{Keep, Kept};
use crate::operator::Wish;
use crate::outcome::{Failure, Problem, Stop};
use crate::phase::{Cause, Phase, RebootStage};
use crate::reboots::RebootReason;
use crate::record::Record;
use crate::state::State;

/// How the core words a fresh session that cannot be opened, before the reason.
const NOT_OPENED: &str = "the fresh session cannot be opened: ";

/// Returns the inputs that may have led to the first of the records, in a state; the one of which most follows first.
pub(super) fn guesses(state: &State, records: &VecDeque<Record>) -> Vec<Input> {
    let leaving = Leaving::before(records);
    let events = records.iter().map(|record| &record.event);
    let mut events = events.skip(leaving.records);
    let (event, next) = (events.next(), events.next());
    let died = matches!(event, Some(LoopEvent::Started { .. }) | None);
    if leaving.records > 0 && died {
        // The runner died over it.
        let exit = Exit::Unknown;
        return of(state, &LoopEvent::AgentExited { exit }, None, &leaving);
    }
    let mut guesses = event.map_or_else(Vec::new, |event| of(state, event, next, &leaving));
    // Work that was kept and had not changed leaves no record of its own.
    if state.keep().is_some() && guesses.contains(&Input::Wake) {
        guesses.insert(0, kept(state, Ok(state.kept.as_before())));
    }
    guesses
}

/// What is recorded of the end of a process before its end itself.
#[derive(Default)]
struct Leaving {
    leftovers: Vec<Leftover>,
    stop_pattern: Option<String>,
    records: usize,
}

impl Leaving {
    fn before(records: &VecDeque<Record>) -> Self {
        let mut leaving = Self::default();
        for record in records {
            if let LoopEvent::LeftoversEnded { leftovers } = &record.event {
                leaving.leftovers.clone_from(leftovers);
            } else if let LoopEvent::StopPatternMatched { pattern } = &record.event {
                leaving.stop_pattern = Some(pattern.clone());
            } else {
                break;
            }
            leaving.records += 1;
        }
        leaving
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each event")]
fn of(state: &State, event: &LoopEvent, next: Option<&LoopEvent>, leaving: &Leaving) -> Vec<Input> {
    let agent = |news| told(state, news);
    let exited = |exit, claimed, last_words, problem| {
        agent(News::Exited {
            exit,
            claimed,
            stop_pattern: leaving.stop_pattern.clone(),
            leftovers: leaving.leftovers.clone(),
            last_words,
            problem,
        })
    };
    match event {
        LoopEvent::SegmentOpened { .. }
        | LoopEvent::ConfigChanged { .. }
        | LoopEvent::StopPatternMatched { .. }
        | LoopEvent::LeftoversEnded { .. } => Vec::new(),
        LoopEvent::Started { launch, runner, .. } => vec![Input::Start {
            launch: launch.clone(),
            runner: runner.clone(),
        }],
        LoopEvent::PauseRequested => {
            let mut guesses = urgently(LoopCommand::Pause);
            guesses.push(command(LoopCommand::ForceReboot));
            guesses
        }
        LoopEvent::PauseWithdrawn | LoopEvent::Resumed => vec![command(LoopCommand::Resume)],
        LoopEvent::Paused { .. } => vec![
            command(LoopCommand::Pause(Urgency::Graceful)),
            Input::Wake,
            command(LoopCommand::SkipIteration),
        ],
        LoopEvent::StopRequested { stop, .. } => match stop {
            Stop::Operator => {
                let mut guesses = urgently(LoopCommand::Stop);
                guesses.push(operator::wish(Wish::StopBehindHooks));
                guesses
            }
            Stop::Signal { signal } => shutdowns(*signal),
            Stop::Budget { .. } | Stop::Hook { .. } | Stop::Script { .. } | Stop::Unable { .. } => {
                let mut guesses = same_reading(state);
                // Told to be quick about it.
                guesses.extend(urgently(LoopCommand::Stop));
                guesses
            }
        },
        LoopEvent::Operator(event) => operator::inputs(state, event, next),
        LoopEvent::WaitStarted { .. }
        | LoopEvent::IterationStarted { .. }
        | LoopEvent::StopConditionTriggered { .. } => {
            vec![Input::Wake, command(LoopCommand::SkipIteration)]
        }
        LoopEvent::SessionStarted { .. } | LoopEvent::SessionEnded { .. } => {
            if is_opening(state) {
                vec![agent(News::Opened)]
            } else {
                vec![Input::Wake, command(LoopCommand::SkipIteration)]
            }
        }
        LoopEvent::AgentLaunched { pid } => vec![agent(News::Launched { pid: *pid })],
        LoopEvent::AgentExited { exit } => {
            let mut guesses = vec![exited(*exit, false, None, None)];
            if let Some(LoopEvent::RebootFailed { error, .. }) = next {
                let reason = error.strip_prefix(NOT_OPENED).unwrap_or(error).to_owned();
                guesses.push(agent(News::NotLaunched { reason }));
            }
            guesses.push(agent(News::GuardLost));
            guesses
        }
        LoopEvent::SessionNamed { agent_id } => vec![agent(News::Named {
            agent_id: agent_id.clone(),
        })],
        LoopEvent::OutputSeen => vec![agent(News::Output)],
        LoopEvent::ContextMeasured {
            context, answering, ..
        } => vec![agent(News::Measured {
            context: *context,
            answering: *answering,
        })],
        LoopEvent::WrapUpAdvised { .. } | LoopEvent::RebootVerified { .. } => same_reading(state),
        LoopEvent::ToolStarted { id, name, summary } => vec![agent(News::ToolStarted {
            id: id.clone(),
            name: name.clone(),
            summary: summary.clone(),
        })],
        LoopEvent::ToolEnded { id, error } => vec![agent(News::ToolEnded {
            id: id.clone(),
            error: error.clone(),
        })],
        LoopEvent::ToolDenied(denial) => vec![agent(News::Denied {
            tool: denial.name.clone(),
            id: denial.id.clone(),
        })],
        LoopEvent::FileTouched { path } => vec![agent(News::Touched { path: path.clone() })],
        LoopEvent::TurnResulted(report) => {
            let text = match next {
                Some(LoopEvent::HandOffWritten { text, .. }) => text.clone(),
                Some(_) | None => String::new(),
            };
            let stop_pattern = match next {
                Some(LoopEvent::StopPatternMatched { pattern }) => Some(pattern.clone()),
                Some(_) | None => None,
            };
            vec![agent(News::Resulted(TurnEnd {
                success: report.success,
                reason: report.reason.clone(),
                problem: report.problem.clone(),
                text,
                claimed: report.claimed,
                pattern: report.pattern.clone(),
                more: false,
                stop_pattern,
                cost_microusd: report.cost_microusd,
                tokens: report.tokens,
                spent: report.spent,
            }))]
        }
        LoopEvent::CallEnded { tokens } => vec![agent(News::CallEnded { tokens: *tokens })],
        LoopEvent::CostTold {
            conversation_microusd,
        } => vec![agent(News::Cost {
            conversation_microusd: *conversation_microusd,
        })],
        LoopEvent::WorkedOutside {
            tool,
            cost_microusd,
            tokens,
        } if tool.is_empty() => vec![agent(News::Resulted(TurnEnd {
            cost_microusd: *cost_microusd,
            tokens: *tokens,
            ..TurnEnd::default()
        }))],
        LoopEvent::WorkedOutside { tool, .. } => vec![agent(News::ToolStarted {
            id: String::new(),
            name: tool.clone(),
            summary: String::new(),
        })],
        LoopEvent::ConversationTakenUp(told) => vec![agent(News::TakenUp(*told))],
        LoopEvent::QuotaTold(quota) => vec![agent(News::Quota(quota.clone()))],
        LoopEvent::Claimed { reason } => vec![Input::Done {
            ticket: Ticket::default(),
            reason: reason.clone(),
        }],
        LoopEvent::ConditionsAnswered { answers } => vec![Input::Answered {
            number: state.completion.number,
            answers: answers.clone(),
        }],
        LoopEvent::GatesRan { results, .. } => vec![Input::GatesRan {
            number: state.completion.number,
            results: results.clone(),
            tests: match next {
                Some(LoopEvent::TestsRan(report)) => Some(report.clone()),
                Some(_) | None => None,
            },
        }],
        LoopEvent::CheckGivenUp { .. } => {
            let mut guesses = vec![Input::Wake, command(LoopCommand::SkipIteration)];
            guesses.extend(urgently(LoopCommand::Pause));
            guesses
        }
        LoopEvent::Noted {
            text,
            tell,
            operator,
        } => vec![Input::Note {
            ticket: Ticket::default(),
            text: text.clone(),
            tell: *tell,
            operator: *operator,
        }],
        LoopEvent::EndingRequested { cause, .. } => match cause {
            Cause::HandOver => {
                let mut guesses = same_reading(state);
                guesses.push(command(LoopCommand::ForceReboot));
                guesses
            }
            Cause::Skip => vec![command(LoopCommand::SkipIteration)],
            Cause::Interrupt => {
                let mut guesses = urgently(LoopCommand::Stop);
                guesses.extend(urgently(LoopCommand::Pause));
                guesses
            }
            Cause::Timeout { .. } => {
                let activity = None;
                vec![Input::Wake, agent(News::Looked { activity })]
            }
        },
        LoopEvent::RungClimbed { .. } => {
            let mut guesses = vec![Input::Wake];
            guesses.extend(urgently(LoopCommand::Stop));
            guesses.extend(urgently(LoopCommand::Pause));
            guesses.push(command(LoopCommand::SkipIteration));
            guesses.extend(same_reading(state));
            guesses
        }
        LoopEvent::StoodStill { duration_ms } => vec![Input::StoodStill {
            duration: Duration::from_millis(*duration_ms),
        }],
        LoopEvent::IterationCompleted { report, .. } => {
            let exit = report.exit.unwrap_or(Exit::Unknown);
            vec![exited(exit, report.claimed, None, None)]
        }
        LoopEvent::IterationFailed { failure, .. } => vec![match failure {
            Failure::Exited { exit } => exited(*exit, false, None, None),
            Failure::NoResult {
                exit,
                last_words,
                problem,
            } => exited(*exit, false, last_words.clone(), problem.clone()),
            Failure::Reported { exit, .. } => {
                exited(exit.unwrap_or(Exit::Unknown), false, None, None)
            }
            Failure::NotLaunched { reason } => agent(News::NotLaunched {
                reason: reason.clone(),
            }),
            // How it ended is not recorded, and decides nothing.
            Failure::TimedOut { .. } => exited(Exit::Unknown, false, None, None),
            Failure::GuardLost => agent(News::GuardLost),
            Failure::Unkillable { .. } => Input::Wake,
        }],
        LoopEvent::IterationLimited(limited) => {
            let until = limited.until;
            let problem = match limited.outage {
                true => Problem::Unreachable,
                false => Problem::Limited { until },
            };
            let words = Some(limited.reason.clone());
            vec![exited(Exit::Unknown, false, words, Some(problem))]
        }
        LoopEvent::HandOffRequested { .. } => vec![agent(News::Opened)],
        LoopEvent::HandOffWritten {
            text,
            partial: true,
        } => vec![agent(News::Said { text: text.clone() })],
        LoopEvent::BusySeen { activity } => vec![agent(News::Looked {
            activity: Some(*activity),
        })],
        LoopEvent::SnapshotTaken {
            iteration,
            commit,
            uncommitted,
        } => vec![Input::Snapshot {
            iteration: *iteration,
            commit: commit.clone(),
            uncommitted: *uncommitted,
        }],
        LoopEvent::WorkKept { kept: found, .. } => vec![kept(state, Ok(found.clone()))],
        LoopEvent::KeepGivenUp { reason, .. } => {
            let mut guesses = vec![Input::Wake, kept(state, Err(reason.clone()))];
            guesses.extend(urgently(LoopCommand::Stop));
            guesses
        }
        LoopEvent::KeepCalledOff { .. } => {
            let mut guesses = vec![command(LoopCommand::SkipIteration)];
            guesses.extend(urgently(LoopCommand::Pause));
            guesses.extend(urgently(LoopCommand::Stop));
            guesses
        }
        LoopEvent::KeepStarted(Keep { outcome, .. }) => {
            let mut guesses = vec![Input::Wake];
            guesses.extend(outcome.iter().flat_map(ends));
            guesses
        }
        LoopEvent::StreamEnded => vec![agent(News::StreamEnded)],
        LoopEvent::AttemptCut { reason: None, .. } => {
            next.and_then(outcome).map_or_else(Vec::new, written_off)
        }
        LoopEvent::AttemptCut { reason, .. } => {
            let problem = Problem::Cut;
            vec![exited(Exit::Unknown, false, reason.clone(), Some(problem))]
        }
        LoopEvent::RebootRequested { reason, .. } => {
            let mut guesses = same_reading(state);
            if *reason == RebootReason::Manual {
                guesses.insert(0, command(LoopCommand::ForceReboot));
            }
            guesses
        }
        LoopEvent::RebootStarted { .. } => vec![
            Input::Wake,
            command(LoopCommand::ForceReboot),
            command(LoopCommand::SkipIteration),
        ],
        LoopEvent::HooksRan(end) => match &end.given_up {
            None => vec![Input::HooksRan {
                point: end.point,
                results: end.results.clone(),
            }],
            Some(_) => {
                let mut guesses = vec![Input::Wake, command(LoopCommand::SkipIteration)];
                guesses.extend(urgently(LoopCommand::Pause));
                guesses.extend(urgently(LoopCommand::Stop));
                guesses.extend(next.into_iter().flat_map(stops));
                guesses
            }
        },
        LoopEvent::HooksStarted(start) => {
            let mut guesses = vec![Input::Wake, command(LoopCommand::SkipIteration)];
            guesses.extend(start.outcome.iter().flat_map(ends));
            guesses
        }
        LoopEvent::CheckStarted { .. }
        | LoopEvent::ClaimRefused(_)
        | LoopEvent::TestsRan(_)
        | LoopEvent::ProgressMeasured(_)
        | LoopEvent::LookRequested { .. }
        | LoopEvent::HandOffWritten { partial: false, .. }
        | LoopEvent::ClosingStarted { .. }
        | LoopEvent::SessionOpening { .. }
        | LoopEvent::RebootCompleted { .. }
        | LoopEvent::RebootFailed { .. } => vec![Input::Wake],
        LoopEvent::CustomSet { key, value } => vec![Input::Set {
            ticket: Ticket::default(),
            key: key.clone(),
            value: value.clone(),
        }],
        LoopEvent::Warned { warning } => {
            let mut guesses = same_reading(state);
            let warning = warning.clone();
            guesses.push(Input::Trouble { warning });
            guesses
        }
        LoopEvent::DiskWasFull { duration_ms } => vec![Input::DiskWasFull {
            duration: Duration::from_millis(*duration_ms),
        }],
        LoopEvent::Incident(incident) => vec![Input::Incident(incident.clone())],
        LoopEvent::Repaired { what, how } => vec![Input::Repaired {
            what: *what,
            how: how.clone(),
        }],
        LoopEvent::Completed { .. } | LoopEvent::Stopped { .. } | LoopEvent::Error { .. } => {
            let mut guesses = vec![Input::Wake];
            guesses.extend(outcome(event).into_iter().flat_map(ends));
            guesses
        }
    }
}

/// The answer of whoever keeps the work.
fn kept(state: &State, kept: Result<Kept, String>) -> Input {
    let number = state.kept.number;
    Input::Kept { number, kept }
}

fn told(state: &State, news: News) -> Input {
    let generation = state
        .agent
        .map_or(state.generation, |agent| agent.generation);
    Input::Agent { generation, news }
}

/// A wake, or a reading that said nothing new and so left no record of its own.
fn same_reading(state: &State) -> Vec<Input> {
    let answering = match &state.phase {
        Phase::Working { work } => work.answering,
        Phase::Idle
        | Phase::Waiting { .. }
        | Phase::Keeping { .. }
        | Phase::Checking { .. }
        | Phase::Hooking { .. }
        | Phase::Rebooting { .. }
        | Phase::Paused { .. }
        | Phase::Ended { .. } => false,
    };
    let reading = state.session.context.map(|context| {
        let news = News::Measured { context, answering };
        told(state, news)
    });
    [Input::Wake].into_iter().chain(reading).collect()
}

fn is_opening(state: &State) -> bool {
    let reboot = state.rebooting();
    reboot.is_some_and(|reboot| matches!(reboot.stage, RebootStage::Opening { .. }))
}
