//! The runner is killed, or told of a broken or a full disk, at each of its storage calls in turn: the unmodified
//! binary under `strace`, which puts the fault in. Afterwards nothing that was acknowledged is lost, and the loop
//! goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::victim::{PATIENCE, Victim};
use crate::product::{self, Live, await_that, text};

/// What changes a file system, and what opens its files.
const CALLS: &str = "openat,write,pwrite64,fdatasync,fsync,rename,renameat,renameat2,ftruncate,mkdir,mkdirat,unlink,unlinkat,rmdir";

/// Only calls on files below this are counted: the others are not the loop's memory.
const MEMORY: &str = "/.ralph";

/// So many calls after the start of a new loop.
const CALLS_MAX: usize = 200;

/// So many after taking up one whose runner was killed: by then it does what it does in a new one.
const RESUMED_MAX: usize = 60;

/// Iterations that make as many calls as that, with some to spare.
const ITERATIONS: u32 = 70;

/// The loop that is taken up has run so often when its runner is killed.
const BEFORE: usize = 3;

/// The words of the fault in `strace`'s language.
const FAULTS: [&str; 3] = ["signal=SIGKILL", "error=EIO", "error=ENOSPC"];

/// Where a call is looked for that is not where it was before: so many of its kind later or earlier.
const NEAR: [i32; 11] = [0, 0, 1, -1, 2, -2, 3, -3, 0, 1, -1];

/// A run takes a second or two; one whose runtime was hit may never end.
const RUN: Duration = Duration::from_secs(30);

/// At most one call of so many may be missed.
const MISSED_OF: u32 = 20;

/// The exit code of a loop that reached its limit.
const LIMIT_REACHED: i32 = 3;

/// `rounds` calls, spread evenly, each with each fault.
pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    Command::new("strace")
        .arg("--version")
        .output()
        .map_err(|error| format!("this machine cannot show it: strace: {error}"))?;
    let product = product::build(root)?;
    let mut tally = Tally::default();
    for (start, max) in [(Start::New, CALLS_MAX), (Start::Resumed, RESUMED_MAX)] {
        let mut calls = storage_calls(&product, start)?;
        if calls.len() < max {
            return Err(format!("only {} storage calls were made", calls.len()));
        }
        calls.truncate(max);
        let every = max.div_ceil(rounds as usize).max(1);
        for call in calls.iter().step_by(every) {
            for fault in FAULTS {
                inject(&product, start, call, fault, &mut tally)
                    .map_err(|error| format!("{start}, {call}, {fault}: {error}"))?;
            }
        }
    }
    tally.told()
}

/// What became of the runners.
#[derive(Default)]
struct Tally {
    missed: u32,
    killed: u32,
    gave_up: u32,
    went_on: u32,
}

impl Tally {
    fn enter(&mut self, code: Option<i32>, complaints: &str) -> Result<(), String> {
        match code {
            None => self.killed += 1,
            Some(LIMIT_REACHED) => self.went_on += 1,
            Some(1) if complaints.contains("error: ") => self.gave_up += 1,
            Some(code) => return Err(format!("exit code {code}: {complaints}")),
        }
        Ok(())
    }

    fn told(&self) -> Result<String, String> {
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

/// What the runner finds.
#[derive(Clone, Copy)]
enum Start {
    New,
    Resumed,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "new loop",
            Self::Resumed => "resumed loop",
        })
    }
}

impl Start {
    fn victim(self, product: &Path) -> Result<Victim, String> {
        let victim = Victim::new(product)?;
        if let Self::Resumed = self {
            let runner = victim.start()?;
            await_that("some iterations", PATIENCE, || {
                victim.ran().is_ok_and(|ran| ran.len() >= BEFORE)
            })?;
            runner.kill()?;
            victim.expect_nobody()?;
        }
        Ok(victim)
    }
}

/// The `nth` call of this name.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    name: String,
    nth: u32,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.nth)
    }
}

