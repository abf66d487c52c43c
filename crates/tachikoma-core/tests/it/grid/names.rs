//! What the inputs of the grid are called.

use tachikoma_core::policy::busy::is_busy;
use tachikoma_core::{AgentEvent, Input, LoopCommand, OperatorRequest, ScriptVerdict, Urgency};

use super::columns::Column;

/// Names an input; a new kind does not compile until it has a name here, and then belongs into `inputs`.
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
        Input::AutocommitFinished { kept: Ok(_), .. } => "kept".to_owned(),
        Input::AutocommitFinished { kept: Err(_), .. } => "not kept".to_owned(),
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
        Input::OperatorRequest { wish, .. } => match wish {
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

fn news_name(event: &AgentEvent) -> String {
    match event {
        AgentEvent::Launched { .. } => "launched".to_owned(),
        AgentEvent::NotLaunched { .. } => "not launched".to_owned(),
        AgentEvent::Opened => "opened".to_owned(),
        AgentEvent::SessionNamed { .. } => "named".to_owned(),
        AgentEvent::Output => "output".to_owned(),
        AgentEvent::HandOffText { .. } => "said".to_owned(),
        AgentEvent::ContextMeasured { context, .. } => format!("measured {}%", context.percent()),
        AgentEvent::ToolStarted { .. } => "tool started".to_owned(),
        AgentEvent::ToolEnded { .. } => "tool ended".to_owned(),
        AgentEvent::ToolDenied { .. } => "denied".to_owned(),
        AgentEvent::FileTouched { .. } => "touched".to_owned(),
        AgentEvent::ProcessesSampled { activity: None } => "not seen".to_owned(),
        AgentEvent::ProcessesSampled {
            activity: Some(activity),
        } => match is_busy(activity) {
            true => "busy".to_owned(),
            false => "not busy".to_owned(),
        },
        AgentEvent::StreamEnded => "stream ended".to_owned(),
        AgentEvent::CallEnded { .. } => "tokens gone".to_owned(),
        AgentEvent::Cost { .. } => "cost told".to_owned(),
        AgentEvent::ConversationResumed(_) => "conversation taken up".to_owned(),
        AgentEvent::Quota(_) => "quota gone".to_owned(),
        AgentEvent::TurnEnded(end) if end.problem.is_some() => "limited".to_owned(),
        AgentEvent::TurnEnded(end) if end.success => "resulted".to_owned(),
        AgentEvent::TurnEnded(_) => "result: failure".to_owned(),
        AgentEvent::Exited { exit, claimed, .. } => {
            let claim = if *claimed { " claimed" } else { "" };
            format!("{exit}{claim}")
        }
        AgentEvent::GuardLost => "guard lost".to_owned(),
    }
}

fn hurry(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::Graceful => "graceful",
        Urgency::Now => "now",
        Urgency::Kill => "kill",
    }
}
