//! Every phase against every input, as one printed grid: the transition table of a loop.
//!
//! A cell is the phase that follows and what is wished for; `=` stays in the phase, `=*` stays in it and records
//! something, `.` does nothing at all.

mod names;

use std::fmt::Write as _;
use std::time::Duration;

use tachikoma_core::policy::completion::{CompletionRules, GateRule};
use tachikoma_core::policy::{AgentTraits, KeepRules, RebootRules};
use tachikoma_core::{
    Activity, Context, Exit, Generation, HookPoint, HookResult, Input, Kept, LoopCommand, News,
    Policy, Problem, Repair, ScriptVerdict, State, Ticket, TurnEnd, Urgency, step,
};

use crate::play::{Play, exited, gate, script};
use crate::words;

use names::name;

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
        (
            "ended:done",
            up(&|p| _ = p.tool("t").resulted(true).claimed()),
        ),
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
    rows.extend(with_gates());
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
            repository: true,
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

/// Phases in which something is found out behind an iteration.
fn with_gates() -> Vec<(&'static str, Play)> {
    let policy = Policy {
        completion: CompletionRules {
            gates: vec![GateRule {
                name: "tests".to_owned(),
                timeout: Duration::from_secs(60),
                each_iteration: true,
            }],
            asking: Some(Duration::from_secs(30)),
            ..CompletionRules::default()
        },
        ..Policy::default()
    };
    let up = |script: &dyn Fn(&mut Play)| {
        let mut play = Play::up(policy.clone());
        script(&mut play);
        play
    };
    let claim = |p: &mut Play| {
        p.claimed();
        p.scripts(ScriptVerdict::GoOn);
    };
    let rows = vec![
        ("asking", up(&|p| _ = p.exited(0))),
        ("asking, claimed", up(&|p| _ = p.claimed())),
        (
            "gates",
            up(&|p| _ = p.exited(0).scripts(ScriptVerdict::GoOn)),
        ),
        ("gates, claimed", up(&claim)),
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
    let number = state.completion.number;
    for verdict in [
        ScriptVerdict::GoOn,
        ScriptVerdict::Claim,
        ScriptVerdict::Stop,
    ] {
        let answers = script(verdict);
        inputs.push(Input::Answered { number, answers });
    }
    for error in [None, Some("exit 1")] {
        let results = vec![gate("tests", error)];
        inputs.push(Input::GatesRan {
            number,
            results,
            tests: None,
        });
    }
    inputs.push(Input::GatesRan {
        number: 99,
        results: Vec::new(),
        tests: None,
    });
    inputs.push(Input::Done {
        ticket,
        reason: None,
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
