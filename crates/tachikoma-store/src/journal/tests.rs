//! The journal on a real disk: appended records are read back, and damage is detected.

use crate::encryption::Encryption;
use tachikoma_core::{Input, Launch, Policy, Runner, step};

use tachikoma_core::Seq;

use super::*;
use crate::checked_line::{CRC_MARK, Remainder, remainder};
use crate::recover::open_journal;

fn launch(journal: &mut Journal, state: &mut State) {
    let now = Timestamp::from_millis(1_000);
    let runner = Runner {
        pid: 1,
        since: now,
        containment: "guard".to_owned(),
        follows_until: None,
        repository: None,
    };
    let done = step(
        &Policy::default(),
        state,
        now,
        Input::Start {
            launch: Launch::default(),
            runner,
        },
    );
    journal.append_synced(&done.records).unwrap();
}

fn fresh(dir: &Path) -> (Journal, State) {
    let (mut journal, mut state) = Journal::create(
        &dir.join(".ralph/loops/a"),
        LoopId::from_u128(1),
        Timestamp::from_millis(5),
        &Encryption::plain(),
    )
    .unwrap();
    launch(&mut journal, &mut state);
    (journal, state)
}

#[test]
fn records_are_replayed_across_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, mut state) = fresh(dir.path());
    journal
        .next_segment(&mut state, Timestamp::from_millis(2_000))
        .unwrap();
    launch(&mut journal, &mut state);
    drop(journal);
    let (_, replayed) =
        open_journal(&dir.path().join(".ralph/loops/a"), &Encryption::plain()).unwrap();
    assert_eq!(replayed, state);
    let mut seqs = Vec::new();
    read_records(
        &dir.path().join(".ralph/loops/a"),
        &Encryption::plain(),
        Seq(2),
        |record| {
            seqs.push(record.seq.0);
        },
    )
    .unwrap();
    assert_eq!(
        seqs,
        (3..=state.seq.0).collect::<Vec<_>>(),
        "without a gap, after the second"
    );
}

#[test]
fn incomplete_last_line_is_cut_off_and_the_journal_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, mut state) = fresh(dir.path());
    let path = dir.path().join(".ralph/loops/a/journal-0001.jsonl");
    let whole = std::fs::read(&path).unwrap();
    journal.file.write_all(&whole[..50]).unwrap();
    drop(journal);
    let (mut journal, replayed) =
        open_journal(&dir.path().join(".ralph/loops/a"), &Encryption::plain()).unwrap();
    assert_eq!(
        replayed.seq,
        state.seq.next(),
        "a record warns about the incomplete line"
    );
    let after = std::fs::read(&path).unwrap();
    let (before, said) = after.split_at(whole.len());
    assert_eq!(before, whole, "the incomplete line was cut off");
    assert!(decode(said.trim_ascii_end()).is_ok());
    let kept = dir.path().join(".ralph/quarantine/journal-0001.jsonl.1");
    assert_eq!(
        std::fs::read(kept).unwrap(),
        whole[..50],
        "the incomplete line is in the quarantine"
    );
    state = replayed;
    launch(&mut journal, &mut state);
    assert_eq!(
        read_state(&dir.path().join(".ralph/loops/a"), &Encryption::plain()).unwrap(),
        state
    );
}

#[test]
fn journal_with_a_newer_format_or_a_gap_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _) = fresh(dir.path());
    let path = dir.path().join(".ralph/loops/a/journal-0001.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(&path, format!("{}\n{}\n", lines[0], lines[2])).unwrap();
    let error = read_state(&dir.path().join(".ralph/loops/a"), &Encryption::plain()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("line 2: record 3 follows record 1"),
        "{error}"
    );

    let mut record = decode(lines[0].as_bytes()).unwrap();
    let LoopEvent::SegmentOpened { format, .. } = &mut record.event else {
        panic!("the first record")
    };
    *format = FORMAT + 1;
    let mut newer = Vec::new();
    encode(&record, &mut newer);
    std::fs::write(&path, newer).unwrap();
    assert!(matches!(
        read_state(&dir.path().join(".ralph/loops/a"), &Encryption::plain()),
        Err(StoreError::Newer {
            found: 2,
            supported: 1,
            ..
        })
    ));
}

