//! Names of the inputs, which are the columns of the grid.

use tachikoma_core::policy::busy::is_busy;
use tachikoma_core::{AgentInput, Input, LoopCommand, OperatorRequest, ScriptVerdict, Urgency};

use super::columns::Column;

/// Returns the name of an input. A new kind of input does not compile until it has a name here. Add it to `inputs` too.
pub fn name(column: &Column) -> String {
    let input = match column {
        Column::Late => return "wake at deadline".to_owned(),
        Column::At(input) => input,
    };
    match &**input {
        Input::Start { .. } => "start".to_owned(),
        Input::Wake => "wake".to_owned(),
        Input::Command { command, .. } => match command {
            LoopCommand::Pause(urgency) => format!("pause {}", hurry(*urgency)),
            LoopCommand::Resume => "resume".to_owned(),
            LoopCommand::Stop(urgency) => format!("stop {}", hurry(*urgency)),
            LoopCommand::ForceReboot => "reboot".to_owned(),
            LoopCommand::SkipIteration => "skip".to_owned(),
        },
        Input::Shutdown { urgency, .. } => format!("shutdown {}", hurry(*urgency)),
        Input::Agent { generation, event } => {
            let other = if generation.0 == 99 { "other " } else { "" };
            format!("{other}{}", news_name(event))
        }
        Input::HooksRan { point, results } => {
            let failed = results.iter().any(|result| result.error.is_some());
            let stops = results.iter().any(|result| result.stop);
            let how = match (failed, stops) {
                (_, true) => "stops",
                (true, false) => "failed",
                (false, false) => "ran",
            };
            format!("{point} {how}")
        }
        Input::AutocommitFinished { number: 99, .. } => "other kept".to_owned(),
        Input::AutocommitFinished { result: Ok(_), .. } => "kept".to_owned(),
        Input::AutocommitFinished { result: Err(_), .. } => "not kept".to_owned(),
        Input::SnapshotTaken { .. } => "snapshot".to_owned(),
        Input::ConditionsAnswered { answers, .. } => {
            match answers.scripts.first().map(|it| &it.verdict) {
                Some(ScriptVerdict::Claim) => "script claims".to_owned(),
                Some(ScriptVerdict::Stop) => "script stops".to_owned(),
                Some(ScriptVerdict::GoOn | ScriptVerdict::Unclear { .. }) | None => {
                    "answered".to_owned()
                }
            }
        }
        Input::GatesRan { number: 99, .. } => "other gates".to_owned(),
        Input::GatesRan { results, .. } => {
            let failed = results.iter().any(|gate| !gate.passed());
            format!("gates {}", if failed { "failed" } else { "passed" })
        }
        Input::OperatorRequest { request, .. } => match request {
            OperatorRequest::Answer { id: Some(99), .. } => "stale answer".to_owned(),
            OperatorRequest::Answer { choice, .. } => format!("answer {choice}"),
            OperatorRequest::Hold { writing: true, .. } => "hold".to_owned(),
            OperatorRequest::Hold { writing: false, .. } => "let go".to_owned(),
            OperatorRequest::Attend { on: true } => "attend on".to_owned(),
            OperatorRequest::Attend { on: false } => "attend off".to_owned(),
            OperatorRequest::Tell { .. } => "tell".to_owned(),
            OperatorRequest::StopAfterHooks => "stop by a hook".to_owned(),
            OperatorRequest::Reload { .. } => "reload".to_owned(),
        },
        Input::RolledBack { result: Ok(_), .. } => "rolled back".to_owned(),
        Input::RolledBack { result: Err(_), .. } => "not rolled back".to_owned(),
        Input::CompletionClaimed { .. } => "done".to_owned(),
        Input::Note { .. } => "note".to_owned(),
        Input::Decline { .. } => "decline".to_owned(),
        Input::Broken { .. } => "broken".to_owned(),
        Input::Suspended { .. } => "stood still".to_owned(),
        Input::CustomSet { .. } => "set".to_owned(),
        Input::Warning { .. } => "trouble".to_owned(),
        Input::DiskWasFull { .. } => "disk was full".to_owned(),
        Input::Incident(_) => "incident".to_owned(),
        Input::Repaired { .. } => "repaired".to_owned(),
    }
}

fn news_name(event: &AgentInput) -> String {
    match event {
        AgentInput::Launched { .. } => "launched".to_owned(),
        AgentInput::NotLaunched { .. } => "not launched".to_owned(),
        AgentInput::Opened => "opened".to_owned(),
        AgentInput::SessionNamed { .. } => "named".to_owned(),
        AgentInput::Output => "output".to_owned(),
        AgentInput::HandOffText { .. } => "said".to_owned(),
        AgentInput::ContextMeasured { context, .. } => format!("measured {}%", context.percent()),
        AgentInput::ToolStarted { .. } => "tool started".to_owned(),
        AgentInput::ToolEnded { .. } => "tool ended".to_owned(),
        AgentInput::ToolDenied { .. } => "denied".to_owned(),
        AgentInput::FileTouched { .. } => "touched".to_owned(),
        AgentInput::ProcessesSampled { activity: None } => "not seen".to_owned(),
        AgentInput::ProcessesSampled {
            activity: Some(activity),
        } => match is_busy(activity) {
            true => "busy".to_owned(),
            false => "not busy".to_owned(),
        },
        AgentInput::StreamEnded => "stream ended".to_owned(),
        AgentInput::CallEnded { .. } => "tokens gone".to_owned(),
        AgentInput::Cost { .. } => "cost told".to_owned(),
        AgentInput::ConversationResumed(_) => "conversation taken up".to_owned(),
        AgentInput::Quota(_) => "quota gone".to_owned(),
        AgentInput::TurnEnded(end) if end.problem.is_some() => "limited".to_owned(),
        AgentInput::TurnEnded(end) if end.success => "resulted".to_owned(),
        AgentInput::TurnEnded(_) => "result: failure".to_owned(),
        AgentInput::Exited { exit, claimed, .. } => {
            let claim = if *claimed { " claimed" } else { "" };
            format!("{exit}{claim}")
        }
        AgentInput::GuardLost => "guard lost".to_owned(),
    }
}

fn hurry(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::Graceful => "graceful",
        Urgency::Now => "now",
        Urgency::Kill => "kill",
    }
}
