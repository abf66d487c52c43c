//! Recovery on a real disk: after any damage, either no record is lost, or the loop does not continue.

mod backups;
mod closed;
mod hurt;

use crate::encryption::Encryption;
use std::time::Duration;

use tachikoma_core::{AgentInput, Exit, Input, Launch, Policy, Runner, Seq, Timestamp, step};

use super::*;
use crate::journal::Journal;
use crate::snapshot::{Durability, Packing, Snapshot};

/// A loop with some iterations, and a snapshot that was written in the middle.
struct Place {
    dir: tempfile::TempDir,
    state: State,
    /// Number of lines that the journal had when the snapshot was written.
    lines: usize,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let loop_id = LoopId::from_u128(1);
        let now = Timestamp::from_millis(1_000);
        let (mut journal, mut state) =
            Journal::create(&dir.path().join("l"), loop_id, now, &Encryption::plain()).unwrap();
        let policy = Policy {
            iteration_delay: Duration::ZERO,
            ..Policy::default()
        };
        let runner = Runner {
            pid: 1,
            since: now,
            containment: "guard".to_owned(),
            follows_until: None,
            repository: None,
        };
        let start = Input::Start {
            launch: Launch::default(),
            runner,
        };
        journal
            .append_synced(&step(&policy, &mut state, now, start).records)
            .unwrap();
        let mut place = Self {
            dir,
            state,
            lines: 0,
        };
        for iteration in 0..6 {
            if iteration == 3 {
                let snapshot = Snapshot::of(&place.state, Path::new("/w"), now);
                snapshot
                    .write(
                        &place.snapshot(),
                        Packing::Plain,
                        Durability::Synced,
                        &Encryption::plain(),
                    )
                    .unwrap();
                place.lines = std::fs::read_to_string(place.journal())
                    .unwrap()
                    .lines()
                    .count();
            }
            let generation = place.state.generation;
            let exit = Exit::Code(0);
            for news in [
                AgentInput::Launched { pid: 7 },
                AgentInput::Exited {
                    exit,
                    claimed: false,
                    stop_pattern: None,
                    leftovers: Vec::new(),
                    last_words: None,
                    problem: None,
                },
            ] {
                let input = Input::Agent {
                    generation,
                    event: news,
                };
                journal
                    .append_synced(&step(&policy, &mut place.state, now, input).records)
                    .unwrap();
            }
        }
        place
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("l/journal-0001.jsonl")
    }

    fn snapshot(&self) -> PathBuf {
        self.dir.path().join("state.json")
    }

    fn read(&self, loss: Loss) -> Result<Recovered, StoreError> {
        let copies = Copies {
            encryption: Encryption::plain(),
            snapshot: self.snapshot(),
            backups: self.dir.path().join("backups"),
        };
        read(&self.dir(), &copies, self.state.loop_id, loss)
    }

    fn dir(&self) -> PathBuf {
        self.dir.path().join("l")
    }

    /// Writes the snapshot of a state.
    fn save(&self, state: &State) {
        Snapshot::of(state, Path::new("/w"), Timestamp::default())
            .write(
                &self.snapshot(),
                Packing::Plain,
                Durability::Lazy,
                &Encryption::plain(),
            )
            .unwrap();
    }

    /// Returns the names and contents of the files in the quarantine.
    fn quarantined(&self) -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(self.dir.path().join(".ralph/quarantine"));
        let mut kept: Vec<_> = entries
            .into_iter()
            .flatten()
            .map(|entry| {
                let entry = entry.unwrap();
                let bytes = std::fs::read(entry.path()).unwrap_or_default();
                (entry.file_name().into_string().unwrap(), bytes)
            })
            .collect();
        kept.sort();
        kept
    }

    /// Opens the journal as a runner does, and checks that the next runner finds the same state.
    fn open(&self, loss: Loss) -> State {
        let found = self.read(loss).unwrap();
        let taken = found
            .open(&self.dir.path().join("l"), self.dir.path())
            .unwrap();
        let state = taken.state;
        drop(taken.journal);
        assert_eq!(
            self.read(Loss::Refuse).unwrap().state,
            state,
            "the next runner finds the same state"
        );
        state
    }

    /// Damages a line of the journal. Line numbers start at 1.
    fn damage(&self, line: usize) {
        let text = std::fs::read_to_string(self.journal()).unwrap();
        let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
        lines[line - 1] = lines[line - 1].replace("loop_", "lo0p_");
        std::fs::write(self.journal(), lines.concat()).unwrap();
    }
}

