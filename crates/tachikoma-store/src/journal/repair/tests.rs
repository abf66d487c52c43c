//! A journal is destroyed in every way under its writer, and goes on without a gap in what it knows.

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

    /// Heals, writes on, and checks that what is on disk is what the loop knows.
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
        assert_eq!(replayed, self.state, "a later runner finds all of it");
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
fn a_journal_that_nobody_touched_is_whole() {
    let mut bench = Bench::new();
    assert_eq!(bench.journal.damage(), None);
    bench.journal.next_segment(&mut bench.state, now()).unwrap();
    assert_eq!(bench.journal.damage(), None);
    let (journal, _) = open_journal(&bench.dir, &Encryption::plain()).unwrap();
    assert_eq!(journal.damage(), None, "nor one that was opened");
}

#[test]
fn what_was_deleted_is_restored_from_the_open_file() {
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
        assert_eq!(names.len(), 1, "nothing temporary is left");
        assert_eq!(
            repaired.how,
            "its file was gone; it was restored from the open file"
        );
    }
}

#[test]
fn segments_that_are_lost_are_named_and_the_rest_is_enough() {
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
    assert_eq!(seqs, [4, 5], "from the segment that was open");
}

#[test]
fn another_file_in_its_place_is_kept_and_makes_way() {
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
    assert_eq!(bench.quarantined().len(), 2, "never overwritten");
}

#[test]
fn things_in_the_place_of_directories_make_way() {
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

/// What cannot be trusted lies in the quarantine, and a new segment continues from the full state.
#[track_caller]
fn check_changed(change: impl Fn(&Path)) {
    let mut bench = Bench::new();
    bench.journal.next_segment(&mut bench.state, now()).unwrap();
    bench.write("fourth");
    let first = fs::read(bench.path(1)).unwrap();
    change(&bench.path(2));
    let found = fs::read_to_string(bench.path(2)).unwrap_or_default();
    let damage = bench.journal.damage().expect("it is noticed");
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
fn a_journal_that_was_emptied_or_cut_or_grew_is_not_trusted() {
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
fn other_bytes_of_the_same_length_are_noticed_at_the_end() {
    check_changed(|path| {
        let mut bytes = fs::read(path).unwrap();
        bytes.fill(b'x');
        fs::write(path, bytes).unwrap();
    });
}

#[test]
fn a_file_that_was_emptied_and_deleted_is_not_restored_from_nothing() {
    check_changed(|path| {
        fs::write(path, "").unwrap();
        fs::remove_file(path).unwrap();
    });
}

#[test]
fn damage_in_the_middle_of_a_deleted_file_is_not_restored() {
    check_changed(|path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[20] ^= 1;
        fs::write(path, bytes).unwrap();
        fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_segment_that_is_missing_without_a_word_is_damage() {
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
        "the oldest that is there is enough"
    );
}

/// The look is made at every iteration's end; `--nocapture` shows what it costs.
#[test]
fn a_look_costs_microseconds() {
    let bench = Bench::new();
    let look = |_: u32| {
        let start = tachikoma_runtime::clock::monotonic();
        assert_eq!(bench.journal.damage(), None);
        start.elapsed()
    };
    // One in the middle: a machine that stalls makes a few of them longer.
    let mut looks: Vec<_> = (0..1_000).map(look).collect();
    looks.sort();
    let median = looks[looks.len() / 2];
    let _ = writeln!(std::io::stderr(), "a look at the journal: {median:?}");
    assert!(median < std::time::Duration::from_millis(1), "{median:?}");
}
