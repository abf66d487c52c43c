//! The journal file is damaged in several ways while a loop runs, and the repair loses no record.

use crate::encryption::Encryption;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tachikoma_core::{Input, LoopEvent, LoopId, Policy, Seq, step};

use super::*;
use crate::journal::{read_records, read_state};
use crate::recover::open_journal;

struct Bench {
    place: tempfile::TempDir,
    dir: PathBuf,
    journal: Journal,
    state: State,
}

fn now() -> Timestamp {
    Timestamp::from_millis(1_000)
}

impl Bench {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join(".ralph/loops/a");
        let (journal, state) =
            Journal::create(&dir, LoopId::from_u128(1), now(), &Encryption::plain()).unwrap();
        let mut bench = Self {
            place,
            dir,
            journal,
            state,
        };
        bench.write("first");
        bench.write("second");
        bench
    }

    fn write(&mut self, warning: &str) {
        let warning = warning.to_owned();
        let input = Input::Warning { warning };
        let done = step(&Policy::default(), &mut self.state, now(), input);
        self.journal.append_synced(&done.records).unwrap();
    }

    fn path(&self, segment: u32) -> PathBuf {
        self.dir.join(segment_name(segment))
    }

    /// Repairs the journal, appends a record, and checks that the state on disk equals the state in memory.
    #[track_caller]
    fn repair(&mut self, expected: JournalDamage) -> JournalRepair {
        assert_eq!(self.journal.damage(), Some(expected));
        let repaired = self
            .journal
            .repair(expected, &mut self.state, now())
            .unwrap();
        assert_eq!(self.journal.damage(), None, "repaired");
        self.write("third");
        assert_eq!(
            read_state(&self.dir, &Encryption::plain()).unwrap(),
            self.state
        );
        let (_, replayed) = open_journal(&self.dir, &Encryption::plain()).unwrap();
        assert_eq!(replayed, self.state, "the next runner finds all records");
        repaired
    }

    fn quarantined(&self) -> Vec<(String, String)> {
        let Ok(entries) = fs::read_dir(self.place.path().join(".ralph/quarantine")) else {
            return Vec::new();
        };
        let mut found: Vec<_> = entries
            .map(|entry| {
                let entry = entry.unwrap();
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect();
        found.sort();
        found
    }
}

#[test]
fn unchanged_journal_has_no_damage() {
    let mut bench = Bench::new();
    assert_eq!(bench.journal.damage(), None);
    bench.journal.next_segment(&mut bench.state, now()).unwrap();
    assert_eq!(bench.journal.damage(), None);
    let (journal, _) = open_journal(&bench.dir, &Encryption::plain()).unwrap();
    assert_eq!(
        journal.damage(),
        None,
        "a reopened journal has no damage either"
    );
}

#[test]
fn deleted_journal_is_restored_from_the_open_file() {
    for deleted in [".ralph", ".ralph/loops", ".ralph/loops/a"] {
        let mut bench = Bench::new();
        let before = fs::read(bench.path(1)).unwrap();
        fs::remove_dir_all(bench.place.path().join(deleted)).unwrap();
        let repaired = bench.repair(JournalDamage::Gone);
        assert!(repaired.opened.is_none(), "no record is lost");
        assert!(fs::read(bench.path(1)).unwrap().starts_with(&before));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&bench.path(1)), 0o600);
        for dir in bench.dir.ancestors().take(3) {
            assert_eq!(mode(dir), 0o700, "{}", dir.display());
        }
        let names: Vec<_> = fs::read_dir(&bench.dir).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left");
        assert_eq!(
            repaired.how,
            "the file was missing; the runner restored it from its open file"
        );
    }
}

#[test]
fn lost_segments_are_reported_and_the_rest_is_used() {
    let mut bench = Bench::new();
    bench.journal.next_segment(&mut bench.state, now()).unwrap();
    fs::remove_dir_all(bench.place.path().join(".ralph")).unwrap();
    let repaired = bench.repair(JournalDamage::Gone);
    assert!(
        repaired
            .how
            .ends_with("the segments before number 2 are lost"),
        "{}",
        repaired.how
    );
    let mut seqs = Vec::new();
    read_records(&bench.dir, &Encryption::plain(), Seq(0), |record| {
        seqs.push(record.seq.0);
    })
    .unwrap();
    assert_eq!(seqs, [4, 5], "records from the segment that was open");
}

