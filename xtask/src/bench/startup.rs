//! Measures the duration of short commands, compared to a program that does nothing.

use std::path::Path;
use std::time::Duration;

use super::Bench;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::{Ground, Live, await_that};

/// Number of rounds. In each round, all commands are measured in turn.
const ROUNDS: usize = 80;

/// Number of iterations of the ended loop that the commands read.
const ITERATIONS: &str = "200";

const STATUS_MS: f64 = 15.0;
const VERSION_MS: f64 = 5.0;

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let ended = Ground::new(&bench.product, &bench.disk)?;
    let words = ["run", "--quiet", "--delay", "0s", "--max-iterations"];
    let mut command = ended.tachikoma(&words);
    let run = command.args([ITERATIONS, "--", "sh", "-c", "true"]);
    Sample::default().time(run, &[3])?;

    let live = Ground::new(&bench.product, &bench.disk)?;
    let words = ["run", "--", "sh", "-c", ": > works; exec sleep 1000"];
    let runner = Live::start(&mut live.tachikoma(&words))?;
    await_that("the agent", Duration::from_secs(20), || live.has("works"))?;

    let mut nothing = Sample::default();
    let (mut of_ended, mut of_live, mut version) = Default::default();
    for _ in 0..ROUNDS {
        nothing.time(&mut ended.quietly(Path::new("/bin/true"), &[]), &[0])?;
        Sample::time(&mut of_ended, &mut ended.tachikoma(&["status"]), &[0])?;
        Sample::time(&mut of_live, &mut live.tachikoma(&["status"]), &[0])?;
        Sample::time(&mut version, &mut ended.tachikoma(&["--version"]), &[0])?;
    }
    live.stop(runner)?;
    let over = |figure: &str, sample: &Sample, goal| {
        let row = Row::goal(
            figure,
            sample.median() - nothing.median(),
            Unit::Milliseconds,
            goal,
        );
        row.detail(format!(
            "over /bin/true's {:.2} ms; least {:.2} ms",
            nothing.median(),
            sample.min() - nothing.min()
        ))
    };
    Ok(vec![
        over(
            &format!("status, {ITERATIONS} iterations, ended"),
            &of_ended,
            STATUS_MS,
        ),
        over("status, live runner", &of_live, STATUS_MS),
        over("--version", &version, VERSION_MS),
    ])
}
