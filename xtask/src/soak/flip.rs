//! A journal and a snapshot in which one byte is changed, missing or added: each is found, wherever it is.

use std::fmt;
use std::fs;
use std::path::Path;

use tachikoma_core::State;
use tachikoma_loop_runner::store::{journal, snapshot};
use tempfile::TempDir;

use super::audit::SNAPSHOT;
use super::dice::Dice;
use super::victim::{PATIENCE, Victim};
use crate::product::{self, text};

/// Iterations of the journal that is damaged: several hundred records.
const ITERATIONS: u32 = 120;

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let victim = Victim::new(&product)?;
    let code = victim.start_up_to(ITERATIONS)?.wait(PATIENCE)?;
    if code != Some(3) {
        return Err(format!("no journal to damage: exit code {code:?}"));
    }
    let journal = fs::read(victim.journal()?).map_err(text)?;
    let records = journal.iter().filter(|byte| **byte == b'\n').count();
    let torn = damage_journal(&journal, rounds)?;
    let snapshot = damage_snapshot(&victim.ground().path().join(SNAPSHOT))?;
    Ok(format!(
        "{rounds} damages to a journal of {records} records in {} KiB, all found but {torn} that only tear its last line; \
         each of the {snapshot} bytes of a snapshot changed, taken away and preceded by another, all found",
        journal.len() / 1024
    ))
}

/// Damages a journal in random places, and returns how often only its last line was torn: that is what a runner
/// leaves that dies while it writes, and the record was never acknowledged.
fn damage_journal(whole: &[u8], rounds: u32) -> Result<u32, String> {
    let scratch = TempDir::new().map_err(text)?;
    let read = |bytes: &[u8]| -> Result<State, String> {
        fs::write(scratch.path().join("journal-0001.jsonl"), bytes).map_err(text)?;
        journal::read_state(scratch.path()).map_err(|error| tachikoma_loop_runner::chain(&error))
    };
    let untouched = read(whole).map_err(|error| format!("without damage: {error}"))?;
    let mut dice = Dice::shaken();
    let mut torn = 0;
    for _ in 0..rounds {
        let damage = Damage::random(whole, &mut dice);
        let Ok(state) = read(&damage.done_to(whole)) else {
            continue;
        };
        let tears_last_line = damage.at + 1 >= whole.len();
        if !tears_last_line {
            return Err(format!("not found: {damage}"));
        }
        // Something behind the end is cut off; without its end, the last record is.
        if state.seq > untouched.seq || state.seq.next() < untouched.seq {
            return Err(format!("more than the last record is lost: {damage}"));
        }
        torn += 1;
    }
    Ok(torn)
}

/// Damages each byte of a snapshot in turn, and returns how many there are.
fn damage_snapshot(path: &Path) -> Result<usize, String> {
    let whole = fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    let scratch = TempDir::new().map_err(text)?;
    let copy = scratch.path().join("state.json");
    let is_read = |bytes: &[u8]| {
        fs::write(&copy, bytes).map_err(text)?;
        Ok::<_, String>(snapshot::read(&copy).is_ok())
    };
    if !is_read(&whole)? {
        return Err("a snapshot without damage is not read".into());
    }
    let mut dice = Dice::shaken();
    for at in 0..whole.len() {
        let changed = Kind::Changed(other_than(whole[at], &mut dice));
        for kind in [changed, Kind::Missing, Kind::Added(dice.byte())] {
            let damage = Damage { at, kind };
            if is_read(&damage.done_to(&whole))? {
                return Err(format!("not found in the snapshot: {damage}"));
            }
        }
    }
    Ok(whole.len())
}

/// One byte that is not as it was.
#[derive(Debug)]
struct Damage {
    at: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Changed(u8),
    Missing,
    Added(u8),
}

impl Damage {
    fn random(whole: &[u8], dice: &mut Dice) -> Self {
        let at = dice.below(whole.len());
        let kind = match dice.below(4) {
            0 => Kind::Missing,
            1 => Kind::Added(dice.byte()),
            // One bit, as hardware does it.
            2 => Kind::Changed(whole[at] ^ (1 << dice.below(8))),
            _ => Kind::Changed(other_than(whole[at], dice)),
        };
        Self { at, kind }
    }

    fn done_to(&self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        match self.kind {
            Kind::Changed(to) => bytes[self.at] = to,
            Kind::Missing => {
                bytes.remove(self.at);
            }
            Kind::Added(byte) => bytes.insert(self.at, byte),
        }
        bytes
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match self.kind {
            Kind::Changed(to) => write!(f, "byte {at} changed to {to:#04x}"),
            Kind::Missing => write!(f, "byte {at} missing"),
            Kind::Added(byte) => write!(f, "{byte:#04x} added before byte {at}"),
        }
    }
}

fn other_than(byte: u8, dice: &mut Dice) -> u8 {
    // 1 to 255, so never the same again.
    byte.wrapping_add(u8::try_from(1 + dice.below(255)).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damage_is_one_byte_and_never_none() {
        let mut dice = Dice::from_seed(7);
        for _ in 0..1000 {
            let damage = Damage::random(b"whole", &mut dice);
            let done = damage.done_to(b"whole");
            assert_ne!(done, b"whole", "{damage}");
            assert!(done.len().abs_diff(5) <= 1, "{damage}");
        }
    }
}
