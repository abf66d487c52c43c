//! Changes the wall clock while a loop works or waits, with libfaketime and the unmodified binary. No timeout comes early or is
//! lost, no wait is endless, and the time in the journal never decreases.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::victim::{PATIENCE, Victim};
use crate::product::{self, Live, await_that, text};

/// Directories in which distributions install the library.
const PLACES: [&str; 3] = ["/usr/lib", "/usr/lib64", "/usr/local/lib"];
const LIBRARY: &str = "faketime/libfaketime.so.1";

/// Script of an agent that works for a second with the real clock.
pub const WORKING: &str = "unset LD_PRELOAD
    echo \"$TACHIKOMA_ITERATION $TACHIKOMA_ATTEMPT\" >>OUTSIDE/ran; sleep 1";

/// Script of an agent that never ends.
pub const HANGING: &str = "unset LD_PRELOAD
    echo \"$TACHIKOMA_ITERATION $TACHIKOMA_ATTEMPT\" >>OUTSIDE/ran; sleep 1000";

/// Timeouts of the loop: `GENEROUS` for a working agent, which never needs it, and `STRICT` for one that hangs.
const GENEROUS: Duration = Duration::from_secs(20);
const STRICT: Duration = Duration::from_secs(2);

/// Delay that a busy machine may add.
pub const LATE: Duration = Duration::from_secs(10);

/// Changes of the clock.
const HOURS: [&str; 2] = ["+5h", "-5h"];

/// If a record is this much later than the first one, the clock was changed.
pub const AHEAD: Duration = Duration::from_secs(4 * 3600);

/// State of a loop when the clock is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Working,
    Waiting,
    Hanging,
}

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let library = library()?;
    let product = product::build(root)?;
    for round in 1..=rounds {
        for offset in HOURS {
            for at in [At::Working, At::Waiting, At::Hanging] {
                set(&product, &library, at, offset)
                    .map_err(|error| format!("round {round}, {at:?}, {offset}: {error}"))?;
            }
        }
    }
    Ok(format!(
        "the clock set by five hours, ahead and back, {rounds} times each while an agent worked, while the loop waited and \
         while an agent hung: every timeout and wait took as long as it should"
    ))
}

pub fn library() -> Result<PathBuf, String> {
    let mut found = PLACES.iter().flat_map(|place| {
        let below = fs::read_dir(place).into_iter().flatten().flatten();
        let below = below.map(|entry| entry.path().join(LIBRARY));
        below.chain([Path::new(place).join(LIBRARY)])
    });
    found
        .find(|path| path.is_file())
        .ok_or_else(|| "this machine cannot show it: libfaketime is not installed".to_owned())
}

fn set(product: &Path, library: &Path, at: At, offset: &str) -> Result<(), String> {
    let (agent, delay, timeout) = match at {
        At::Working => (WORKING, "0s", GENEROUS),
        At::Waiting => (WORKING, "2s", GENEROUS),
        At::Hanging => (HANGING, "0s", STRICT),
    };
    let victim = Victim::new(product)?.with_agent(agent);
    let config = format!("[session]\nsession_timeout = \"{}s\"\n", timeout.as_secs());
    victim.ground().configure(&config)?;
    let clock = Path::new(&victim.outside()).join("clock");
    fs::write(&clock, "+0").map_err(text)?;

    let words = victim.words_with(2, delay);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = victim.ground().tachikoma(&words);
    fake(&mut command, library, &clock);
    let started = Instant::now();
    let runner = Live::start(victim.recorded(&mut command)?)?;
    await_that("the first iteration", PATIENCE, || {
        victim.ran().is_ok_and(|ran| !ran.is_empty())
    })?;
    if at == At::Waiting {
        await_that("the wait", PATIENCE, || {
            victim.printed().contains("\"wait_started\"")
        })?;
    } else {
        // The clock is changed well before the work or the wait ends.
        thread::sleep(Duration::from_millis(300));
    }
    fs::write(&clock, offset).map_err(text)?;
    match at {
        At::Working | At::Waiting => expect_success(&victim, runner),
        At::Hanging => expect_timeout(&victim, runner, started),
    }?;
    let ahead = offset.starts_with('+');
    if has_jumped(&victim)? != ahead {
        return Err(format!(
            "the journal's time should {}jump: {}",
            if ahead { "" } else { "not " },
            victim.printed()
        ));
    }
    Ok(())
}

/// Replaces the wall clock of a command by one that can be changed. The monotonic clock is not affected.
pub fn fake(command: &mut Command, library: &Path, clock: &Path) {
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// Checks that both iterations succeed and take no longer than expected.
fn expect_success(victim: &Victim, runner: Live) -> Result<(), String> {
    let since = Instant::now();
    let code = runner.wait(PATIENCE)?;
    let took = since.elapsed();
    victim.expect_nobody()?;
    let books = victim.audit()?.ok_or("there is no loop")?;
    if code != Some(3) || books.state.stats.successful != 2 {
        return Err(format!(
            "exit code {code:?}, {:?}: {}",
            books.state.stats,
            victim.printed()
        ));
    }
    // Each iteration takes a second, and the wait two.
    let expected = Duration::from_secs(4);
    match took <= expected + LATE {
        true => Ok(()),
        false => Err(format!("it took {took:?}")),
    }
}

/// Checks that the first iteration ends with its timeout, neither early nor much later.
fn expect_timeout(victim: &Victim, runner: Live, started: Instant) -> Result<(), String> {
    let since = Instant::now();
    await_that("the timeout", PATIENCE, || {
        victim.printed().contains("\"ending_requested\"")
    })?;
    let (took, took_in_all) = (since.elapsed(), started.elapsed());
    victim.ground().stop(runner)?;
    victim.expect_nobody()?;
    victim.audit()?;
    // The time before the clock change is unknown, but at least 0.
    match took_in_all >= STRICT && took <= STRICT + LATE {
        true => Ok(()),
        false => Err(format!(
            "the timeout came after {took:?}, {took_in_all:?} after the start"
        )),
    }
}

/// Returns whether the time in the journal advanced more than the run can have taken.
fn has_jumped(victim: &Victim) -> Result<bool, String> {
    let (first, last) = victim.span()?;
    Ok(last.since(first) >= AHEAD)
}