#[test]
fn empty_segment_gets_its_first_record_from_the_next_runner() {
    let dir = tempfile::tempdir().unwrap();
    let (_, state) = fresh(dir.path());
    std::fs::write(dir.path().join(".ralph/loops/a/journal-0002.jsonl"), "").unwrap();
    let (journal, taken_up) =
        open_journal(&dir.path().join(".ralph/loops/a"), &Encryption::plain()).unwrap();
    assert_eq!(taken_up.seq, state.seq.next());
    drop(journal);
    let text =
        std::fs::read_to_string(dir.path().join(".ralph/loops/a/journal-0002.jsonl")).unwrap();
    let first = decode(text.lines().next().unwrap().as_bytes()).unwrap();
    assert!(
        matches!(first.event, LoopEvent::SegmentOpened { .. }),
        "{text}"
    );
    assert_eq!(
        read_state(&dir.path().join(".ralph/loops/a"), &Encryption::plain()).unwrap(),
        taken_up
    );
}

#[test]
fn appended_records_can_be_synced_later() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::from_millis(5);
    let dir = dir.path().join(".ralph/loops/a");
    let (mut journal, _) =
        Journal::create(&dir, LoopId::from_u128(1), now, &Encryption::plain()).unwrap();
    assert!(!journal.synced, "no effect depends on the record yet");
    journal.sync().unwrap();
    assert!(
        journal.synced && journal.unsynced_dirs.is_empty(),
        "a snapshot of the record may be written now"
    );
}

#[test]
fn directories_of_a_new_journal_are_synced_with_its_first_records() {
    let dir = tempfile::tempdir().unwrap();
    let loops = dir.path().join(".ralph/loops");
    let dir_a = loops.join("a");
    let now = Timestamp::from_millis(5);
    let (mut journal, mut state) =
        Journal::create(&dir_a, LoopId::from_u128(1), now, &Encryption::plain()).unwrap();
    let way = [
        dir_a.clone(),
        loops,
        dir.path().join(".ralph"),
        dir.path().to_owned(),
    ];
    assert_eq!(journal.unsynced_dirs, way);
    assert!(!journal.synced);
    launch(&mut journal, &mut state);
    assert!(journal.synced && journal.unsynced_dirs.is_empty());
    let (journal, _) = open_journal(&dir_a, &Encryption::plain()).unwrap();
    assert_eq!(
        journal.unsynced_dirs, way,
        "the process that created the file may have died before a sync"
    );
}

/// A file that an agent wrote must not use up the memory or the time of the program that reads it.
#[test]
fn endless_line_is_damage_and_many_checksum_marks_are_read_quickly() {
    let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
    let error = read_line(&mut endless, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);

    let marks = CRC_MARK.repeat(250_000);
    let began = tachikoma_runtime::clock::monotonic();
    assert!(matches!(remainder(marks.as_bytes()), Remainder::Torn));
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}

/// Values in a record may look like checksums, and bytes that are not UTF-8 are not part of a record.
#[test]
fn text_like_a_checksum_inside_a_record_does_not_end_the_record() {
    let mut line = Vec::new();
    let value = format!("a{CRC_MARK}00000000\"}}b");
    encode(&serde_json::json!({ "value": value }), &mut line);
    line.pop();
    assert!(matches!(remainder(&line), Remainder::Record));
    for behind in [&b"x"[..], b"\xff", CRC_MARK.as_bytes()] {
        let spoilt = [&line, behind].concat();
        assert!(matches!(remainder(&spoilt), Remainder::Spoilt));
    }
    for cut in 1..line.len() {
        assert!(matches!(remainder(&line[..cut]), Remainder::Torn), "{cut}");
    }
    line.insert(3, 0xff);
    assert!(matches!(remainder(&line), Remainder::Torn));
}
