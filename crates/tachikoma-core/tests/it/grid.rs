//! Every phase against every input, as one printed grid: the transition table of a loop.
//!
//! A cell shows the next phase and the effects. `=`: the phase stays. `=*`: the phase stays, and something is recorded.
//! `.`: the input does nothing at all.

mod columns;
mod names;

use std::fmt::Write as _;
use std::time::Duration;

use tachikoma_core::policy::budget::Budgets;
use tachikoma_core::policy::completion::{CompletionRules, GateRule};
use tachikoma_core::policy::{AgentTraits, AutocommitRules, RebootRules};
use tachikoma_core::{
    Choice, HookPoint, Input, Policy, ScriptVerdict, Urgency, next_deadline, step,
};

use columns::{Column, inputs};
use names::name;

use crate::play::Play;
use crate::words;

/// There is no cost budget. With one, nearly every cell would have the effect that asks the agent for its cost.
const BUDGETS: Budgets = Budgets {
    cost_microusd: 0,
    tokens: 1_000,
    duration: Duration::ZERO,
    quota_percent: 80.0,
};

#[test]
fn every_phase_handles_every_input_as_in_the_grid_snapshot() {
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

fn cell(play: &Play, column: Column) -> String {
    let mut state = play.state.clone();
    let (now, input) = match column {
        Column::At(input) => (state.time, *input),
        Column::Late => {
            let hour = state.time.after(Duration::from_secs(3600));
            let deadline = next_deadline(&play.policy, &state);
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
        budgets: BUDGETS,
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
            up(&|p| _ = p.tool("t").tool_ended("t").resulted(true).claimed()),
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
        assert_eq!(
            words::phase(&play.state.phase),
            *name,
            "the row has the name of its phase"
        );
    }
    let mut rows = rows;
    rows.extend(with_a_session());
    rows.extend(with_a_repository());
    rows.extend(with_gates());
    rows.extend(with_an_operator());
    rows.extend(with_hooks());
    rows
}

/// Phases of an agent with one process for all turns.
fn with_a_session() -> Vec<(&'static str, Play)> {
    let seconds = Duration::from_secs;
    let policy = Policy {
        agent: AgentTraits {
            event_stream: true,
            persistent: true,
            steerable: true,
            tells_cost: false,
            refuses_before: None,
        },
        reboot: RebootRules {
            hooks_before: Some(seconds(30)),
            hooks_after: Some(seconds(30)),
            ..RebootRules::default()
        },
        budgets: BUDGETS,
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
                p.measured(10).measured(990).resulted(false).said("done");
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

/// Phases in which the operator is asked a question.
fn with_an_operator() -> Vec<(&'static str, Play)> {
    let autocommit = AutocommitRules {
        repository: true,
        commit: true,
        on_failure: false,
        timeout: Duration::from_secs(300),
    };
    let attended = Policy {
        attended: true,
        autocommit: Some(autocommit),
        ..Policy::default()
    };
    let confirm = Policy {
        reboot: RebootRules {
            confirm: Some(Duration::from_secs(600)),
            after_iterations: Some(1),
            ..RebootRules::default()
        },
        ..Policy::default()
    };
    let mut before = Play::new(attended.clone());
    before.start();
    let mut after = Play::new(attended);
    after.start().answer(Choice::Continue).launched();
    after.snapshot("5a", 0).exited(0).kept(2, 2);
    let mut rolling = Play::new(after.policy.clone());
    rolling.start().answer(Choice::Continue).launched();
    rolling
        .snapshot("5a", 0)
        .exited(0)
        .kept(2, 2)
        .answer(Choice::Rollback);
    let mut reboot = Play::up(confirm);
    reboot.exited(0);
    let rows = vec![
        ("before iteration", before),
        ("after iteration", after),
        ("rolling back", rolling),
        ("confirm reboot", reboot),
    ];
    for (name, play) in &rows {
        assert_eq!(words::phase(&play.state.phase), "operator", "{name}");
    }
    rows
}

/// Phases in which the loop commits the agent's changes.
fn with_a_repository() -> Vec<(&'static str, Play)> {
    let policy = Policy {
        autocommit: Some(AutocommitRules {
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

/// Phases in which the loop waits for hooks.
fn with_hooks() -> Vec<(&'static str, Play)> {
    let limit = Duration::from_secs(30);
    let policy = |points: &[HookPoint]| Policy {
        hooks: points.iter().map(|point| (*point, limit)).collect(),
        ..Policy::default()
    };
    let behind = policy(&[
        HookPoint::IterationEnd,
        HookPoint::LoopEnd,
        HookPoint::Error,
    ]);
    let mut start = Play::new(policy(&[HookPoint::LoopStart]));
    start.start();
    let mut hooks = Play::up(behind.clone());
    hooks.exited(0);
    let mut end = Play::up(behind);
    end.exited(0)
        .hooks(HookPoint::IterationEnd, None)
        .stop(Urgency::Graceful);
    let rows = vec![
        ("hooks at the start", start),
        ("hooks", hooks),
        ("hooks at the end", end),
    ];
    for (name, play) in &rows {
        assert_eq!(
            words::phase(&play.state.phase),
            *name,
            "the row has the name of its phase"
        );
    }
    rows
}

/// Phases in which gates and stop scripts run after an iteration.
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
