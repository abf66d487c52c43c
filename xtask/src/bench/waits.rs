//! Measures the time from the stop command until the loop has ended a wait. Every wait has the same goal.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_core::Timestamp;
use tachikoma_testkit::fake_agent::{SCENARIO_VAR, STATE_VAR};
use tachikoma_testkit::{Scenario, Turn};

use super::Bench;
use super::git;
use super::interrupt::fake_agent;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::{Ground, Live, await_that, text};

const ROUNDS: usize = 10;

const GOAL_MS: f64 = 100.0;

const PATIENCE: Duration = Duration::from_secs(20);

/// A wait: how the loop gets there, and the text in its journal that shows it.
struct Wait {
    name: &'static str,
    config: &'static str,
    words: &'static [&'static str],
    script: &'static str,
    in_it: &'static str,
    /// Command of the operator before the wait; `None` if there is none.
    first: Option<&'static str>,
}

const NOTHING: Wait = Wait {
    name: "",
    config: "",
    words: &[],
    script: "true",
    in_it: "",
    first: None,
};

/// Flags of a loop that waits for an hour after its first iteration.
const HOUR: &[&str] = &["--delay", "1h"];

/// Script of an agent that completes its work and claims completion.
const CLAIMS: &str = "date >done; echo '<promise>COMPLETE</promise>'";

const WAITS: [Wait; 7] = [
    Wait {
        name: "a question",
        words: &["--attended"],
        in_it: "\"what\":\"asked\"",
        ..NOTHING
    },
    Wait {
        name: "a question about a reboot",
        config: "[reboot]\nmode = 'confirm'\nmin_reboot_interval = '0s'\n[reboot.triggers]\nafter_iterations = 1\n",
        words: HOUR,
        in_it: "\"confirm_reboot\"",
        ..NOTHING
    },
    Wait {
        name: "a pause",
        words: HOUR,
        in_it: "\"type\":\"paused\"",
        first: Some("pause"),
        ..NOTHING
    },
    Wait {
        name: "a delay",
        words: HOUR,
        in_it: "\"type\":\"wait_started\"",
        ..NOTHING
    },
    Wait {
        name: "a backoff",
        script: "exit 1",
        in_it: "\"backoff\"",
        ..NOTHING
    },
    Wait {
        name: "hooks",
        config: "[[hook]]\non = 'loop_start'\ncommand = 'exec sleep 1000'\ntimeout = '0s'\n",
        in_it: "\"type\":\"hooks_started\"",
        ..NOTHING
    },
    Wait {
        name: "gates",
        config: "[[gate]]\nname = 'slow'\ncommand = 'exec sleep 1000'\n",
        script: CLAIMS,
        in_it: "\"type\":\"check_started\"",
        ..NOTHING
    },
];

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for wait in &WAITS {
        let figure = format!("stop command to the end of {}", wait.name);
        rows.push(row(figure, || one(bench, wait))?);
    }
    let agent = fake_agent(bench)?;
    let figure = "stop command to the end of a usage limit".to_owned();
    rows.push(row(figure, || limited(bench, &agent))?);
    let figure = "stop command to the end of a rollback".to_owned();
    rows.push(row(figure, || rolling(bench))?);
    let figure = "Ctrl-C to the end of a wait for messages".to_owned();
    rows.push(row(figure, || drain(bench))?);
    Ok(rows)
}

fn row(figure: String, mut one: impl FnMut() -> Result<f64, String>) -> Result<Row, String> {
    let mut sample = Sample::default();
    for _ in 0..ROUNDS {
        sample.add(one().map_err(|error| format!("{figure}: {error}"))?);
    }
    let row = Row::goal(figure, sample.median(), Unit::Milliseconds, GOAL_MS);
    let (least, most) = (sample.min(), sample.max());
    Ok(row.detail(format!("least {least:.2} ms, most {most:.2} ms")))
}

/// Stops a waiting loop. Returns the milliseconds until its end.
fn one(bench: &Bench, wait: &Wait) -> Result<f64, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    ground.configure(wait.config)?;
    let mut words = vec!["run"];
    words.extend(wait.words);
    words.extend(["--", "sh", "-c", wait.script]);
    let runner = Live::start(&mut ground.tachikoma(&words))?;
    if let Some(first) = wait.first {
        await_in(&ground, "\"type\":\"wait_started\"")?;
        obey(&ground, first)?;
    }
    await_in(&ground, wait.in_it)?;
    stop(&ground, runner)
}

