//! Runs a loop of the real binary with the real agent, and checks its records.

use std::process::Command;

use serde_json::Value;
use tachikoma_testkit::{Ended, ScriptedModel, Talk, await_until};

use super::ground::{Ground, MODEL, expect_sent, usages};
use super::opencode_environment::surround;

/// Exit code of a loop that reached its limit.
pub const LIMIT_REACHED: i32 = 3;

/// The prompt of each iteration.
pub const PROMPT: &str = "do the next thing";

/// Variables that tachikoma itself sets for agents. They must not be set when it starts.
const OWN_VARIABLES: [&str; 3] = [
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
    "DISABLE_AUTOUPDATER",
    "IS_SANDBOX",
];

/// Settings as environment variables. If a name is repeated, the last value is used.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

/// Usual settings: no pauses between reboots and between iterations.
const USUAL: [(&str, &str); 5] = [
    ("ITERATION_DELAY", "0s"),
    ("AGENTS__CLAUDE__MODEL", MODEL),
    ("AGENTS__CLAUDE__PERMISSION", "bypass"),
    ("REBOOT__MIN_REBOOT_INTERVAL", "0s"),
    ("REBOOT__MAX_REBOOTS_PER_HOUR", "0"),
];

/// A running loop.
pub struct Looping<'a> {
    ground: &'a Ground,
    model: &'a ScriptedModel,
    talk: Talk,
    settings: Settings<'a>,
}

impl<'a> Looping<'a> {
    /// Starts a loop with this many iterations.
    pub fn start(
        ground: &'a Ground,
        model: &'a ScriptedModel,
        settings: Settings<'a>,
        iterations: u32,
    ) -> Self {
        Self::with("claude", ground, model, settings, iterations)
    }

    /// Starts a loop with another agent.
    pub fn with(
        agent: &'static str,
        ground: &'a Ground,
        model: &'a ScriptedModel,
        settings: Settings<'a>,
        iterations: u32,
    ) -> Self {
        ground.scratch.write("prompt.md", format!("{PROMPT}\n"));
        let iterations = iterations.to_string();
        let words = ["run", "--json", "--agent", agent, "--max-iterations"];
        let words = [&words[..], &[&iterations]].concat();
        let mut command = tachikoma(ground, model, settings, &words);
        let talk = Talk::start(&mut command, &ground.scratch);
        Self {
            ground,
            model,
            talk,
            settings,
        }
    }

    /// Resumes the loop of a killed runner.
    pub fn take_up(&self) -> Self {
        self.go_on(&[])
    }

    /// Resumes the loop with more arguments.
    pub fn go_on(&self, more: &[&str]) -> Self {
        let words = [&["run", "--json"][..], more].concat();
        let mut command = tachikoma(self.ground, self.model, self.settings, &words);
        Self {
            talk: Talk::start(&mut command, &self.ground.scratch),
            ..*self
        }
    }

    /// Sends a command, which must be accepted.
    pub fn tell(&self, words: &[&str]) {
        let said = tachikoma(self.ground, self.model, &[], words).output();
        let said = said.expect("tachikoma starts");
        let complaint = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{words:?}: {complaint}");
    }

    pub fn talk(&mut self) -> &mut Talk {
        &mut self.talk
    }

    /// Returns the records of the loop so far.
    pub fn events(&self) -> Vec<Value> {
        events(&self.talk.lines())
    }

    /// Waits for this many events of a type.
    pub fn await_events(&self, kind: &str, count: usize) {
        let what = format!("{count} x {kind}");
        await_until(&what, self.ground.patience, || {
            of_type(&self.events(), kind).len() >= count
        });
    }

    /// Waits for the end of the loop, compares its readings with the model's answers, and returns its records.
    #[track_caller]
    pub fn end(self, code: i32) -> Vec<Value> {
        let (ground, model) = (self.ground, self.model);
        let events = self.ended(code);
        expect_readings(&all_events(ground, model), model);
        events
    }

    /// Waits for the end of the loop and returns its records, without checking readings.
    #[track_caller]
    pub fn ended(self, code: i32) -> Vec<Value> {
        let Ended {
            code: ended,
            lines,
            errors,
            ..
        } = self.talk.end(self.ground.patience);
        let events = events(&lines);
        assert_eq!(
            ended,
            Some(code),
            "its exit code; {errors}\n{}",
            event_names(&events)
        );
        events
    }
}

