//! What the inputs of the grid are called.

use tachikoma_core::policy::busy::is_busy;
use tachikoma_core::{Input, LoopCommand, News, ScriptVerdict, Urgency, Wish};

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
        Input::Agent { generation, news } => {
            let other = if generation.0 == 99 { "other " } else { "" };
            format!("{other}{}", news_name(news))
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
        Input::Kept { number: 99, .. } => "other kept".to_owned(),
        Input::Kept { kept: Ok(_), .. } => "kept".to_owned(),
        Input::Kept { kept: Err(_), .. } => "not kept".to_owned(),
        Input::Snapshot { .. } => "snapshot".to_owned(),
        Input::Answered { answers, .. } => match answers.scripts.first().map(|it| &it.verdict) {
            Some(ScriptVerdict::Claim) => "script claims".to_owned(),
            Some(ScriptVerdict::Stop) => "script stops".to_owned(),
            Some(ScriptVerdict::GoOn | ScriptVerdict::Unclear { .. }) | None => {
                "answered".to_owned()
            }
        },
        Input::GatesRan { number: 99, .. } => "other gates".to_owned(),
        Input::GatesRan { results, .. } => {
            let failed = results.iter().any(|gate| !gate.passed());
            format!("gates {}", if failed { "failed" } else { "passed" })
        }
        Input::Operator { wish, .. } => match wish {
            Wish::Answer { id: Some(99), .. } => "stale answer".to_owned(),
            Wish::Answer { choice, .. } => format!("answer {choice}"),
            Wish::Hold { writing: true, .. } => "hold".to_owned(),
            Wish::Hold { writing: false, .. } => "let go".to_owned(),
            Wish::Attend { on: true } => "attend on".to_owned(),
            Wish::Attend { on: false } => "attend off".to_owned(),
            Wish::Tell { .. } => "tell".to_owned(),
            Wish::StopBehindHooks => "stop by a hook".to_owned(),
            Wish::Reload { .. } => "reload".to_owned(),
        },
        Input::RolledBack { result: Ok(_), .. } => "rolled back".to_owned(),
        Input::RolledBack { result: Err(_), .. } => "not rolled back".to_owned(),
        Input::Done { .. } => "done".to_owned(),
        Input::Note { .. } => "note".to_owned(),
        Input::Decline { .. } => "decline".to_owned(),
        Input::Broken { .. } => "broken".to_owned(),
        Input::StoodStill { .. } => "stood still".to_owned(),
        Input::Set { .. } => "set".to_owned(),
        Input::Trouble { .. } => "trouble".to_owned(),
        Input::DiskWasFull { .. } => "disk was full".to_owned(),
        Input::Incident(_) => "incident".to_owned(),
        Input::Repaired { .. } => "repaired".to_owned(),
    }
}

fn news_name(news: &News) -> String {
    match news {
        News::Launched { .. } => "launched".to_owned(),
        News::NotLaunched { .. } => "not launched".to_owned(),
        News::Opened => "opened".to_owned(),
        News::Named { .. } => "named".to_owned(),
        News::Output => "output".to_owned(),
        News::Said { .. } => "said".to_owned(),
        News::Measured { context, .. } => format!("measured {}%", context.percent()),
        News::ToolStarted { .. } => "tool started".to_owned(),
        News::ToolEnded { .. } => "tool ended".to_owned(),
        News::Denied { .. } => "denied".to_owned(),
        News::Touched { .. } => "touched".to_owned(),
        News::Looked { activity: None } => "not seen".to_owned(),
        News::Looked {
            activity: Some(activity),
        } => match is_busy(activity) {
            true => "busy".to_owned(),
            false => "not busy".to_owned(),
        },
        News::StreamEnded => "stream ended".to_owned(),
        News::CallEnded { .. } => "tokens gone".to_owned(),
        News::Cost { .. } => "cost told".to_owned(),
        News::TakenUp(_) => "conversation taken up".to_owned(),
        News::Quota(_) => "quota gone".to_owned(),
        News::Resulted(end) if end.problem.is_some() => "limited".to_owned(),
        News::Resulted(end) if end.success => "resulted".to_owned(),
        News::Resulted(_) => "result: failure".to_owned(),
        News::Exited { exit, claimed, .. } => {
            let claim = if *claimed { " claimed" } else { "" };
            format!("{exit}{claim}")
        }
        News::GuardLost => "guard lost".to_owned(),
    }
}

fn hurry(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::Graceful => "graceful",
        Urgency::Now => "now",
        Urgency::Kill => "kill",
    }
}
