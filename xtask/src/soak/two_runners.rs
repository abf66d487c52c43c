//! Starts two runners at the same time in one directory: one runs, the other is refused with the process id of the first, and
//! there are never two agents.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;

use super::victim::{PATIENCE, Victim};
use crate::product::{self, Live, await_that, text};

/// Number of pairs that run in parallel. A runner waits some seconds for the lock before it gives up.
const AT_ONCE: u32 = 10;

/// Script of an agent that detects another agent in the same directory.
const AGENT: &str = "
    mkdir OUTSIDE/alone || echo meets another >>OUTSIDE/met
    echo \"$TACHIKOMA_ITERATION $TACHIKOMA_ATTEMPT\" >>OUTSIDE/ran
    sleep 0.05
    rmdir OUTSIDE/alone
";

/// The exit code of a refused runner.
const REFUSED: i32 = 1;

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let mut done = 0;
    let mut iterations = 0;
    while done < rounds {
        let now = AT_ONCE.min(rounds - done);
        let pairs: Vec<_> = (0..now)
            .map(|_| {
                let product = product.clone();
                thread::spawn(move || pair(&product))
            })
            .collect();
        for pair in pairs {
            done += 1;
            let result = pair.join().map_err(|_| "a pair panicked")?;
            iterations += result.map_err(|error| format!("pair {done}: {error}"))?;
        }
    }
    Ok(format!(
        "{rounds} pairs, one of each refused with the other's pid, {iterations} iterations without a second agent"
    ))
}

/// Runs two runners. Returns how many iterations one of them did while the other was refused.
fn pair(product: &Path) -> Result<u32, String> {
    let victim = Victim::new(product)?.with_agent(AGENT);
    let mut runners = [start(&victim, 0)?, start(&victim, 1)?];
    await_that("the end of one", PATIENCE, || {
        runners.iter_mut().any(Live::has_ended)
    })?;
    let refused = usize::from(!runners[0].has_ended());
    let [first, second] = runners;
    let (loser, mut winner) = match refused {
        0 => (first, second),
        _ => (second, first),
    };
    if winner.has_ended() {
        return Err("both have ended".into());
    }
    let code = loser.wait(PATIENCE)?;
    let stderr = fs::read_to_string(stderr(&victim, refused)).map_err(text)?;
    let named = format!("pid {}", winner.pid());
    if code != Some(REFUSED) || !stderr.contains(&named) {
        return Err(format!(
            "the other should name {named}: exit code {code:?}, {stderr}"
        ));
    }
    victim.ground().stop(winner)?;
    victim.expect_nobody()?;
    if let Ok(met) = fs::read_to_string(format!("{}/met", victim.outside())) {
        return Err(format!("two agents at once: {met}"));
    }
    let books = victim.audit()?.ok_or("there is no loop")?;
    match books.state.stats.iterations {
        0 => Err("the one that was let in did nothing".into()),
        iterations => Ok(iterations),
    }
}

fn start(victim: &Victim, number: usize) -> Result<Live, String> {
    let words = victim.words(0);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = victim.ground().tachikoma(&words);
    let stderr = File::create(stderr(victim, number)).map_err(text)?;
    Live::start(command.stderr(stderr))
}

fn stderr(victim: &Victim, number: usize) -> PathBuf {
    PathBuf::from(format!("{}/stderr-{number}", victim.outside()))
}