#[test]
fn foreign_file_in_place_of_the_journal_moves_to_quarantine() {
    let mut bench = Bench::new();
    fs::remove_file(bench.path(1)).unwrap();
    fs::write(bench.path(1), "mine").unwrap();
    let repaired = bench.repair(JournalDamage::Replaced);
    assert!(repaired.opened.is_none());
    let expected = ("journal-0001.jsonl.1".to_owned(), "mine".to_owned());
    assert_eq!(bench.quarantined(), [expected]);
    fs::remove_file(bench.path(1)).unwrap();
    fs::create_dir(bench.path(1)).unwrap();
    bench.repair(JournalDamage::Replaced);
    assert_eq!(
        bench.quarantined().len(),
        2,
        "the foreign file is not overwritten"
    );
}

#[test]
fn files_in_place_of_directories_move_to_quarantine() {
    for part in [".ralph", ".ralph/loops", ".ralph/loops/a"] {
        let mut bench = Bench::new();
        let path = bench.place.path().join(part);
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        bench.repair(JournalDamage::Gone);
        let kept = match part {
            ".ralph" => bench.place.path().join(".ralph.1"),
            _ => bench
                .place
                .path()
                .join(".ralph/quarantine")
                .join(format!("{}.1", path.file_name().unwrap().display())),
        };
        assert_eq!(fs::read_to_string(kept).unwrap(), "mine");
    }
}

/// Checks that the changed file is in the quarantine, and that a new segment continues from the full state.
#[track_caller]
fn check_changed(change: impl Fn(&Path)) {
    let mut bench = Bench::new();
    bench.journal.next_segment(&mut bench.state, now()).unwrap();
    bench.write("fourth");
    let first = fs::read(bench.path(1)).unwrap();
    change(&bench.path(2));
    let found = fs::read_to_string(bench.path(2)).unwrap_or_default();
    let damage = bench.journal.damage().expect("the damage is detected");
    let repaired = bench.repair(damage);
    assert!(matches!(
        repaired.opened.unwrap().event,
        LoopEvent::SegmentOpened {
            segment: 3,
            after_loss: true,
            ..
        }
    ));
    assert_eq!(fs::read(bench.path(1)).unwrap(), first, "untouched");
    if damage == JournalDamage::Changed {
        let expected = ("journal-0002.jsonl.1".to_owned(), found);
        assert_eq!(bench.quarantined(), [expected]);
    }
    assert!(!bench.path(2).exists());
}

#[test]
fn emptied_truncated_or_extended_journal_starts_a_new_segment() {
    check_changed(|path| fs::write(path, "").unwrap());
    check_changed(|path| {
        let len = fs::metadata(path).unwrap().len();
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(len - 5).unwrap();
    });
    check_changed(|path| {
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"x").unwrap();
    });
}

#[test]
fn changed_last_lines_of_the_journal_are_detected() {
    check_changed(|path| {
        let mut bytes = fs::read(path).unwrap();
        bytes.fill(b'x');
        fs::write(path, bytes).unwrap();
    });
}

#[test]
fn journal_that_was_emptied_and_then_deleted_continues_in_a_new_segment() {
    check_changed(|path| {
        fs::write(path, "").unwrap();
        fs::remove_file(path).unwrap();
    });
}

#[test]
fn deleted_journal_with_damage_is_not_restored() {
    check_changed(|path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[20] ^= 1;
        fs::write(path, bytes).unwrap();
        fs::remove_file(path).unwrap();
    });
}

#[test]
fn missing_segment_is_damage() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        bench.journal.next_segment(&mut bench.state, now()).unwrap();
    }
    fs::remove_file(bench.path(2)).unwrap();
    let error = read_state(&bench.dir, &Encryption::plain()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    fs::remove_file(bench.path(1)).unwrap();
    assert_eq!(
        read_state(&bench.dir, &Encryption::plain()).unwrap(),
        bench.state,
        "the oldest existing segment is enough"
    );
}

/// This check runs after every iteration. `--nocapture` prints its duration.
#[test]
fn check_of_an_unchanged_journal_takes_microseconds() {
    let bench = Bench::new();
    let look = |_: u32| {
        let start = tachikoma_runtime::clock::monotonic();
        assert_eq!(bench.journal.damage(), None);
        start.elapsed()
    };
    // The median is used, because a busy machine makes some measurements longer.
    let mut looks: Vec<_> = (0..1_000).map(look).collect();
    looks.sort();
    let median = looks[looks.len() / 2];
    let _ = writeln!(std::io::stderr(), "a look at the journal: {median:?}");
    assert!(median < std::time::Duration::from_millis(1), "{median:?}");
}