/// A runner under `strace`, which follows no children: only the runner itself is tampered with.
fn traced(victim: &Victim, words: &[&str]) -> Result<Option<i32>, String> {
    let log = format!("{}/trace", victim.outside());
    let product = victim.ground().product().to_string_lossy().into_owned();
    let run = victim.words(ITERATIONS);
    let mut all = vec!["-y", "-o", &log];
    all.extend(words);
    all.extend(["--", &product]);
    all.extend(run.iter().map(String::as_str));
    let mut command = victim.ground().quietly(Path::new("strace"), &all);
    Live::start(victim.recorded(&mut command)?)?.wait(RUN)
}

fn trace_of(victim: &Victim) -> Result<String, String> {
    let bytes = fs::read(format!("{}/trace", victim.outside())).map_err(text)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The calls that an undisturbed run makes.
fn storage_calls(product: &Path, start: Start) -> Result<Vec<Call>, String> {
    let victim = start.victim(product)?;
    let code = traced(&victim, &["-e", &format!("trace={CALLS}")])?;
    if code != Some(LIMIT_REACHED) {
        return Err(format!(
            "this machine cannot show it: under strace the loop ended with {code:?}: {}",
            victim.complaints()
        ));
    }
    Ok(calls_in(&trace_of(&victim)?))
}

/// `strace` counts each kind of call for itself, and so does this; but it returns only those on the loop's memory.
fn calls_in(trace: &str) -> Vec<Call> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut found = Vec::new();
    for line in trace.lines() {
        let Some((name, rest)) = line.split_once('(') else {
            continue;
        };
        if !CALLS.split(',').any(|call| call == name) {
            continue;
        }
        let nth = counts.entry(name).or_default();
        *nth += 1;
        if rest.contains(MEMORY) {
            found.push(Call {
                name: name.to_owned(),
                nth: *nth,
            });
        }
    }
    found
}

/// Puts a fault into a call on the loop's memory. Runs differ a little, and the fault may hit another call of the same
/// name: then one near it is tried.
fn inject(
    product: &Path,
    start: Start,
    call: &Call,
    fault: &str,
    tally: &mut Tally,
) -> Result<(), String> {
    for offset in NEAR {
        let call = Call {
            name: call.name.clone(),
            nth: call.nth.saturating_add_signed(offset).max(1),
        };
        let victim = start.victim(product)?;
        let trace = format!("trace={}", call.name);
        let inject = format!("inject={}:{fault}:when={}", call.name, call.nth);
        let code = traced(&victim, &["-e", &trace, "-e", &inject]);
        if !is_on_memory(&trace_of(&victim)?, &call) {
            // The runtime's own wake-up calls, for one: without them nothing can go on.
            continue;
        }
        tally.enter(code?, &victim.complaints())?;
        victim.expect_nobody()?;
        victim.audit()?;
        return victim.go_on().map(|_| ());
    }
    tally.missed += 1;
    Ok(())
}

/// Whether the call, as it was made this time, was one on the loop's memory.
fn is_on_memory(trace: &str, call: &Call) -> bool {
    calls_in(trace).contains(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_kind_and_only_those_on_the_loops_memory_returned() {
        let trace = concat!(
            "openat(AT_FDCWD</d>, \"/etc/ld.so.cache\", O_RDONLY) = 3\n",
            "mkdir(\"/d/.ralph\", 0700) = 0\n",
            "openat(AT_FDCWD</d>, \"/d/.ralph/lock\", O_RDWR) = 9</d/.ralph/lock>\n",
            "--- SIGCHLD {si_signo=SIGCHLD} ---\n",
            "write(4<anon_inode:[eventfd]>, \"1\", 8) = 8\n",
            "write(9</d/.ralph/lock>, \"{\", 1) = 1\n",
        );
        let call = |name: &str, nth| Call {
            name: name.to_owned(),
            nth,
        };
        let expected = [call("mkdir", 1), call("openat", 2), call("write", 2)];
        assert_eq!(calls_in(trace), expected);
    }
}
