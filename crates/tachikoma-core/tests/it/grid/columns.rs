//! The columns of the grid: every input there is, with its name.

use std::time::Duration;

use tachikoma_core::policy::busy::is_busy;
use tachikoma_core::{
    Activity, Context, Exit, Generation, HookPoint, HookResult, Input, Kept, LoopCommand, News,
    Problem, QuotaWindow, Repair, State, Ticket, TurnEnd, Urgency,
};

use crate::play::{Play, exited};

const URGENCIES: [Urgency; 3] = [Urgency::Graceful, Urgency::Now, Urgency::Kill];

#[derive(Clone, PartialEq)]
pub enum Column {
    /// An input at the present moment.
    At(Input),
    /// A wake at the next deadline, or after a while where there is none.
    Late,
}

pub fn inputs(play: &Play) -> Vec<Column> {
    let state: &State = &play.state;
    let mut inputs = vec![play.start_input(), Input::Wake];
    let ticket = Ticket(1);
    let mut commands: Vec<LoopCommand> = URGENCIES.map(LoopCommand::Pause).into();
    commands.push(LoopCommand::Resume);
    commands.extend(URGENCIES.map(LoopCommand::Stop));
    commands.extend([LoopCommand::ForceReboot, LoopCommand::SkipIteration]);
    inputs.extend(
        commands
            .into_iter()
            .map(|command| Input::Command { ticket, command }),
    );
    inputs.extend(URGENCIES.map(|urgency| Input::Shutdown {
        signal: 15,
        urgency,
    }));
    let generation = state.generation;
    inputs.extend(
        news()
            .into_iter()
            .map(|news| Input::Agent { generation, news }),
    );
    inputs.push(Input::Agent {
        generation: Generation(99),
        news: exited(Exit::Code(0), true),
    });
    for point in [HookPoint::BeforeReboot, HookPoint::AfterReboot] {
        for error in [None, Some("no".to_owned())] {
            let results = vec![HookResult {
                name: "hook.sh".to_owned(),
                duration_ms: 1,
                error,
                ..HookResult::default()
            }];
            inputs.push(Input::HooksRan { point, results });
        }
    }
    let number = state.kept.number;
    let one = Kept {
        changed: 1,
        uncommitted: 1,
        ..Kept::default()
    };
    for kept in [Ok(one), Err("no".to_owned())] {
        inputs.push(Input::Kept { number, kept });
    }
    inputs.push(Input::Kept {
        number: 99,
        kept: Ok(Kept::default()),
    });
    inputs.push(Input::Snapshot {
        iteration: 1,
        commit: "5".to_owned(),
        uncommitted: 0,
    });
    inputs.push(Input::Decline { signal: 15 });
    inputs.push(Input::Broken {
        reason: "a task panicked".to_owned(),
    });
    inputs.push(Input::StoodStill {
        duration: Duration::from_secs(3600),
    });
    inputs.push(Input::Set {
        ticket,
        key: "k".to_owned(),
        value: serde_json::json!(1),
    });
    inputs.push(Input::Note {
        ticket,
        text: "n".to_owned(),
    });
    inputs.push(Input::Trouble {
        warning: "disk".to_owned(),
    });
    inputs.push(Input::DiskWasFull {
        duration: Duration::from_secs(60),
    });
    inputs.push(Input::Repaired {
        what: Repair::Journal,
        how: "restored".to_owned(),
    });
    let mut columns: Vec<Column> = inputs.into_iter().map(Column::At).collect();
    columns.insert(2, Column::Late);
    columns
}

fn news() -> Vec<News> {
    let measured = |tokens| News::Measured {
        context: Context {
            tokens,
            window: 100,
            estimated: false,
        },
        answering: false,
    };
    let looked = |cpu_ms| News::Looked {
        activity: Some(Activity {
            over_ms: 1_000,
            cpu_ms,
            ..Activity::default()
        }),
    };
    let resulted = |success| {
        News::Resulted(TurnEnd {
            success,
            text: "words".to_owned(),
            ..TurnEnd::default()
        })
    };
    vec![
        News::Launched { pid: 78 },
        News::NotLaunched {
            reason: "gone".to_owned(),
        },
        News::Opened,
        News::Named {
            agent_id: "c".to_owned(),
        },
        News::Output,
        measured(10),
        measured(75),
        measured(90),
        measured(99),
        News::ToolStarted {
            id: "u".to_owned(),
            name: "Read".to_owned(),
            summary: "a.rs".to_owned(),
        },
        News::ToolEnded {
            id: "t".to_owned(),
            error: None,
        },
        News::Denied {
            tool: "Bash".to_owned(),
        },
        News::Touched {
            path: "a.rs".to_owned(),
        },
        News::CallEnded { tokens: 2_000 },
        News::Cost {
            conversation_microusd: 5,
        },
        News::Quota(QuotaWindow {
            window: "five_hour".to_owned(),
            percent: 90.0,
            resets_at: None,
        }),
        resulted(true),
        resulted(false),
        News::Resulted(TurnEnd {
            problem: Some(Problem::Limited { until: None }),
            ..TurnEnd::default()
        }),
        looked(1_000),
        looked(0),
        News::Looked { activity: None },
        News::StreamEnded,
        exited(Exit::Code(0), false),
        exited(Exit::Code(0), true),
        exited(Exit::Code(1), false),
        News::GuardLost,
    ]
}

/// Names an input; a new kind does not compile until it has a name here, and then belongs into [`inputs`].
pub fn name(column: &Column) -> String {
    let input = match column {
        Column::Late => return "wake at deadline".to_owned(),
        Column::At(input) => input,
    };
    match input {
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
            format!("{point} {}", if failed { "failed" } else { "ran" })
        }
        Input::Kept { number: 99, .. } => "other kept".to_owned(),
        Input::Kept { kept: Ok(_), .. } => "kept".to_owned(),
        Input::Kept { kept: Err(_), .. } => "not kept".to_owned(),
        Input::Snapshot { .. } => "snapshot".to_owned(),
        Input::Note { .. } => "note".to_owned(),
        Input::Decline { .. } => "decline".to_owned(),
        Input::Broken { .. } => "broken".to_owned(),
        Input::StoodStill { .. } => "stood still".to_owned(),
        Input::Set { .. } => "set".to_owned(),
        Input::Trouble { .. } => "trouble".to_owned(),
        Input::DiskWasFull { .. } => "disk was full".to_owned(),
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
