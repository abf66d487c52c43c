//! Every phase against every input, as one printed grid: the transition table of a loop.
//!
//! A cell is the phase that follows and what is wished for; `=` stays in the phase, `=*` stays in it and records
//! something, `.` does nothing at all.

use std::fmt::Write as _;
use std::time::Duration;

use tachikoma_core::policy::busy::is_busy;
use tachikoma_core::policy::{AgentTraits, KeepRules, RebootRules};
use tachikoma_core::{
    Activity, Context, Exit, Generation, HookPoint, HookResult, Input, Kept, LoopCommand, News,
    Policy, Problem, Repair, State, Ticket, TurnEnd, Urgency, step,
};

use crate::play::{Play, exited};
use crate::words;

const URGENCIES: [Urgency; 3] = [Urgency::Graceful, Urgency::Now, Urgency::Kill];

#[test]
fn every_phase_answers_every_input_as_the_grid_says() {
    let rows = phases();
    let mut text = String::new();
    for rows in rows.chunks(4) {
        let _ = write!(text, "{:<22}", "");
        for (name, _) in rows {
            let _ = write!(text, "{name:<27}");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        for column in 0..inputs(&rows[0].1).len() {
            let _ = write!(text, "{:<22}", name(&inputs(&rows[0].1)[column]));
            for (_, play) in rows {
                let _ = write!(text, "{:<27}", cell(play, inputs(play)[column].clone()));
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text.push('\n');
    }
    insta::assert_snapshot!("grid", text);
}

#[derive(Clone, PartialEq)]
enum Column {
    /// An input at the present moment.
    At(Input),
    /// A wake at the next deadline, or after a while where there is none.
    Late,
}

fn cell(play: &Play, column: Column) -> String {
    let mut state = play.state.clone();
    let (now, input) = match column {
        Column::At(input) => (state.time, input),
        Column::Late => {
            let hour = state.time.after(Duration::from_secs(3600));
            let deadline = state.next_deadline(&play.policy);
            (deadline.unwrap_or(hour), Input::Wake)
        }
    };
    let before = words::phase(&state.phase);
    let step = step(&play.policy, &mut state, now, input);
    if step.records.is_empty() && step.effects.is_empty() {
        return ".".to_owned();
    }
    let after = words::phase(&state.phase);
    let mut cell = match (after == before, step.records.is_empty()) {
        (true, true) => "=".to_owned(),
        (true, false) => "=*".to_owned(),
        (false, _) => after.to_owned(),
    };
    for effect in &step.effects {
        let _ = write!(cell, " {}", words::effect(effect));
    }
    cell
}

fn phases() -> Vec<(&'static str, Play)> {
    let policy = Policy {
        agent: AgentTraits {
            event_stream: true,
            ..AgentTraits::default()
        },
        ..Policy::default()
    };
    let play = |script: &dyn Fn(&mut Play)| {
        let mut play = Play::new(policy.clone());
        script(&mut play);
        play
    };
    let up = |script: &dyn Fn(&mut Play)| {
        let mut play = Play::up(policy.clone());
        script(&mut play);
        play
    };
    let mut limit = Play::up(Policy {
        max_iterations: 1,
        ..policy.clone()
    });
    limit.resulted(true).exited(0);
    let rows = vec![
        ("idle", play(&|_| ())),
        ("launching", play(&|p| _ = p.start())),
        ("ending-launch", play(&|p| _ = p.start().stop(Urgency::Now))),
        ("working", up(&|p| _ = p.output())),
        ("tool", up(&|p| _ = p.tool("t"))),
        ("looking", up(&|p| _ = p.output().sleep())),
        ("resulted", up(&|p| _ = p.resulted(true))),
        ("boundary", up(&|p| _ = p.tool("t").stop(Urgency::Graceful))),
        ("interrupt", up(&|p| _ = p.stop(Urgency::Now))),
        ("terminate", up(&|p| _ = p.stop(Urgency::Now).sleep())),
        ("kill", up(&|p| _ = p.stop(Urgency::Kill))),
        ("delay", up(&|p| _ = p.resulted(true).exited(0))),
        ("backoff", up(&|p| _ = p.exited(1))),
        ("paused", up(&|p| _ = p.exited(1).pause(Urgency::Graceful))),
        ("ended:done", up(&|p| _ = p.resulted(true).claimed())),
        ("ended:limit", limit),
        (
            "ended:operator",
            up(&|p| _ = p.exited(1).stop(Urgency::Graceful)),
        ),
        (
            "ended:signal",
            up(&|p| _ = p.exited(1).shutdown(15, Urgency::Now)),
        ),
        ("ended:error", up(&|p| _ = p.stop(Urgency::Kill).sleep())),
    ];
    for (name, play) in &rows {
        assert_eq!(words::phase(&play.state.phase), *name, "the row is named");
    }
    let mut rows = rows;
    rows.extend(with_a_session());
    rows.extend(with_a_repository());
    rows
}

/// Phases of an agent whose process outlives its turns.
fn with_a_session() -> Vec<(&'static str, Play)> {
    let seconds = Duration::from_secs;
    let policy = Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            refuses_before: None,
        },
        reboot: RebootRules {
            hooks_before: Some(seconds(30)),
            hooks_after: Some(seconds(30)),
            ..RebootRules::default()
        },
        ..Policy::default()
    };
    let up = |script: &dyn Fn(&mut Play)| {
        let mut play = Play::up(policy.clone());
        script(&mut play);
        play
    };
    let asked = |p: &mut Play| _ = p.named("c1").resulted(true).reboot();
    let before = |p: &mut Play| {
        asked(p);
        p.said("go on with b");
    };
    let closing = |p: &mut Play| {
        before(p);
        p.hooks(HookPoint::BeforeReboot, None);
    };
    let opening = |p: &mut Play| {
        closing(p);
        p.exited(0);
    };
    let rows = vec![
        ("turn", up(&|p| _ = p.output())),
        ("between turns", up(&|p| _ = p.resulted(true))),
        ("turn: interrupt", up(&|p| _ = p.stop(Urgency::Now))),
        ("reboot:hand-off", up(&asked)),
        ("reboot:before", up(&before)),
        ("reboot:closing", up(&closing)),
        ("reboot:opening", up(&opening)),
        (
            "reboot:after",
            up(&|p| {
                opening(p);
                p.opened();
            }),
        ),
        (
            "window",
            up(&|p| {
                opening(p);
                p.opened().hooks(HookPoint::AfterReboot, None).sleep();
                p.measured(10).measured(990).resulted(false);
            }),
        ),
    ];
    for (name, play) in &rows {
        let phase = words::phase(&play.state.phase);
        assert!(
            phase == *name || name.contains("turn"),
            "{name} is named {phase}"
        );
    }
    rows
}

/// Phases in which work is kept.
fn with_a_repository() -> Vec<(&'static str, Play)> {
    let policy = Policy {
        keep: Some(KeepRules {
            commit: true,
            on_failure: false,
            timeout: Duration::from_secs(300),
        }),
        ..Policy::default()
    };
    let up = |script: &dyn Fn(&mut Play)| {
        let mut play = Play::up(policy.clone());
        script(&mut play);
        play
    };
    let rows = vec![
        ("keeping", up(&|p| _ = p.exited(0))),
        (
            "keeping the end",
            up(&|p| _ = p.exited(1).kept(2, 0).stop(Urgency::Graceful)),
        ),
        (
            "reboot:keeping",
            up(&|p| _ = p.exited(0).kept(1, 1).reboot()),
        ),
        (
            "keeping, called off",
            up(&|p| _ = p.exited(0).stop(Urgency::Now)),
        ),
    ];
    for (name, play) in &rows {
        let phase = words::phase(&play.state.phase);
        assert!(name.starts_with(phase), "{name} is named {phase}");
    }
    rows
}

fn inputs(play: &Play) -> Vec<Column> {
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
        tell: false,
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
fn name(column: &Column) -> String {
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