/// Returns the binary in the agent's environment, with settings.
fn tachikoma(
    ground: &Ground,
    model: &ScriptedModel,
    settings: Settings<'_>,
    words: &[&str],
) -> Command {
    let mut command = ground.tachikoma(model, words);
    for name in OWN_VARIABLES {
        command.env_remove(name);
    }
    let (claude, set) = (ground.claude_path(), USUAL.iter().chain(settings));
    command.env("TACHIKOMA_SESSION__CLAUDE_COMMAND", claude);
    surround(&mut command, ground, model);
    command.envs(set.map(|(name, value)| (format!("TACHIKOMA_{name}"), value)));
    command
}

/// Returns the events of the whole loop, with those of earlier runners.
pub fn all_events(ground: &Ground, model: &ScriptedModel) -> Vec<Value> {
    let said = tachikoma(ground, model, &[], &["events", "--json"]).output();
    let said = said.expect("tachikoma starts").stdout;
    let lines = String::from_utf8(said).expect("it writes text");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record"))
        .collect();
    events(&lines)
}

fn events(records: &[Value]) -> Vec<Value> {
    let event = |record: &Value| record["event"].clone();
    records.iter().map(event).collect()
}

/// Returns the events of one type.
pub fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events
        .iter()
        .filter(|event| event["type"] == kind)
        .collect()
}

/// Returns the only event of a type.
#[track_caller]
pub fn only<'a>(events: &'a [Value], kind: &str) -> &'a Value {
    let found = of_type(events, kind);
    assert_eq!(found.len(), 1, "{kind} in {}", event_names(events));
    found[0]
}

/// Returns the types of the events in order, for failure messages.
pub fn event_names(events: &[Value]) -> String {
    let word = |event: &Value| match event["type"].as_str().unwrap_or("?") {
        "warned" => format!("warned({})", event["warning"]),
        "iteration_failed" => format!("iteration_failed({})", event["failure"]),
        kind => kind.to_owned(),
    };
    events.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the outcomes of the iterations in order.
pub fn outcomes(events: &[Value]) -> Vec<String> {
    let outcome = |event: &Value| match event["type"].as_str() {
        Some("iteration_completed") => event["report"]["outcome"].as_str().map(str::to_owned),
        Some("iteration_failed") => Some("failed".to_owned()),
        _ => None,
    };
    events.iter().filter_map(outcome).collect()
}

/// Returns iteration and attempt number of all attempts in order.
pub fn attempts(events: &[Value]) -> Vec<(u64, u64)> {
    let number = |event: &Value, name: &str| event[name].as_u64().unwrap_or_default();
    of_type(events, "iteration_started")
        .into_iter()
        .map(|event| (number(event, "iteration"), number(event, "attempt")))
        .collect()
}

/// Returns the ids that the agent gave to its conversations, in order.
pub fn names(events: &[Value]) -> Vec<&str> {
    let named = of_type(events, "session_named").into_iter();
    named
        .filter_map(|event| event["agent_id"].as_str())
        .collect()
}

/// Returns the process ids of the launched agents, in the order of the launches.
pub fn pids(events: &[Value]) -> Vec<u64> {
    let launched = of_type(events, "agent_launched").into_iter();
    launched.filter_map(|event| event["pid"].as_u64()).collect()
}

/// Checks that every reading is the start or the end of an answer of the model, in order, and that all answers except interrupted
/// ones were read to their end.
#[track_caller]
pub fn expect_readings(events: &[Value], model: &ScriptedModel) {
    let readings: Vec<u64> = of_type(events, "context_measured")
        .iter()
        .filter_map(|event| event["context"]["tokens"].as_u64())
        .collect();
    let sent = usages(model);
    let whole = expect_sent(&readings, &sent);
    let is_cut = |event: &&Value| {
        let kind = event["type"].as_str();
        matches!(
            kind,
            Some("rung_climbed" | "iteration_failed" | "attempt_cut")
        )
    };
    let cuts = events.iter().filter(is_cut).count();
    assert!(
        whole + cuts >= sent.len() && whole > 0,
        "{whole} of {} answers were read to their end, and {cuts} were cut: {}",
        sent.len(),
        event_names(events)
    );
}
