//! Measures the time from the stop command until the agent is interrupted.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Bench;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::{Ground, Live, await_that, text};

const ROUNDS: usize = 20;

const GOAL_MS: f64 = 100.0;

const PATIENCE: Duration = Duration::from_secs(20);

/// Script of the agent. Bash knows the time without starting a program.
const AGENT: &str = "trap 'echo $EPOCHREALTIME > stamp; exit 0' INT; : > works; sleep 1000 & wait";

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let mut sample = Sample::default();
    for _ in 0..ROUNDS {
        let ground = Ground::new(&bench.product, &bench.disk)?;
        let words = ["run", "--", "bash", "-c", AGENT];
        let runner = Live::start(&mut ground.tachikoma(&words))?;
        await_that("the agent", PATIENCE, || ground.has("works"))?;
        let before = SystemTime::now().duration_since(UNIX_EPOCH);
        let told = ground.tachikoma(&["stop"]).status().map_err(text)?;
        if !told.success() {
            return Err(format!("`tachikoma stop` ended with {told}"));
        }
        runner.wait(PATIENCE)?;
        let stamp = fs::read_to_string(ground.path().join("stamp"))
            .map_err(|error| format!("the agent was not interrupted: {error}"))?;
        let stamp: f64 = stamp
            .trim()
            .parse()
            .map_err(|_| "the agent's stamp is not a time")?;
        let before = before.map_err(|error| error.to_string())?.as_secs_f64();
        sample.add((stamp - before) * 1e3);
    }
    let row = Row::goal(
        "stop command to interrupt",
        sample.median(),
        Unit::Milliseconds,
        GOAL_MS,
    );
    Ok(vec![row.detail(format!(
        "least {:.2} ms, most {:.2} ms",
        sample.min(),
        sample.max()
    ))])
}
