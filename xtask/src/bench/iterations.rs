//! The cost of an iteration, compared to a shell loop around the same program.

use std::path::Path;

use super::report::{Row, Unit};
use super::sample::Sample;
use super::{Bench, git};
use crate::product::{Ground, MEMORY};

/// Number of iterations of one loop, so many that its start does not matter.
const ITERATIONS: u32 = 200;

/// Number of loops of each kind.
const ROUNDS: usize = 9;

/// Number of iterations of a loop in a small repository. The start of the loop is part of the measurement.
const GIT_ITERATIONS: u32 = 100;

/// Number of measured first iterations of each kind.
const FIRST_ROUNDS: usize = 40;

/// Exit code of `run` when the limit is reached.
const LIMIT_REACHED: i32 = 3;

/// A directory to measure in, and the goal for it.
struct Place<'a> {
    name: &'a str,
    parent: &'a Path,
    goal: f64,
}

/// Measures many iterations of a trivial agent.
pub fn many(bench: &Bench) -> Result<Vec<Row>, String> {
    let limit = ITERATIONS.to_string();
    let shell = format!("for ((i=0;i<{ITERATIONS};i++)); do cat prompt.md | sh -c true; done");
    let per_iteration = |sample: &Sample| sample.median() / f64::from(ITERATIONS);
    let mut rows = Vec::new();
    for place in places(bench, [2.0, 1.3]) {
        let (mut bash, mut quiet, mut json) = Default::default();
        for _ in 0..ROUNDS {
            let run = |sample: &mut Sample, style: &str| {
                let ground = Ground::new(&bench.product, place.parent)?;
                let words = ["run", style, "--delay", "0s", "--max-iterations", &limit];
                let mut command = ground.tachikoma(&words);
                sample.time(command.args(["--", "sh", "-c", "true"]), &[LIMIT_REACHED])
            };
            let ground = Ground::new(&bench.product, place.parent)?;
            let mut command = ground.quietly(Path::new("bash"), &["-c", &shell]);
            Sample::time(&mut bash, &mut command, &[0])?;
            run(&mut quiet, "--quiet")?;
            run(&mut json, "--json")?;
        }
        let name = place.name;
        let against = per_iteration(&bash);
        rows.push(
            compared(&format!("iteration, {name}"), &quiet, &bash, place.goal).detail(format!(
                "{:.2} ms to bash's {against:.2} ms; least {:.2}x",
                per_iteration(&quiet),
                quiet.min() / bash.min()
            )),
        );
        let row = Row::info(
            format!("iteration, {name}, --json"),
            json.median() / bash.median(),
            Unit::Times,
        );
        rows.push(row.detail(format!("{:.2} ms", per_iteration(&json))));
    }
    for place in places(bench, [1.5, 1.5]) {
        rows.push(in_git(bench, &place)?);
    }
    Ok(rows)
}

/// Measures many iterations of a trivial agent in a small git repository without commits, including the start.
fn in_git(bench: &Bench, place: &Place<'_>) -> Result<Row, String> {
    let limit = GIT_ITERATIONS.to_string();
    let shell = format!("for ((i=0;i<{GIT_ITERATIONS};i++)); do cat prompt.md | sh -c true; done");
    let (mut bash, mut run) = (Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        let ground = Ground::new(&bench.product, place.parent)?;
        git::init(ground.path())?;
        git::commit(ground.path())?;
        bash.time(
            &mut ground.quietly(Path::new("bash"), &["-c", &shell]),
            &[0],
        )?;
        let words = ["run", "--quiet", "--no-auto-commit", "--delay", "0s"];
        let mut command = ground.tachikoma(&words);
        let rest = ["--max-iterations", &limit, "--", "sh", "-c", "true"];
        run.time(command.args(rest), &[LIMIT_REACHED])?;
    }
    let figure = format!("iteration in a git repository, {}", place.name);
    Ok(compared(&figure, &run, &bash, place.goal).detail(format!(
        "{:.2} ms to bash's {:.2} ms; least {:.2}x",
        run.median() / f64::from(GIT_ITERATIONS),
        bash.median() / f64::from(GIT_ITERATIONS),
        run.min() / bash.min()
    )))
}

/// Measures the first iteration including the start, each in a new directory.
pub fn first(bench: &Bench) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for place in places(bench, [2.0, 2.0]) {
        let (mut bash, mut run) = (Sample::default(), Sample::default());
        for _ in 0..FIRST_ROUNDS {
            let ground = Ground::new(&bench.product, place.parent)?;
            let pipe = ["-c", "cat prompt.md | sh -c true"];
            bash.time(&mut ground.quietly(Path::new("bash"), &pipe), &[0])?;
            let words = ["run", "--quiet", "--max-iterations", "1", "--"];
            let mut command = ground.tachikoma(&words);
            run.time(command.args(["sh", "-c", "true"]), &[LIMIT_REACHED])?;
        }
        let name = place.name;
        rows.push(
            compared(&format!("first iteration, {name}"), &run, &bash, place.goal).detail(format!(
                "{:.2} ms to bash's {:.2} ms; least {:.2}x",
                run.median(),
                bash.median(),
                run.min() / bash.min()
            )),
        );
    }
    Ok(rows)
}

fn places(bench: &Bench, [disk, memory]: [f64; 2]) -> [Place<'_>; 2] {
    [
        Place {
            name: "disk",
            parent: &bench.disk,
            goal: disk,
        },
        Place {
            name: "tmpfs",
            parent: Path::new(MEMORY),
            goal: memory,
        },
    ]
}

fn compared(figure: &str, ours: &Sample, theirs: &Sample, goal: f64) -> Row {
    Row::goal(figure, ours.median() / theirs.median(), Unit::Times, goal)
}
