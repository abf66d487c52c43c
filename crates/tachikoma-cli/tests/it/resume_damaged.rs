//! Resuming a loop with deleted, truncated or changed files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tachikoma_loop_runner::store::encryption::Encryption;

use insta::assert_snapshot;
use tachikoma_core::{LoopId, Timestamp};
use tachikoma_loop_runner::store::compressed;
use tachikoma_loop_runner::store::journal::Journal;
use tachikoma_loop_runner::store::recover::open_journal;
use tachikoma_testkit::Scratch;

use crate::support::{CLAIMS, files, journal, loops, run, shown, status, tachikoma, with_history};

/// Arguments of a run for one more iteration.
const ONE_MORE: [&str; 6] = ["run", "--quiet", "--delay", "0s", "--max-iterations", "2"];

fn snapshot(scratch: &Scratch) -> PathBuf {
    scratch.path().join(".ralph/state.json")
}

/// Runs a command and returns only its exit code, errors and warnings.
fn told(scratch: &Scratch, words: &[&str]) -> String {
    let ran = tachikoma(scratch).run(words);
    let text = shown(&ran);
    let lines = text.lines().filter(|line| {
        ["exit:", "error:", "warning:"]
            .iter()
            .any(|told| line.starts_with(told))
    });
    lines.map(|line| format!("{line}\n")).collect()
}

