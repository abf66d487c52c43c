//! Kills the runner with SIGKILL at random times and resumes the loop. After each kill, the records are complete and no process is left.

use std::path::Path;
use std::thread;
use std::time::Duration;

use super::dice::Dice;
use super::encrypted;
use super::victim::Victim;
use crate::product;

/// Number of kills of one loop. Its journal grows, and checking all of it each time would take longer and longer.
const KILLS_PER_LOOP: u32 = 50;

/// Maximum time until a runner is killed: long enough for a start and some iterations.
const LIFE: Duration = Duration::from_millis(60);

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let mut dice = Dice::shaken();
    let (mut iterations, mut repeated) = (0, 0);
    let mut done = 0;
    while done < rounds {
        let settings = encrypted::in_turn(done / KILLS_PER_LOOP, "");
        let victim = Victim::new(&product)?.configured(settings)?;
        for _ in 0..KILLS_PER_LOOP.min(rounds - done) {
            done += 1;
            let life = dice.moment(LIFE);
            kill_after(&victim, life).map_err(|error| format!("kill {done}, {life:?}: {error}"))?;
        }
        let books = victim
            .go_on()
            .map_err(|error| format!("after kill {done}: {error}"))?;
        let ended = books.state.stats.iterations as usize;
        iterations += ended;
        repeated += victim.ran()?.len() - ended;
    }
    Ok(format!(
        "{rounds} runners killed, {iterations} iterations each counted once, {repeated} attempts cut and repeated"
    ))
}

fn kill_after(victim: &Victim, life: Duration) -> Result<(), String> {
    let mut runner = victim.start()?;
    thread::sleep(life);
    if runner.has_ended() {
        let stderr = victim.stderr();
        return Err(format!("the runner ended by itself: {stderr}"));
    }
    runner.kill()?;
    victim.expect_nobody()?;
    victim.audit().map(|_| ())
}
