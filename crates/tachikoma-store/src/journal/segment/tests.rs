//! Journals with compressed segments, and every state in which a crash may leave them.

use crate::encryption::Encryption;
use std::fs;

use tachikoma_core::{LoopId, Seq, State, Timestamp};

use super::*;
use crate::journal::{Journal, begun, read_records, read_state};
use crate::recover::open_journal;

static NOT_CANCELED: AtomicBool = AtomicBool::new(false);

/// Creates a journal of three segments. The first two are closed.
fn three(place: &Path) -> (Journal, State) {
    let now = Timestamp::from_millis(5);
    let made = Journal::create(
        &place.join(".ralph/loops/a"),
        LoopId::from_u128(1),
        now,
        &Encryption::plain(),
    );
    let (mut journal, mut state) = made.unwrap();
    for _ in 0..2 {
        journal.next_segment(&mut state, now).unwrap();
    }
    (journal, state)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

const COMPRESSED: [&str; 3] = [
    "journal-0001.jsonl.zst",
    "journal-0002.jsonl.zst",
    "journal-0003.jsonl",
];

/// Checks that state, records and start time of the journal can be read.
#[track_caller]
fn check_whole(dir: &Path, state: &State) {
    assert_eq!(read_state(dir, &Encryption::plain()).unwrap(), *state);
    let mut seqs = Vec::new();
    read_records(dir, &Encryption::plain(), Seq(0), |record| {
        seqs.push(record.seq.0);
    })
    .unwrap();
    assert_eq!(seqs, (1..=state.seq.0).collect::<Vec<_>>());
    assert_eq!(
        begun(dir, &Encryption::plain()).unwrap(),
        Some(Timestamp::from_millis(5))
    );
}

#[test]
fn reading_starts_in_the_segment_of_the_first_wanted_record() {
    let place = tempfile::tempdir().unwrap();
    let (journal, _) = three(place.path());
    let dir = place.path().join(".ralph/loops/a");
    journal.closed().compress(&NOT_CANCELED).unwrap();
    fs::write(dir.join(COMPRESSED[0]), "torn").unwrap();
    for (after, expected) in [(1, &[2, 3][..]), (2, &[3]), (3, &[]), (7, &[])] {
        let mut seqs = Vec::new();
        read_records(&dir, &Encryption::plain(), Seq(after), |record| {
            seqs.push(record.seq.0);
        })
        .unwrap();
        assert_eq!(seqs, expected, "after {after}");
    }
    read_records(&dir, &Encryption::plain(), Seq(0), drop)
        .expect_err("the first segment is damaged");
}

#[test]
fn closed_segments_are_compressed_and_the_journal_continues() {
    let place = tempfile::tempdir().unwrap();
    let (journal, mut state) = three(place.path());
    let dir = place.path().join(".ralph/loops/a");
    let closed = journal.closed();
    closed.compress(&NOT_CANCELED).unwrap();
    assert_eq!(names(&dir), COMPRESSED);
    check_whole(&dir, &state);
    closed.compress(&NOT_CANCELED).unwrap();
    drop(journal);
    let (mut journal, replayed) = open_journal(&dir, &Encryption::plain()).unwrap();
    assert_eq!(replayed, state);
    let now = Timestamp::from_millis(9);
    journal.next_segment(&mut state, now).unwrap();
    check_whole(&dir, &state);
}

#[test]
fn compression_is_crash_safe_and_resumes() {
    let temp = "journal-0001.jsonl.zst.018f2f6e-0000-7000-8000-000000000000.tmp";
    // A crash leaves an incomplete temporary file, or both files, of which the compressed one may be incomplete.
    let crashes: [fn(&Path, &[u8], &str); 4] = [
        |dir, bytes, temp| fs::write(dir.join(temp), &bytes[..bytes.len() / 2]).unwrap(),
        |dir, bytes, temp| fs::write(dir.join(temp), bytes).unwrap(),
        |dir, bytes, _| fs::write(dir.join(COMPRESSED[0]), bytes).unwrap(),
        |dir, bytes, _| fs::write(dir.join(COMPRESSED[0]), &bytes[..bytes.len() / 2]).unwrap(),
    ];
    for crash in crashes {
        let place = tempfile::tempdir().unwrap();
        let (journal, state) = three(place.path());
        let dir = place.path().join(".ralph/loops/a");
        let first = dir.join("journal-0001.jsonl");
        let plain = fs::read(&first).unwrap();
        journal.closed().compress(&NOT_CANCELED).unwrap();
        let bytes = fs::read(dir.join(COMPRESSED[0])).unwrap();
        fs::remove_file(dir.join(COMPRESSED[0])).unwrap();
        fs::write(&first, plain).unwrap();
        crash(&dir, &bytes, temp);
        check_whole(&dir, &state);
        drop(journal);
        let (journal, _) = open_journal(&dir, &Encryption::plain()).unwrap();
        journal.closed().compress(&NOT_CANCELED).unwrap();
        assert_eq!(names(&dir), COMPRESSED, "no temporary file is left");
        check_whole(&dir, &state);
    }
}

#[test]
fn open_segment_is_never_compressed() {
    let place = tempfile::tempdir().unwrap();
    let (journal, _) = three(place.path());
    let dir = place.path().join(".ralph/loops/a");
    // A runner created this segment and could not write its first record.
    fs::write(dir.join("journal-0004.jsonl"), "").unwrap();
    journal.closed().compress(&NOT_CANCELED).unwrap();
    let mut expected = COMPRESSED.to_vec();
    expected.push("journal-0004.jsonl");
    assert_eq!(names(&dir), expected);
}

#[test]
fn damage_of_a_compressed_segment_is_described() {
    let place = tempfile::tempdir().unwrap();
    let (journal, _) = three(place.path());
    let dir = place.path().join(".ralph/loops/a");
    journal.closed().compress(&NOT_CANCELED).unwrap();
    let path = dir.join(COMPRESSED[0]);
    let whole = fs::read(&path).unwrap();
    let refused = || {
        let error = read_state(&dir, &Encryption::plain()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        let text = error.to_string();
        text.replace(dir.to_str().unwrap(), "a")
    };
    let whole_frame = |content: &str| {
        fs::remove_file(&path).unwrap();
        fs::write(dir.join("journal-0001.jsonl"), content).unwrap();
        compressed::replace(
            &dir.join("journal-0001.jsonl"),
            &Encryption::plain(),
            &NOT_CANCELED,
        )
        .unwrap();
    };
    let named = "journal a/journal-0001.jsonl.zst is damaged at line";
    for length in [0, 3, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let text = refused();
        assert!(
            text.starts_with(&format!("{named} 1: the segment cannot be decompressed (")),
            "{text}"
        );
        assert!(
            begun(&dir, &Encryption::plain()).unwrap().is_some(),
            "the start time of a damaged segment is known"
        );
    }
    let end = "the segment is closed, but does not end with a complete record";
    whole_frame("");
    assert_eq!(refused(), format!("{named} 1: {end}"));
    whole_frame("{\"seq\":");
    assert_eq!(refused(), format!("{named} 1: {end}"));

    fs::write(&path, &whole).unwrap();
    fs::remove_file(dir.join(COMPRESSED[2])).unwrap();
    assert_eq!(
        refused(),
        "journal a/journal-0002.jsonl.zst is damaged at line 1: \
         the segment is closed, and the next segment is missing"
    );
    open_journal(&dir, &Encryption::plain())
        .expect_err("a compressed segment cannot be opened for writing");
}

#[test]
fn segment_names_are_recognized() {
    for (name, expected) in [
        ("journal-0001.jsonl", Some(1)),
        ("journal-12345.jsonl.zst", Some(12_345)),
        ("journal-+001.jsonl", None),
        ("journal-0001.jsonl.gz", None),
        (
            "journal-0001.jsonl.zst.018f2f6e-0000-7000-8000-000000000000.tmp",
            None,
        ),
        ("notes", None),
    ] {
        assert_eq!(number(name), expected, "{name}");
    }
}