fn set(scratch: &Scratch) {
    let ran = tachikoma(scratch).run(["state", "set", "plan", "7"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[track_caller]
fn check_goes_on_from_snapshot(hurt: impl Fn(&Scratch)) -> String {
    let scratch = with_history();
    set(&scratch);
    let before = status(&scratch);
    hurt(&scratch);
    let ran = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    let wrong = "the journal has no records";
    assert!(ran.stdout.contains(wrong), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["loop_id"], before["loop_id"]);
    let told = told(&scratch, &ONE_MORE);
    let after = status(&scratch);
    assert_eq!(after["loop_id"], before["loop_id"]);
    assert_eq!(after["iteration"], 2, "{told}");
    let ran = tachikoma(&scratch).run(["state", "show", "--json"]);
    assert_eq!(ran.json()["custom"]["plan"], 7, "{}", ran.snapshot());
    told
}

#[test]
fn an_empty_journal_is_replaced_by_the_snapshot() {
    let told = check_goes_on_from_snapshot(|scratch| {
        fs::write(journal(scratch), "").expect("the test owns this file");
    });
    assert_snapshot!(told, @"
    exit: 3
    warning: falling back to the snapshot: the journal has no records, and the snapshot ends at record 10; later records, if there were any, are lost
    ");
}

#[test]
fn a_deleted_journal_is_replaced_by_the_snapshot() {
    let told = check_goes_on_from_snapshot(|scratch| {
        fs::remove_dir_all(scratch.path().join(".ralph/loops")).expect("the test owns this file");
        let ran = tachikoma(scratch).run(["events"]);
        let hint = "hint: it is gone; `tachikoma run` continues with the rest of the loop";
        assert!(ran.stderr.contains(hint), "{}", ran.snapshot());
    });
    assert_snapshot!(told, @"
    exit: 3
    warning: falling back to the snapshot: the journal has no records, and the snapshot ends at record 10; later records, if there were any, are lost
    ");
}

/// Returns a loop with a closed first segment. Its second segment is missing.
fn closed_and_unfollowed() -> (Scratch, PathBuf, Vec<u8>) {
    let scratch = with_history();
    let first = journal(&scratch);
    let dir = first.parent().expect("it has one").to_owned();
    let (mut journal, mut state) =
        open_journal(&dir, &Encryption::plain()).expect("nobody else writes");
    let now = state.time;
    journal
        .next_segment(&mut state, now)
        .expect("there is room");
    drop(journal);
    compressed::replace(&first, &Encryption::plain(), &AtomicBool::new(false))
        .expect("there is room");
    fs::remove_file(dir.join("journal-0002.jsonl")).expect("the test owns this file");
    let closed = dir.join("journal-0001.jsonl.zst");
    let bytes = fs::read(&closed).expect("the test owns this file");
    (scratch, closed, bytes)
}

#[test]
fn a_closed_segment_is_never_changed_again() {
    let (scratch, closed, bytes) = closed_and_unfollowed();
    let ran = tachikoma(&scratch).run(ONE_MORE);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl.zst is damaged at line 10: the segment is closed, and the next segment is missing
    hint: nothing was changed; `tachikoma run --accept-loss` continues from record 9 (iteration 1) and keeps what follows in `.ralph/quarantine/`, `--new` starts a new loop beside it
    ");
    assert_eq!(fs::read(&closed).expect("it is there"), bytes);
    let mut words = ONE_MORE.to_vec();
    words.push("--accept-loss");
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["iteration"], 2);
    assert_eq!(fs::read(&closed).expect("it is there"), bytes);
    let ran = tachikoma(&scratch).run(["events"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[test]
fn damage_in_a_closed_segment_can_be_accepted() {
    let (scratch, closed, bytes) = closed_and_unfollowed();
    fs::write(&closed, &bytes[..bytes.len() - 1]).expect("the test owns this file");
    let mut words = ONE_MORE.to_vec();
    let refused = told(&scratch, &words);
    assert!(
        refused.contains("the segment cannot be decompressed"),
        "{refused}"
    );
    words.push("--accept-loss");
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let kept = files(&scratch.path().join(".ralph/quarantine"));
    assert!(kept.values().any(|kept| *kept == bytes[..bytes.len() - 1]));
}

#[test]
fn a_changed_last_byte_of_the_journal_is_refused_and_not_cut_off() {
    let scratch = with_history();
    fs::remove_file(snapshot(&scratch)).expect("the test owns this file");
    let mut bytes = fs::read(journal(&scratch)).expect("the test owns this file");
    *bytes.last_mut().expect("it has lines") = b'!';
    fs::write(journal(&scratch), &bytes).expect("the test owns this file");
    let ran = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_snapshot!(told(&scratch, &ONE_MORE), @"
    exit: 1
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 9: there is data after the record
    ");
    assert_eq!(fs::read(journal(&scratch)).expect("it is there"), bytes);
}

#[test]
fn a_directory_in_place_of_the_snapshot_does_not_stop_a_run() {
    let scratch = with_history();
    fs::remove_file(snapshot(&scratch)).expect("the test owns this file");
    scratch.write(".ralph/state.json/mine", "mine\n");
    assert_eq!(status(&scratch)["iteration"], 1);
    assert_snapshot!(told(&scratch, &ONE_MORE), @"
    exit: 3
    warning: falling back to the journal: snapshot [DIR]/.ralph/state.json is damaged: it is not a regular file; the journal is undamaged up to record 9, and the snapshot file is kept in .ralph/quarantine/
    ");
    assert!(snapshot(&scratch).is_file());
    assert_eq!(
        scratch.read(".ralph/quarantine/state.json.1/mine"),
        "mine\n"
    );
}

#[test]
fn a_kill_between_new_loop_and_archive_does_not_revive_the_old_loop() {
    for has_snapshot in [true, false] {
        let scratch = with_history();
        let old = loops(&scratch).remove(0);
        let bytes = fs::read(snapshot(&scratch)).expect("the test owns this file");
        if !has_snapshot {
            fs::remove_file(snapshot(&scratch)).expect("the test owns this file");
        }
        // This is the first step of `run --new`, after which the runner is killed.
        let new = LoopId::from_u128(7);
        let dir = scratch.path().join(".ralph/loops").join(new.to_string());
        let later = Timestamp::from_millis(32_503_680_000_000);
        drop(Journal::create(&dir, new, later, &Encryption::plain()).expect("nobody else writes"));
        let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], "true"));
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        assert_eq!(status(&scratch)["loop_id"], new.to_string());
        let archived = fs::read(old.join("archived.json")).expect("it is archived");
        if has_snapshot {
            assert_eq!(archived, bytes);
        }
        let ran = tachikoma(&scratch).run(["state", "clear"]);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        let ran = tachikoma(&scratch).run(["status"]);
        assert!(!ran.stdout.contains("loop_"), "{}", ran.snapshot());
    }
}

#[test]
fn problems_of_a_completed_loop_do_not_affect_the_next() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let old = loops(&scratch).remove(0);
    fs::write(snapshot(&scratch), "oops").expect("the test owns this file");
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    let warned = |dir: &Path| {
        let text =
            fs::read_to_string(dir.join("journal-0001.jsonl")).expect("the test owns this file");
        text.matches("\"type\":\"warned\"").count()
    };
    for dir in loops(&scratch) {
        assert_eq!(warned(&dir), usize::from(dir == old), "{}", dir.display());
    }
}
