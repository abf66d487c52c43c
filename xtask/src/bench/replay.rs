//! Measures the time to replay a long loop with other settings.

use std::process::Stdio;
use std::time::Instant;

use super::Bench;
use super::driven::Driven;
use super::record::quiet_run;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::Ground;

const ITERATIONS: u32 = 10_000;

const ROUNDS: usize = 15;

const GOAL_MS: f64 = 1000.0;

/// Settings with which each decision differs: every iteration waits and has its own session.
const OTHERWISE: [&str; 5] = [
    "replay",
    "--set",
    "iteration_delay=7s",
    "--set",
    "session.fresh_each_iteration=true",
];

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    quiet_run(&ground, 1)?;
    let mut driven = Driven::take_up(ground.path())?;
    for _ in 0..ITERATIONS {
        driven.converse(&mut |journal, step| journal.append(&step.records))?;
    }
    drop(driven);
    let (mut other, mut same) = (Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        for (sample, words) in [(&mut other, &OTHERWISE[..]), (&mut same, &["replay"][..])] {
            let started = Instant::now();
            let printed = ground.tachikoma(words).stdout(Stdio::piped()).output();
            let printed = printed.map_err(|error| error.to_string())?;
            sample.add(started.elapsed().as_secs_f64() * 1e3);
            let text = String::from_utf8_lossy(&printed.stdout);
            if !printed.status.success() || !text.contains("replayed") {
                return Err(format!("`tachikoma {}` says: {text}", words.join(" ")));
            }
        }
    }
    let row = |name: &str, sample: &Sample| {
        let figure = format!("replay, {ITERATIONS} iterations, {name}");
        let row = Row::goal(figure, sample.median(), Unit::Milliseconds, GOAL_MS);
        row.detail(format!(
            "least {:.1} ms, most {:.1} ms",
            sample.min(),
            sample.max()
        ))
    };
    Ok(vec![row("other rules", &other), row("its own", &same)])
}
