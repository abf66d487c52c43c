//! Changes, removes or adds one byte of a journal or a snapshot, and checks that the damage is detected.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use tachikoma_core::State;
use tachikoma_loop_runner::chain;
use tachikoma_loop_runner::store::encryption::Encryption;
use tachikoma_loop_runner::store::recover::{self, Copies, Loss};
use tachikoma_loop_runner::store::snapshot::{self, Durability, Packing, Snapshot};
use tachikoma_loop_runner::store::{compressed, journal};
use tempfile::TempDir;

use super::audit::SNAPSHOT;
use super::dice::Dice;
use super::encrypted;
use super::victim::{PATIENCE, Victim};
use crate::encryption::encryption_of;
use crate::product::{self, text};

/// Number of iterations of the damaged journal. It has several hundred records.
const ITERATIONS: u32 = 120;

/// Number of rounds from which every byte is tried. With fewer rounds only some are tried, because encrypted files take
/// milliseconds to open.
const EXHAUSTIVE: u32 = 10_000;

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let plain = mistreat(&Victim::new(&product)?, rounds)?;
    let victim = Victim::new(&product)?.configured(encrypted::SETTINGS)?;
    let encrypted = mistreat(&victim, rounds)?;
    Ok(format!("{plain}; encrypted: {encrypted}"))
}

fn mistreat(victim: &Victim, rounds: u32) -> Result<String, String> {
    let encryption = encryption_of(victim.ground().path());
    let code = victim.start_up_to(ITERATIONS)?.wait(PATIENCE)?;
    if code != Some(3) {
        return Err(format!("no journal to damage: exit code {code:?}"));
    }
    let journal = fs::read(victim.journal()?).map_err(text)?;
    let records = journal.iter().filter(|byte| **byte == b'\n').count();
    let found = damage_journals(&journal, rounds, &encryption)?;
    let snapshot = victim.ground().path().join(SNAPSHOT);
    let snapshot = damage_snapshot(&snapshot, stride(rounds), &encryption)?;
    Ok(format!(
        "{rounds} damages to a journal of {records} records in {} KiB, plain and closed, with a snapshot and without: {found} \
         refused, and the state whole in all others; {snapshot} bytes of a snapshot, each changed, taken away and \
         preceded by another, all found",
        journal.len() / 1024
    ))
}

/// A journal to damage, and the state that is recovered from it without damage.
struct Case {
    name: &'static str,
    scratch: TempDir,
    /// Path of the segment to damage.
    segment: PathBuf,
    whole: Vec<u8>,
    state: State,
    encryption: Encryption,
}

impl Case {
    /// Creates a loop with that journal: with or without a snapshot from the middle of it, and closed or open.
    fn new(
        name: &'static str,
        journal: &[u8],
        has_snapshot: bool,
        is_closed: bool,
        encryption: &Encryption,
    ) -> Result<Self, String> {
        let scratch = TempDir::new().map_err(text)?;
        let mut segment = scratch.path().join("journal-0001.jsonl");
        if has_snapshot {
            let lines: Vec<&[u8]> = journal.split_inclusive(|byte| *byte == b'\n').collect();
            fs::write(&segment, lines[..lines.len() / 2].concat()).map_err(text)?;
            let half = read_state(scratch.path(), encryption)?;
            Snapshot::of(&half, scratch.path(), half.time)
                .write(
                    &scratch.path().join("state.json"),
                    Packing::Plain,
                    Durability::Lazy,
                    encryption,
                )
                .map_err(|error| chain(&error))?;
        }
        fs::write(&segment, journal).map_err(text)?;
        let state = read_state(scratch.path(), encryption)?;
        if is_closed {
            compressed::replace(&segment, encryption, &AtomicBool::new(false)).map_err(text)?;
            segment.set_extension("jsonl.zst");
            // The second segment is empty, because its runner died before the first record. So the whole closed segment is read.
            fs::write(scratch.path().join("journal-0002.jsonl"), "").map_err(text)?;
        }
        let whole = fs::read(&segment).map_err(text)?;
        let case = Self {
            name,
            scratch,
            segment,
            whole,
            state,
            encryption: encryption.clone(),
        };
        match case.resume() {
            Ok(found) if found == case.state => Ok(case),
            Ok(_) => Err(format!("{name}: another state is found without damage")),
            Err(error) => Err(format!("{name}: without damage: {error}")),
        }
    }

