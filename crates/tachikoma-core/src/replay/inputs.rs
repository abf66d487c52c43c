//! What a record may have been the first consequence of.

use std::collections::VecDeque;
use std::time::Duration;

use crate::event::LoopEvent;
use crate::exit::{Exit, Leftover};
use crate::id::Ticket;
use crate::input::{Input, LoopCommand, News, TurnEnd, Urgency};
use crate::keep::Kept;
use crate::outcome::{Failure, Outcome, Problem, RebootReason, Stop};
use crate::phase::{Cause, Phase, RebootStage};
use crate::record::Record;
use crate::state::State;

/// How the core words a fresh session that cannot be opened, before the reason.
const NOT_OPENED: &str = "the fresh session cannot be opened: ";

/// Returns the inputs that may have led to the first of the records, in a state; the one of which most follows first.
pub(super) fn guesses(state: &State, records: &VecDeque<Record>) -> Vec<Input> {
    let Some(first) = records.front() else {
        return Vec::new();
    };
    let second = records.get(1).map(|record| &record.event);
    match (&first.event, second) {
        // They are ended with their agent, and recorded before its end.
        (LoopEvent::LeftoversEnded { leftovers }, Some(LoopEvent::Started { .. }) | None) => {
            // The runner died over it.
            let exit = Exit::Unknown;
            of(state, &LoopEvent::AgentExited { exit }, None, leftovers)
        }
        (LoopEvent::LeftoversEnded { leftovers }, Some(event)) => {
            let third = records.get(2).map(|record| &record.event);
            of(state, event, third, leftovers)
        }
        (event, second) => {
            let mut guesses = of(state, event, second, &[]);
            // Work that was kept and had not changed leaves no record of its own.
            if state.keep().is_some() && guesses.contains(&Input::Wake) {
                guesses.insert(0, kept(state, Ok(as_before(state))));
            }
            guesses
        }
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each event")]
fn of(
    state: &State,
    event: &LoopEvent,
    next: Option<&LoopEvent>,
    leftovers: &[Leftover],
) -> Vec<Input> {
    let agent = |news| told(state, news);
    let exited = |exit, claimed, last_words, problem| {
        agent(News::Exited {
            exit,
            claimed,
            leftovers: leftovers.to_vec(),
            last_words,
            problem,
        })
    };
    match event {
        LoopEvent::SegmentOpened { .. }
        | LoopEvent::ConfigChanged { .. }
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
            Stop::Operator => urgently(LoopCommand::Stop),
            Stop::Signal { signal } => shutdowns(*signal),
            Stop::Hook { .. } | Stop::Unable { .. } => {
                let mut guesses = same_reading(state);
                // Told to be quick about it.
                guesses.extend(urgently(LoopCommand::Stop));
                guesses
            }
        },
        LoopEvent::WaitStarted { .. } | LoopEvent::IterationStarted { .. } => {
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
        LoopEvent::ToolDenied { name } => vec![agent(News::Denied { tool: name.clone() })],
        LoopEvent::FileTouched { path } => vec![agent(News::Touched { path: path.clone() })],
        LoopEvent::TurnResulted {
            success,
            reason,
            problem,
            claimed,
            pattern,
            cost_microusd,
            spent,
        } => {
            let text = match next {
                Some(LoopEvent::HandOffWritten { text }) => text.clone(),
                Some(_) | None => String::new(),
            };
            vec![agent(News::Resulted(TurnEnd {
                success: *success,
                reason: reason.clone(),
                problem: problem.clone(),
                text,
                claimed: *claimed,
                pattern: pattern.clone(),
                more: false,
                cost_microusd: *cost_microusd,
                spent: *spent,
            }))]
        }
        LoopEvent::Noted { text } => vec![Input::Note {
            ticket: Ticket::default(),
            text: text.clone(),
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
        LoopEvent::IterationLimited { reason, until, .. } => {
            let problem = Problem::Limited { until: *until };
            let words = Some(reason.clone());
            vec![exited(Exit::Unknown, false, words, Some(problem))]
        }
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
        LoopEvent::KeepStarted { outcome, .. } => {
            let mut guesses = vec![Input::Wake];
            guesses.extend(outcome.iter().flat_map(ends));
            guesses
        }
        LoopEvent::StreamEnded => vec![agent(News::StreamEnded)],
        LoopEvent::AttemptCut { .. } => next.and_then(outcome).map_or_else(Vec::new, written_off),
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
        LoopEvent::HooksRan { point, results } => vec![Input::HooksRan {
            point: *point,
            results: results.clone(),
        }],
        LoopEvent::StopConditionTriggered { .. }
        | LoopEvent::LookRequested { .. }
        | LoopEvent::HandOffRequested { .. }
        | LoopEvent::HandOffWritten { .. }
        | LoopEvent::HooksStarted { .. }
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

fn outcome(event: &LoopEvent) -> Option<&Outcome> {
    if let LoopEvent::Completed { outcome, .. }
    | LoopEvent::Stopped { outcome, .. }
    | LoopEvent::Error { outcome, .. } = event
    {
        Some(outcome)
    } else {
        None
    }
}

/// What may have ended the loop by itself.
fn ends(outcome: &Outcome) -> Vec<Input> {
    match outcome {
        Outcome::Operator => urgently(LoopCommand::Stop),
        Outcome::Signal { signal } => {
            let mut guesses = shutdowns(*signal);
            guesses.extend(written_off(outcome));
            guesses
        }
        Outcome::Error { .. } => written_off(outcome),
        Outcome::Done
        | Outcome::LimitReached { .. }
        | Outcome::Condition { .. }
        | Outcome::Budget { .. } => Vec::new(),
    }
}

/// The answer of whoever keeps the work.
fn kept(state: &State, kept: Result<Kept, String>) -> Input {
    let number = state.kept.number;
    Input::Kept { number, kept }
}

/// Nothing is other than it was.
fn as_before(state: &State) -> Kept {
    Kept {
        uncommitted: state.kept.uncommitted,
        ..Kept::default()
    }
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

fn command(command: LoopCommand) -> Input {
    Input::Command {
        ticket: Ticket::default(),
        command,
    }
}

/// The more urgent, the more follows at once.
fn urgently(make: fn(Urgency) -> LoopCommand) -> Vec<Input> {
    let urgencies = [Urgency::Kill, Urgency::Now, Urgency::Graceful];
    urgencies.map(|urgency| command(make(urgency))).to_vec()
}

fn shutdowns(signal: i32) -> Vec<Input> {
    let urgencies = [Urgency::Kill, Urgency::Now, Urgency::Graceful];
    urgencies
        .map(|urgency| Input::Shutdown { signal, urgency })
        .to_vec()
}

fn written_off(outcome: &Outcome) -> Vec<Input> {
    match outcome {
        Outcome::Signal { signal } => vec![Input::Decline { signal: *signal }],
        Outcome::Error { reason } => vec![Input::Broken {
            reason: reason.clone(),
        }],
        Outcome::Done
        | Outcome::LimitReached { .. }
        | Outcome::Condition { .. }
        | Outcome::Budget { .. }
        | Outcome::Operator => Vec::new(),
    }
}

fn is_opening(state: &State) -> bool {
    match &state.phase {
        Phase::Rebooting { reboot } => matches!(reboot.stage, RebootStage::Opening { .. }),
        Phase::Idle
        | Phase::Waiting { .. }
        | Phase::Working { .. }
        | Phase::Keeping { .. }
        | Phase::Paused { .. }
        | Phase::Ended { .. } => false,
    }
}