#[test]
fn recovery_from_snapshot_and_from_journal_gives_the_same_state() {
    let place = Place::new();
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(
        (&found.state, found.source),
        (&place.state, Source::Snapshot)
    );
    assert_eq!(found.troubles, [""; 0]);
    std::fs::remove_file(place.snapshot()).unwrap();
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(
        (&found.state, found.source),
        (&place.state, Source::Journal)
    );
    assert_eq!(place.open(Loss::Refuse), place.state);
}

#[test]
fn damaged_snapshot_is_moved_to_the_quarantine_and_the_journal_is_used() {
    let place = Place::new();
    std::fs::write(place.snapshot(), "{\n  \"version\": 1, oops").unwrap();
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(
        (&found.state, found.source),
        (&place.state, Source::Journal)
    );
    assert_eq!(found.troubles.len(), 1, "{:?}", found.troubles);
    let opened = place.open(Loss::Refuse);
    assert_eq!(opened.stats, place.state.stats);
    assert_eq!(
        opened.seq,
        place.state.seq.next(),
        "the warning is recorded"
    );
    assert_eq!(
        std::fs::read_dir(place.dir.path().join(".ralph/quarantine"))
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn damage_before_the_snapshot_is_tolerated_and_damage_after_it_is_refused() {
    let total = std::fs::read_to_string(Place::new().journal())
        .unwrap()
        .lines()
        .count();
    for line in 1..=total {
        let place = Place::new();
        place.damage(line);
        let found = place.read(Loss::Refuse);
        if line <= place.lines {
            let found = found.unwrap_or_else(|error| panic!("line {line}: {error}"));
            assert_eq!(found.state, place.state, "line {line}");
        } else {
            assert!(
                matches!(found, Err(StoreError::Damaged { line: at, .. }) if at == line),
                "line {line}"
            );
            let state = place.open(Loss::Accept);
            assert!(
                state.stats.iterations <= place.state.stats.iterations
                    && state.seq.0 <= line as u64 + 1,
                "line {line}: records after the damage are dropped, a new segment starts, and the loss is recorded"
            );
            assert_eq!(
                std::fs::read_dir(place.dir.path().join(".ralph/quarantine"))
                    .unwrap()
                    .count(),
                1
            );
        }
    }
}

#[test]
fn damaged_record_number_does_not_hide_the_record() {
    let place = Place::new();
    let text = std::fs::read_to_string(place.journal()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (last, before) = lines.split_last().unwrap();
    let number = format!("{{\"seq\":{}", place.state.seq);
    for covered in 0..=place.lines {
        let hidden = last.replace(&number, &format!("{{\"seq\":{covered}"));
        assert_ne!(hidden, *last);
        std::fs::write(
            place.journal(),
            format!("{}\n{hidden}\n", before.join("\n")),
        )
        .unwrap();
        let found = place.read(Loss::Refuse);
        assert!(
            matches!(found, Err(StoreError::Damaged { line, .. }) if line == lines.len()),
            "{covered}: {found:?}"
        );
        let dir = place.dir.path().join("l");
        assert!(
            journal::read_state(&dir, &Encryption::plain()).is_err(),
            "{covered}"
        );
        let seen =
            journal::read_records(&dir, &Encryption::plain(), Seq(place.lines as u64), |_| ());
        assert!(seen.is_err(), "{covered}");
    }
}

#[test]
fn journal_older_than_the_snapshot_continues_in_a_new_segment() {
    let place = Place::new();
    let snapshot = Snapshot::of(&place.state, Path::new("/w"), Timestamp::default());
    snapshot
        .write(
            &place.snapshot(),
            Packing::Plain,
            Durability::Lazy,
            &Encryption::plain(),
        )
        .unwrap();
    let text = std::fs::read_to_string(place.journal()).unwrap();
    let half: String = text
        .lines()
        .take(4)
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(place.journal(), half).unwrap();
    let state = place.open(Loss::Refuse);
    assert_eq!(state.stats, place.state.stats);
    assert!(place.dir.path().join("l/journal-0002.jsonl").exists());
    let whole = journal::read_state(&place.dir.path().join("l"), &Encryption::plain()).unwrap();
    assert_eq!(whole, state, "the whole journal can still be read");
}

#[test]
fn snapshot_of_another_loop_is_ignored() {
    let place = Place::new();
    let other = State::new(LoopId::from_u128(2));
    Snapshot::of(&other, Path::new("/w"), Timestamp::default())
        .write(
            &place.snapshot(),
            Packing::Plain,
            Durability::Lazy,
            &Encryption::plain(),
        )
        .unwrap();
    assert_eq!(place.read(Loss::Refuse).unwrap().state, place.state);
}

/// A conversion step of a future format version. It only adds a mark to the value.
fn leave_a_trace(mut value: serde_json::Value) -> Result<serde_json::Value, String> {
    let launch = &mut value["event"]["launch"]["agent"];
    if launch.is_string() {
        *launch = "led on".into();
    }
    let state = &mut value["state"]["custom"];
    if state.is_object() {
        state["trace"] = 1.into();
    }
    Ok(value)
}

const TOMORROW: Chain = Chain::new(&[leave_a_trace]);

#[test]
fn older_journal_format_continues_in_a_new_segment() {
    let there = Place::new();
    std::fs::remove_file(there.snapshot()).unwrap();
    let before = std::fs::read(there.journal()).unwrap();
    let (dir, snapshot) = (there.dir.path().join("l"), there.snapshot());
    let place = super::Place {
        dir: &dir,
        copies: &Copies::only(&snapshot, &Encryption::plain()),
        loop_id: LoopId::from_u128(1),
        journals: TOMORROW,
        snapshots: TOMORROW,
    };
    let found = read_at(&place, Loss::Refuse).unwrap();
    assert_eq!(found.state.launch.agent, "led on");
    assert_eq!(found.state.seq, there.state.seq);

    // Records of the new format version are not appended to a segment of the old one.
    let state = found.open(&dir, there.dir.path()).unwrap().state;
    assert_eq!(std::fs::read(there.journal()).unwrap(), before);
    assert_eq!(journal::segments(&dir).unwrap().len(), 2);
    assert_eq!(state.seq, there.state.seq.next());
}

#[test]
fn snapshot_of_an_older_version_is_upgraded_and_the_old_file_is_kept() {
    let there = Place::new();
    let before = std::fs::read(there.snapshot()).unwrap();
    let (dir, snapshot) = (there.dir.path().join("l"), there.snapshot());
    let place = super::Place {
        dir: &dir,
        copies: &Copies::only(&snapshot, &Encryption::plain()),
        loop_id: LoopId::from_u128(1),
        journals: migrate::JOURNAL,
        snapshots: TOMORROW,
    };
    let found = read_at(&place, Loss::Refuse).unwrap();
    assert_eq!(found.source, Source::Snapshot);
    assert_eq!(found.state.custom["trace"], 1);
    found.open(&dir, there.dir.path()).unwrap();
    let mut kept = snapshot.into_os_string();
    kept.push(".v1");
    assert_eq!(std::fs::read(kept).unwrap(), before);
}
