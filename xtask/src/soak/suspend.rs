//! Suspends a whole loop: by SIGSTOP or a frozen container, while clocks continue, or like a sleeping machine, where only the wall
//! clock continues. Timeouts do not include the suspension, waits do not take longer, the suspension is recorded, and the loop continues.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_core::{LoopEvent, Record};

use super::clock::{AHEAD, HANGING, LATE, WORKING, fake, library};
use super::victim::{PATIENCE, Victim};
use crate::product::{self, Live, await_that, text};

/// Script of an agent that fails in the first iteration and then works.
const FAILING: &str = "unset LD_PRELOAD
    echo \"$TACHIKOMA_ITERATION $TACHIKOMA_ATTEMPT\" >>OUTSIDE/ran; [ \"$TACHIKOMA_ITERATION\" != 1 ]";

/// Timeout of every loop here: more than a working agent needs, less than the suspension.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Duration of a stop: much longer than the timeout, so that delays of a busy machine do not matter.
const STOP: Duration = Duration::from_secs(7);

/// Change of the wall clock while the machine sleeps. The monotonic clock advances only for a moment.
const SLEPT: &str = "+5h";
const MOMENT: Duration = Duration::from_millis(300);

/// Time from the start of the work or wait until the suspension.
const INTO: Duration = Duration::from_millis(300);

/// How the loop is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stopped,
    Asleep,
}

/// State of the loop when it is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Working,
    Hanging,
    Delay,
    Backoff,
}

const CASES: [(Way, At); 8] = [
    (Way::Stopped, At::Working),
    (Way::Stopped, At::Hanging),
    (Way::Stopped, At::Delay),
    (Way::Stopped, At::Backoff),
    (Way::Asleep, At::Working),
    (Way::Asleep, At::Hanging),
    (Way::Asleep, At::Delay),
    (Way::Asleep, At::Backoff),
];

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let library = library()?;
    let product = product::build(root)?;
    for round in 1..=rounds {
        // All loops run in parallel, because they mostly wait.
        thread::scope(|scope| {
            let case = |(way, at)| {
                suspend(&product, &library, way, at)
                    .map_err(|error| format!("round {round}, {way:?}, {at:?}: {error}"))
            };
            let cases: Vec<_> = CASES
                .into_iter()
                .map(|found| scope.spawn(move || case(found)))
                .collect();
            cases.into_iter().try_for_each(|case| {
                case.join()
                    .map_err(|_| "a case panicked".to_owned())
                    .flatten()
            })
        })?;
    }
    Ok(format!(
        "{rounds} times each stopped and asleep, while an agent worked, while one hung, in a delay and in a backoff: no \
         timeout came early, no wait late, and all loops went on"
    ))
}

fn suspend(product: &Path, library: &Path, way: Way, at: At) -> Result<(), String> {
    let (agent, delay) = match at {
        At::Working => (WORKING, "0s"),
        At::Hanging => (HANGING, "0s"),
        At::Delay => (WORKING, "2s"),
        At::Backoff => (FAILING, "0s"),
    };
    let victim = Victim::new(product)?.with_agent(agent);
    let config = format!("[session]\nsession_timeout = \"{}s\"\n", TIMEOUT.as_secs());
    victim.ground().configure(&config)?;
    let clock = Path::new(&victim.outside()).join("clock");
    fs::write(&clock, "+0").map_err(text)?;
    let words = victim.words_with(2, delay);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = victim.ground().tachikoma(&words);
    if way == Way::Asleep {
        fake(&mut command, library, &clock);
    }
    let started = Instant::now();
    let runner = Live::start(victim.recorded(&mut command)?)?;
    await_that(
        "the start of the agent or of the wait",
        PATIENCE,
        || match at {
            At::Working | At::Hanging => victim.ran().is_ok_and(|ran| !ran.is_empty()),
            At::Delay | At::Backoff => victim.printed().contains("\"wait_started\""),
        },
    )?;
    thread::sleep(INTO);
    stand_still(runner.pid(), way, &clock)?;
    match at {
        At::Working | At::Delay | At::Backoff => expect_end(&victim, runner, at)?,
        At::Hanging => expect_timeout(&victim, runner, way, started)?,
    }
    match at {
        At::Working | At::Hanging => expect_told(&victim, way),
        // A wait ends on time, so there is no record to check.
        At::Delay | At::Backoff => Ok(()),
    }
}