/// Measures the wait for the reset of a usage limit.
fn limited(bench: &Bench, agent: &Path) -> Result<f64, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    let at = |name: &str| ground.path().join(name);
    let limit = Turn::status(429, "rate_limit_error", "too many requests");
    let scenario = serde_json::to_string(&Scenario::of([limit]).for_ever());
    let scenario = scenario.map_err(|error| error.to_string())?;
    fs::write(at("scenario.json"), scenario).map_err(text)?;
    let mut run = ground.tachikoma(&["run", "--agent", "claude"]);
    run.env("TACHIKOMA_SESSION__CLAUDE_COMMAND", agent)
        .env(SCENARIO_VAR, at("scenario.json"))
        .env(STATE_VAR, at("agent"));
    let runner = Live::start(&mut run)?;
    await_in(&ground, "\"usage_limit\"")?;
    stop(&ground, runner)
}

/// Measures a stop during a rollback, with a slow filter of the repository.
fn rolling(bench: &Bench) -> Result<f64, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    let dir = ground.path();
    git::init(dir)?;
    fs::write(dir.join(".gitattributes"), "a.txt filter=slow\n").map_err(text)?;
    fs::write(dir.join("a.txt"), "1\n").map_err(text)?;
    git::commit(dir)?;
    let slow = "touch .git/smudging; exec sleep 1000";
    git::git(dir, &["config", "filter.slow.smudge", slow])?;
    let words = ["run", "--attended", "--", "sh", "-c", "echo 2 >a.txt"];
    let runner = Live::start(&mut ground.tachikoma(&words))?;
    await_in(&ground, "\"before_iteration\"")?;
    obey(&ground, "answer continue")?;
    await_in(&ground, "\"after_iteration\"")?;
    obey(&ground, "answer rollback")?;
    await_that("the filter", PATIENCE, || ground.has(".git/smudging"))?;
    stop(&ground, runner)
}

/// Measures the wait for a notification after the end of the loop. A signal ends that wait.
fn drain(bench: &Bench) -> Result<f64, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    let config = "[[notify]]\nto = 'command'\ncommand = 'exec sleep 1000'\n";
    ground.configure(config)?;
    let runner = Live::start(&mut ground.tachikoma(&["run", "--", "sh", "-c", CLAIMS]))?;
    await_in(&ground, "\"type\":\"completed\"")?;
    let pid = i32::try_from(runner.pid()).ok().and_then(Pid::from_raw);
    let before = Instant::now();
    kill_process(pid.ok_or("it has no pid")?, Signal::INT).map_err(|error| error.to_string())?;
    runner.wait(PATIENCE)?;
    Ok(before.elapsed().as_secs_f64() * 1e3)
}

/// Stops the loop. Returns the milliseconds until its end was recorded.
fn stop(ground: &Ground, runner: Live) -> Result<f64, String> {
    let before = SystemTime::now().duration_since(UNIX_EPOCH);
    let before = before.map_err(|error| error.to_string())?.as_secs_f64() * 1e3;
    obey(ground, "stop")?;
    runner.wait(PATIENCE)?;
    let journal = journal(ground);
    let end = journal
        .lines()
        .rev()
        .find(|line| line.contains("\"type\":\"stopped\""));
    let end = end.ok_or_else(|| format!("it was not stopped: {journal}"))?;
    let record: serde_json::Value = serde_json::from_str(end).map_err(|error| error.to_string())?;
    let time: Timestamp = serde_json::from_value(record["time"].clone())
        .map_err(|error| format!("its time: {error}"))?;
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit")]
    let ended = time.as_millis() as f64;
    // The record has whole milliseconds, so the difference may be slightly negative.
    Ok((ended - before).max(0.0))
}

fn obey(ground: &Ground, words: &str) -> Result<(), String> {
    let command: Vec<&str> = words.split_whitespace().collect();
    let told = ground.tachikoma(&command).status().map_err(text)?;
    match told.success() {
        true => Ok(()),
        false => Err(format!("`tachikoma {words}` ended with {told}")),
    }
}

fn await_in(ground: &Ground, words: &str) -> Result<(), String> {
    await_that(words, PATIENCE, || journal(ground).contains(words))
}

fn journal(ground: &Ground) -> String {
    let loops = fs::read_dir(ground.path().join(".ralph/loops"));
    let dirs = loops.into_iter().flatten().flatten();
    let texts = dirs.map(|dir| fs::read_to_string(dir.path().join("journal-0001.jsonl")));
    texts.flatten().collect()
}
