//! Measures the time from the tool result after a redline reading until the agent gets the interrupt.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tachikoma_testkit::fake_agent::{SCENARIO_VAR, STAMPS_VAR, STATE_VAR};
use tachikoma_testkit::{Scenario, Turn, Usage};

use super::Bench;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::cargo;
use crate::check::succeeds;
use crate::product::{Ground, Live, text};

const ROUNDS: usize = 40;

const GOAL_MS: f64 = 20.0;

const PATIENCE: Duration = Duration::from_secs(20);

/// The exit code of a loop that reached its limit.
const LIMIT_REACHED: i32 = 3;

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let agent = fake_agent(bench)?;
    let mut sample = Sample::default();
    for _ in 0..ROUNDS {
        sample.add(one(bench, &agent)?);
    }
    let row = Row::goal(
        "tool result to interrupt at the redline",
        sample.median(),
        Unit::Milliseconds,
        GOAL_MS,
    );
    Ok(vec![row.detail(format!(
        "least {:.2} ms, most {:.2} ms of {ROUNDS}",
        sample.min(),
        sample.max()
    ))])
}

/// Builds the fake agent with the same profile as the product, and returns its path.
pub(super) fn fake_agent(bench: &Bench) -> Result<PathBuf, String> {
    let mut build = cargo(&bench.root);
    build.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "tachikoma-testkit",
    ]);
    succeeds(build.args(["--bin", "fake-agent"]))?;
    let beside = bench.product.parent().ok_or("the binary lies nowhere")?;
    Ok(beside.join("fake-agent"))
}

/// Runs one loop with a tool call above the redline. Returns the milliseconds until the interrupt.
fn one(bench: &Bench, agent: &Path) -> Result<f64, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    let full = Usage::cached(171_000);
    let never = Turn {
        delay_ms: 60_000,
        ..Turn::text("too late")
    };
    let scenario = Scenario::of([Turn::bash("true").using(full), never]);
    let scenario = serde_json::to_string(&scenario).map_err(|error| error.to_string())?;
    let at = |name: &str| ground.path().join(name);
    fs::write(at("scenario.json"), scenario).map_err(text)?;
    let mut run = ground.tachikoma(&["run", "--agent", "claude", "--max-iterations", "1"]);
    run.env("TACHIKOMA_SESSION__CLAUDE_COMMAND", agent)
        .env(SCENARIO_VAR, at("scenario.json"))
        .env(STATE_VAR, at("agent"))
        .env(STAMPS_VAR, at("stamps"));
    match Live::start(&mut run)?.wait(PATIENCE)? {
        Some(LIMIT_REACHED) => {}
        other => return Err(format!("the loop ended with {other:?}")),
    }
    let stamps = fs::read_to_string(at("stamps")).map_err(text)?;
    between(&stamps)
        .ok_or_else(|| format!("the agent's stamps are not as they should be: {stamps}"))
}

/// Returns the milliseconds from the tool result to the interrupt.
fn between(stamps: &str) -> Option<f64> {
    let nanos = |what: &str| -> Option<u128> {
        let mut lines = stamps.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(word, _)| *word == what)?.1.parse().ok()
    };
    let passed = nanos("interrupt")?.checked_sub(nanos("tool_result")?)?;
    Some(Duration::from_nanos(u64::try_from(passed).ok()?).as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_subtracted() {
        assert_eq!(
            between("tool_result 1000000\ninterrupt 3500000\n"),
            Some(2.5)
        );
        assert_eq!(between("interrupt 3500000\n"), None);
    }
}
