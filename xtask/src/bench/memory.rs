//! Memory of the runner: in an idle loop, after a flood of output, and after one endless line.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Bench;
use super::report::{Row, Unit};
use crate::product::{Ground, Live, await_that, text};

/// Time limit of waits. A flood takes seconds, or minutes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Number of iterations in which the agent exits at once. The next agent sleeps, and the idle memory is measured then.
const IDLE_AFTER: u32 = 20;

const IDLE_MIB: f64 = 12.0;
const LOADED_MIB: f64 = 32.0;

/// Shell commands that agents run in their first iteration, with their names.
const LOADS: [(&str, &str); 2] = [
    (
        "1 GB of lines",
        "yes 0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ | head -c 1000000000",
    ),
    (
        "a line of 100 MB",
        "head -c 100000000 /dev/zero | tr '\\0' x; echo",
    ),
];

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let mut rows = idle(bench)?;
    rows.extend(loads(bench)?);
    Ok(rows)
}

/// Measures the flood of output and the endless line.
pub fn loads(bench: &Bench) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (name, load) in LOADS {
        rows.extend(loaded(bench, name, load)?);
    }
    Ok(rows)
}

fn idle(bench: &Bench) -> Result<Vec<Row>, String> {
    let script = format!(
        "[ \"$TACHIKOMA_ITERATION\" -le {IDLE_AFTER} ] && exit; : > rests; exec sleep 1000"
    );
    let ground = Ground::new(&bench.product, &bench.disk)?;
    let runner = start(&ground, &script)?;
    await_that("the loop to rest", PATIENCE, || ground.has("rests"))?;
    let memory = Memory::of(runner.pid())?;
    ground.stop(runner)?;
    Ok(memory.rows("idle in a loop", IDLE_MIB))
}

fn loaded(bench: &Bench, name: &str, load: &str) -> Result<Vec<Row>, String> {
    // The end of the iteration is included, because parts of the transcript are joined then.
    let script = format!("[ -e begun ] && {{ : > rests; exec sleep 1000; }}; : > begun; {load}");
    let ground = Ground::new(&bench.product, &bench.disk)?;
    let runner = start(&ground, &script)?;
    await_that("the load", PATIENCE, || ground.has("begun"))?;
    let started = Instant::now();
    await_that("the end of the load", PATIENCE, || ground.has("rests"))?;
    let took = started.elapsed();
    let memory = Memory::of(runner.pid())?;
    ground.stop(runner)?;
    let mut rows = memory.rows(&format!("after {name}"), LOADED_MIB);
    let kept = transcripts_bytes(&ground.path().join(".ralph"))?;
    let row = Row::info(
        format!("{name}, time"),
        took.as_secs_f64() * 1e3,
        Unit::Milliseconds,
    );
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let kept = kept as f64 / f64::from(1 << 20);
    rows.push(row.detail(format!("transcript {kept:.1} MiB")));
    Ok(rows)
}

fn start(ground: &Ground, script: &str) -> Result<Live, String> {
    let words = ["run", "--delay", "0s", "--", "sh", "-c", script];
    Live::start(&mut ground.tachikoma(&words))
}

/// The resident memory of a process, in MiB.
pub struct Memory {
    pub now: f64,
    pub peak: f64,
}

impl Memory {
    pub fn of(pid: u32) -> Result<Self, String> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(text)?;
        let field = |name| field_mib(&status, name).ok_or(format!("no {name} of process {pid}"));
        Ok(Self {
            now: field("VmRSS")?,
            peak: field("VmHWM")?,
        })
    }

    fn rows(&self, when: &str, goal: f64) -> Vec<Row> {
        vec![
            Row::goal(format!("memory, {when}"), self.now, Unit::Mebibytes, goal)
                .detail(format!("peak {:.1} MiB", self.peak)),
        ]
    }
}

/// Returns the value of a field like `VmRSS:    1234 kB` in MiB.
fn field_mib(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib = line.strip_prefix(':')?.trim().strip_suffix(" kB")?;
    kib.parse::<f64>().ok().map(|kib| kib / 1024.0)
}

/// Returns the size of all files in `dir` except the journal.
fn transcripts_bytes(dir: &Path) -> Result<u64, String> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(text)? {
        let entry = entry.map_err(text)?;
        let metadata = entry.metadata().map_err(text)?;
        if metadata.is_dir() {
            bytes += transcripts_bytes(&entry.path())?;
        } else if entry
            .path()
            .extension()
            .is_some_and(|ending| ending != "jsonl")
        {
            bytes += metadata.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_status_are_read() {
        let status = "Name:\tsh\nVmHWM:\t    2048 kB\nVmRSS:\t    1536 kB\n";
        assert_eq!(field_mib(status, "VmHWM"), Some(2.0));
        assert_eq!(field_mib(status, "VmRSS"), Some(1.5));
        assert_eq!(field_mib(status, "VmSwap"), None);
        assert_eq!(field_mib(status, "Name"), None, "no number");
    }
}