    /// Recovers the state in the same way as the commands `run`, `status` and `state`.
    fn resume(&self) -> Result<State, String> {
        let dir = self.scratch.path();
        let snapshot = dir.join("state.json");
        recover::read(
            dir,
            &Copies::only(&snapshot, &self.encryption),
            self.state.loop_id,
            Loss::Refuse,
        )
        .map(|found| found.state)
        .map_err(|error| chain(&error))
    }

    /// Returns whether recovery rejects the damaged journal. If it does not, the recovered state must be complete.
    fn refuses(&self, damage: &Damage) -> Result<bool, String> {
        fs::write(&self.segment, damage.done_to(&self.whole)).map_err(text)?;
        match self.resume() {
            Err(_) => Ok(true),
            Ok(found) if found == self.state => Ok(false),
            Ok(_) => Err(format!("{}: not found: {damage}", self.name)),
        }
    }
}

fn read_state(dir: &Path, encryption: &Encryption) -> Result<State, String> {
    journal::read_state(dir, encryption).map_err(|error| chain(&error))
}

/// Damages journals at random positions. Returns how often recovery rejected the journal.
fn damage_journals(journal: &[u8], rounds: u32, encryption: &Encryption) -> Result<u32, String> {
    let cases = [
        Case::new("alone", journal, false, false, encryption)?,
        Case::new("with a snapshot", journal, true, false, encryption)?,
        Case::new("closed", journal, false, true, encryption)?,
        Case::new("closed, with a snapshot", journal, true, true, encryption)?,
    ];
    let mut dice = Dice::shaken();
    let mut refused = 0;
    for round in 0..rounds as usize {
        let case = &cases[round % cases.len()];
        let damage = Damage::random(&case.whole, &mut dice);
        refused += u32::from(case.refuses(&damage)?);
    }
    // Damage to the last bytes looks like a runner that died while it wrote, so these bytes are left out.
    for case in &cases {
        let last = case.whole.len() - 1;
        for byte in (0..=u8::MAX).step_by(stride(rounds)) {
            let other = case.whole[last].wrapping_add(byte.max(1));
            for (at, kind) in [
                (last, Kind::Changed(other)),
                (last, Kind::Added(byte)),
                (last + 1, Kind::Added(byte)),
                (last, Kind::Missing),
            ] {
                case.refuses(&Damage { at, kind })?;
            }
        }
    }
    Ok(refused)
}

/// Returns the distance between tried positions.
fn stride(rounds: u32) -> usize {
    EXHAUSTIVE.div_ceil(rounds.max(1)) as usize
}

/// Damages bytes of a snapshot one after the other. Returns their number.
fn damage_snapshot(path: &Path, stride: usize, encryption: &Encryption) -> Result<usize, String> {
    let path = &snapshot::place(path, encryption);
    let whole = fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    let scratch = TempDir::new().map_err(text)?;
    let copy = scratch.path().join("state.json");
    let is_read = |bytes: &[u8]| {
        fs::write(&copy, bytes).map_err(text)?;
        Ok::<_, String>(snapshot::read(&copy, encryption).is_ok())
    };
    if !is_read(&whole)? {
        return Err("a snapshot without damage is not read".into());
    }
    let mut dice = Dice::shaken();
    let tried = (0..whole.len()).step_by(stride);
    for at in tried.clone() {
        let changed = Kind::Changed(other_than(whole[at], &mut dice));
        for kind in [changed, Kind::Missing, Kind::Added(dice.byte())] {
            let damage = Damage { at, kind };
            if is_read(&damage.done_to(&whole))? {
                return Err(format!("not found in the snapshot: {damage}"));
            }
        }
    }
    Ok(tried.len())
}

/// Damage of one byte.
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
            // One bit is flipped, as by a hardware error.
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
    // The difference is 1 to 255, so the value always changes.
    byte.wrapping_add(u8::try_from(1 + dice.below(255)).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_damage_always_changes_the_content() {
        let mut dice = Dice::from_seed(7);
        for _ in 0..1000 {
            let damage = Damage::random(b"whole", &mut dice);
            let done = damage.done_to(b"whole");
            assert_ne!(done, b"whole", "{damage}");
            assert!(done.len().abs_diff(5) <= 1, "{damage}");
        }
    }
}
