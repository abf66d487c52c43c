//! Measures the time until a long loop continues after its runner was killed.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tachikoma_loop_runner::store::encryption::Encryption;

use tachikoma_loop_runner::chain;
use tachikoma_loop_runner::store::snapshot::{Durability, Packing, Snapshot};
use tachikoma_loop_runner::store::{compressed, lock};

use super::Bench;
use super::driven::Driven;
use super::record::quiet_run;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::{Ground, Live, await_that, text};

const ITERATIONS: u32 = 100_000;

/// Size in bytes to which the last segment is filled. It is almost the maximum of 16 MiB.
const LAST_SEGMENT_BYTES: u64 = (16 << 20) - (256 << 10);

/// Number of iterations between two checks of the size of the last segment.
const LOOK_EVERY: u32 = 200;

const ROUNDS: usize = 15;

const WITH_SNAPSHOT_MS: f64 = 150.0;
const WITHOUT_MS: f64 = 2000.0;

const PATIENCE: Duration = Duration::from_secs(60);

const SNAPSHOT: &str = ".ralph/state.json";

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    quiet_run(&ground, 1)?;
    let behind = prepare(&ground)?;
    // The runner of this first run is killed, like all following ones.
    resume(&ground)?;
    let (mut with, mut without) = (Sample::default(), Sample::default());
    let snapshot = ground.path().join(SNAPSHOT);
    let kept = fs::read(&snapshot).map_err(text)?;
    for _ in 0..ROUNDS {
        fs::write(&snapshot, &kept).map_err(text)?;
        with.add(resume(&ground)?);
        fs::remove_file(&snapshot).map_err(text)?;
        without.add(resume(&ground)?);
    }
    let row = |name: &str, sample: &Sample, goal| {
        let figure = format!("resume, {name}");
        let row = Row::goal(figure, sample.median(), Unit::Milliseconds, goal);
        row.detail(format!(
            "{behind}; least {:.1} ms, most {:.1} ms",
            sample.min(),
            sample.max()
        ))
    };
    Ok(vec![
        row("snapshot", &with, WITH_SNAPSHOT_MS),
        row("no snapshot", &without, WITHOUT_MS),
    ])
}

/// Adds iterations to a loop, writes a snapshot at the end of the last one, and compresses closed segments.
fn prepare(ground: &Ground) -> Result<String, String> {
    let mut driven = Driven::take_up(ground.path())?;
    let mut iterations = 0;
    while iterations < ITERATIONS || last_segment(&driven.dir)?.1 < LAST_SEGMENT_BYTES {
        for _ in 0..LOOK_EVERY {
            driven.iterate(&mut |journal, step| journal.append(&step.records))?;
        }
        iterations += LOOK_EVERY;
    }
    let state = &driven.state;
    let snapshot = Snapshot::of(state, ground.path(), state.time);
    snapshot
        .write(
            &ground.path().join(SNAPSHOT),
            Packing::Plain,
            Durability::Synced,
            &Encryption::plain(),
        )
        .map_err(|error| chain(&error))?;
    let (last, bytes) = last_segment(&driven.dir)?;
    for segment in 1..last {
        let plain = driven.dir.join(format!("journal-{segment:04}.jsonl"));
        compressed::replace(&plain, &Encryption::plain(), &AtomicBool::new(false)).map_err(text)?;
    }
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let mib = bytes as f64 / f64::from(1 << 20);
    Ok(format!(
        "{} iterations in {last} segments, the last of {mib:.1} MiB",
        state.iteration
    ))
}

/// Returns the number and the size of the last segment.
fn last_segment(dir: &Path) -> Result<(u32, u64), String> {
    let size = |number: u32| {
        let path = dir.join(format!("journal-{number:04}.jsonl"));
        fs::metadata(path).map(|found| found.len())
    };
    let last = (1..).take_while(|number| size(*number).is_ok()).last();
    let last = last.ok_or("there is no journal")?;
    Ok((last, size(last).map_err(text)?))
}

/// Measures the milliseconds from the start of the process to the record that starts an agent. Then kills the process.
fn resume(ground: &Ground) -> Result<f64, String> {
    let words = ["run", "--json", "--max-iterations", "0", "--"];
    let mut command: Command = ground.tachikoma(&words);
    command
        .args(["sleep", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = Instant::now();
    let mut runner = Live::start(&mut command)?;
    let printed = runner.stdout().ok_or("it prints nothing")?;
    let begun = BufReader::new(printed)
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("\"iteration_started\""));
    let took = started.elapsed().as_secs_f64() * 1e3;
    if !begun {
        return Err("the runner ended before it started an agent".into());
    }
    runner.kill()?;
    await_that("the end of all that is left", PATIENCE, || {
        !lock::is_held(ground.path())
    })?;
    Ok(took)
}