/// Stops all processes of a loop, the runner first, and continues them later.
fn stand_still(runner: u32, way: Way, clock: &Path) -> Result<(), String> {
    let all = tree(runner);
    for pid in &all {
        signal(*pid, Signal::STOP)?;
    }
    match way {
        Way::Stopped => thread::sleep(STOP),
        Way::Asleep => {
            fs::write(clock, SLEPT).map_err(text)?;
            thread::sleep(MOMENT);
        }
    }
    for pid in all.iter().rev() {
        signal(*pid, Signal::CONT)?;
    }
    Ok(())
}

/// Returns a process and its descendants.
fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        let lists = tasks.into_iter().flatten().flatten();
        let lists = lists.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<u32> = lists
            .flat_map(|list| {
                let pids = list.split_whitespace().map(str::to_owned);
                pids.filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
            })
            .collect();
        all.extend(children);
        next += 1;
    }
    all
}

fn signal(pid: u32, signal: Signal) -> Result<(), String> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match kill_process(pid.ok_or("no process id")?, signal) {
        // An agent may have ended meanwhile.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that both iterations end soon and with the result of their agents.
fn expect_end(victim: &Victim, runner: Live, at: At) -> Result<(), String> {
    let since = Instant::now();
    let code = runner.wait(PATIENCE)?;
    let took = since.elapsed();
    victim.expect_nobody()?;
    let books = victim.audit()?.ok_or("there is no loop")?;
    let stats = &books.state.stats;
    let failed = u32::from(at == At::Backoff);
    if code != Some(3) || (stats.successful, stats.failed) != (2 - failed, failed) {
        let printed = victim.printed();
        return Err(format!("exit code {code:?}, {stats:?}: {printed}"));
    }
    match took <= LATE {
        true => Ok(()),
        false => Err(format!("it took {took:?} to go on and end")),
    }
}

/// Checks that the timeout still has most of its time after the suspension, and then ends the iteration.
fn expect_timeout(victim: &Victim, runner: Live, way: Way, started: Instant) -> Result<(), String> {
    let since = Instant::now();
    await_that("the timeout", PATIENCE, || {
        victim.printed().contains("\"ending_requested\"")
    })?;
    let (took, took_in_all) = (since.elapsed(), started.elapsed());
    victim.ground().stop(runner)?;
    victim.expect_nobody()?;
    victim.audit()?;
    // The time before the suspension is unknown, but at least 0.
    let least = match way {
        Way::Stopped => STOP + TIMEOUT,
        Way::Asleep => TIMEOUT,
    };
    match took_in_all >= least && took <= TIMEOUT + LATE {
        true => Ok(()),
        false => Err(format!(
            "the timeout came after {took:?}, {took_in_all:?} after the start"
        )),
    }
}

/// Checks that the duration of the suspension is recorded and that `events` shows it.
fn expect_told(victim: &Victim, way: Way) -> Result<(), String> {
    let printed = victim.printed();
    let records = printed.lines().filter_map(|line| {
        let record: Record = serde_json::from_str(line).ok()?;
        match record.event {
            LoopEvent::Suspended { duration_ms } => Some(Duration::from_millis(duration_ms)),
            _ => None,
        }
    });
    let told: Vec<Duration> = records.collect();
    let expected = match way {
        Way::Stopped => STOP..=STOP + LATE,
        Way::Asleep => AHEAD..=AHEAD * 2,
    };
    // A busy machine may cause further, shorter suspensions.
    if told
        .iter()
        .filter(|told| **told >= *expected.start())
        .count()
        != 1
        || !told.iter().any(|told| expected.contains(told))
    {
        return Err(format!("it reports a suspend of {told:?}"));
    }
    let mut events = victim.ground().tachikoma(&["events"]);
    let output = events.stdout(Stdio::piped()).output().map_err(text)?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    match lines.contains("machine was suspended for ") {
        true => Ok(()),
        false => Err(format!("the events do not show it: {lines}")),
    }
}
