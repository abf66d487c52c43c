//! Kills the runner at each of its storage calls, or makes the call fail like a broken or full disk. `strace` injects the fault
//! into the unmodified binary. Afterwards no acknowledged record is lost, and the loop continues.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::encrypted;
use super::tracer::{self, Call, MISSED_OF, NEAR, trace_of};
use super::victim::{PATIENCE, Victim};
use crate::product::{self, await_that};

/// System calls that change a file system, and calls that open files.
pub const CALLS: &str = "openat,write,pwrite64,fdatasync,fsync,rename,renameat,renameat2,ftruncate,mkdir,mkdirat,unlink,unlinkat,rmdir";

/// Only calls on files below this directory, the state of the loop, are tested.
const MEMORY: &str = "/.ralph";

/// Maximum number of calls after the start of a new loop, and as many after resuming a loop with a killed runner.
const CALLS_MAX: usize = 200;

/// Number of iterations, enough for more calls than that.
const ITERATIONS: u32 = 70;

/// Iterations of the resumed loop before its runner is killed.
const BEFORE: usize = 3;

/// The faults in the syntax of `strace`.
pub const FAULTS: [&str; 3] = ["signal=SIGKILL", "error=EIO", "error=ENOSPC"];

/// Time limit of a run. It takes a second or two; one with a fault in its async runtime may never end.
const RUN: Duration = Duration::from_secs(30);

/// The exit code of a loop that reached its limit.
const LIMIT_REACHED: i32 = 3;

/// Tests `rounds` calls, spread evenly, each with each fault.
pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    tracer::require()?;
    let product = product::build(root)?;
    let mut tally = Tally::default();
    for start in [Start::New, Start::Resumed, Start::Encrypted] {
        let mut calls = storage_calls(&product, start)?;
        if calls.len() < CALLS_MAX {
            return Err(format!("only {} storage calls were made", calls.len()));
        }
        calls.truncate(CALLS_MAX);
        let every = CALLS_MAX.div_ceil(rounds as usize).max(1);
        for call in calls.iter().step_by(every) {
            for fault in FAULTS {
                inject(&product, start, call, fault, &mut tally)
                    .map_err(|error| format!("{start}, {call}, {fault}: {error}"))?;
            }
        }
    }
    tally.summary()
}

/// Counts of the results.
#[derive(Default)]
struct Tally {
    missed: u32,
    killed: u32,
    gave_up: u32,
    went_on: u32,
}

impl Tally {
    fn enter(&mut self, code: Option<i32>, stderr: &str) -> Result<(), String> {
        match code {
            None => self.killed += 1,
            Some(LIMIT_REACHED) => self.went_on += 1,
            Some(1) if stderr.contains("error: ") => self.gave_up += 1,
            Some(code) => return Err(format!("exit code {code}: {stderr}")),
        }
        Ok(())
    }

    fn summary(&self) -> Result<String, String> {
        let hits = self.killed + self.gave_up + self.went_on;
        let Self {
            missed,
            killed,
            gave_up,
            went_on,
        } = self;
        if missed * MISSED_OF > hits {
            return Err(format!(
                "{missed} calls were missed and {hits} hit: the runs differ too much"
            ));
        }
        Ok(format!(
            "{hits} faults: {killed} runners killed, {gave_up} gave up with a message, {went_on} went on; nothing was \
             lost, and all loops went on ({missed} calls could not be hit)"
        ))
    }
}

/// State of the loop that the runner finds.
#[derive(Clone, Copy)]
enum Start {
    New,
    Resumed,
    /// A resumed loop with encrypted state.
    Encrypted,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "new loop",
            Self::Resumed => "resumed loop",
            Self::Encrypted => "resumed loop that is encrypted",
        })
    }
}

impl Start {
    fn victim(self, product: &Path) -> Result<Victim, String> {
        let victim = Victim::new(product)?;
        let victim = match self {
            Self::New => return Ok(victim),
            Self::Resumed => victim,
            Self::Encrypted => victim.configured(encrypted::SETTINGS)?,
        };
        let runner = victim.start()?;
        await_that("some iterations", PATIENCE, || {
            victim.ran().is_ok_and(|ran| ran.len() >= BEFORE)
        })?;
        runner.kill()?;
        victim.expect_nobody()?;
        Ok(victim)
    }
}

fn traced(victim: &Victim, words: &[&str]) -> Result<Option<i32>, String> {
    tracer::start(victim, words, &victim.words(ITERATIONS))?.wait(RUN)
}

/// Returns the storage calls of a run without faults.
fn storage_calls(product: &Path, start: Start) -> Result<Vec<Call>, String> {
    let victim = start.victim(product)?;
    let code = traced(&victim, &["-e", &format!("trace={CALLS}")])?;
    if code != Some(LIMIT_REACHED) {
        return Err(format!(
            "this machine cannot show it: under strace the loop ended with {code:?}: {}",
            victim.stderr()
        ));
    }
    Ok(calls_in(&trace_of(&victim)?))
}

pub fn calls_in(trace: &str) -> Vec<Call> {
    let on_memory = |_: &str, rest: &str| rest.contains(MEMORY).then_some(());
    let calls = tracer::calls_in(trace, CALLS, on_memory);
    calls.into_iter().map(|(call, ())| call).collect()
}

/// Injects a fault into a storage call. Runs differ a little, so the fault may hit another call of the same name; then a call near
/// it is tried.
fn inject(
    product: &Path,
    start: Start,
    call: &Call,
    fault: &str,
    tally: &mut Tally,
) -> Result<(), String> {
    for offset in NEAR {
        let call = call.near(offset);
        let victim = start.victim(product)?;
        let trace = format!("trace={}", call.name);
        let inject = format!("inject={}:{fault}:when={}", call.name, call.nth);
        let code = traced(&victim, &["-e", &trace, "-e", &inject]);
        if !is_on_memory(&trace_of(&victim)?, &call) {
            // The fault may hit a wake-up call of the async runtime, without which the process cannot continue.
            continue;
        }
        tally.enter(code?, &victim.stderr())?;
        victim.expect_nobody()?;
        victim.audit()?;
        return victim.go_on().map(|_| ());
    }
    tally.missed += 1;
    Ok(())
}

/// Returns whether the fault hit a call on the state of the loop.
pub fn is_on_memory(trace: &str, call: &Call) -> bool {
    calls_in(trace).contains(call)
}
