//! Simulates power failures of a disk that keeps only synced data while a loop runs. The attempts of all started agents are still
//! known, and the loop continues.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::dice::Dice;
use super::disk::{Disk, Fault, Mounted, Unsynced};
use super::encrypted;
use super::victim::Victim;
use crate::encryption;
use crate::product::{self, PROMPT, text};

/// Maximum time that the loop runs before the power fails.
const POWER: Duration = Duration::from_millis(250);

/// Settings that save snapshots very often, also between records that are not synced.
pub const CONFIG: &str = "[state]\nauto_save_interval = \"3ms\"\n";

/// Number of power failures of one loop.
const CUTS_PER_LOOP: u32 = 10;

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let mut dice = Dice::shaken();
    let (mut iterations, mut repeated) = (0, 0);
    let mut done = 0;
    while done < rounds {
        let victim = Victim::new(&product)?;
        let disk = Arc::new(Mutex::new(Disk::new()));
        let settings = encrypted::in_turn(done / CUTS_PER_LOOP, CONFIG);
        furnish(&victim, &disk, settings)?;
        for _ in 0..CUTS_PER_LOOP.min(rounds - done) {
            done += 1;
            cut(&victim, &disk, &mut dice, done % 2 == 0)
                .map_err(|error| format!("cut {done}: {error}"))?;
        }
        let mounted = Mounted::at(victim.ground().path(), disk)?;
        let books = victim
            .go_on()
            .map_err(|error| format!("after cut {done}: {error}"))?;
        mounted.unmount()?;
        let ended = books.state.stats.iterations as usize;
        iterations += ended;
        repeated += victim.ran()?.len() - ended;
    }
    Ok(format!(
        "{rounds} power cuts, {iterations} iterations known at the end, {repeated} attempts cut and repeated, none lost"
    ))
}

/// Writes the files of a loop to a new disk.
pub fn furnish(victim: &Victim, disk: &Arc<Mutex<Disk>>, settings: &str) -> Result<(), String> {
    let mounted = Mounted::at(victim.ground().path(), disk.clone())?;
    let dir = victim.ground().path();
    fs::write(dir.join(PROMPT), "do the next thing\n").map_err(text)?;
    victim.ground().configure(settings)?;
    encryption::lay_key(dir, settings)?;
    mounted.disk().sync_all();
    mounted.unmount()
}

fn cut(
    victim: &Victim,
    disk: &Arc<Mutex<Disk>>,
    dice: &mut Dice,
    torn: bool,
) -> Result<(), String> {
    let mounted = Mounted::at(victim.ground().path(), disk.clone())?;
    let mut runner = victim.start()?;
    thread::sleep(dice.moment(POWER));
    if runner.has_ended() {
        let stderr = victim.stderr();
        return Err(format!("the runner ended by itself: {stderr}"));
    }
    mounted.disk().fault = Some(Fault::Off);
    runner.kill()?;
    victim.expect_nobody()?;
    mounted.unmount()?;

    let unsynced = match torn {
        true => Unsynced::Torn(dice),
        false => Unsynced::Lost,
    };
    let mounted = Mounted::at(victim.ground().path(), disk.clone())?;
    mounted.disk().cut(unsynced);
    victim.audit_after_power_cut()?;
    mounted.unmount()
}
