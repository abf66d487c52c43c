//! `tachikoma state clear`: archives the loop, or deletes all files of Tachikoma.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use tachikoma_testkit::Scratch;

use crate::live_pty::Terminal;
use crate::support::{
    CLAIMS, files, journals, kill, loops, run, start_busy, status, tachikoma, with_history,
};

const CLEAR: [&str; 2] = ["state", "clear"];
const PURGE: [&str; 4] = ["state", "clear", "--purge", "--yes"];

#[test]
fn a_loop_that_is_cleared_is_archived_and_the_next_run_begins_another() {
    let scratch = with_history();
    let old = status(&scratch)["loop_id"].clone();
    let before = journals(&scratch);
    let snapshot = fs::read(scratch.path().join(".ralph/state.json")).unwrap();
    let ran = tachikoma(&scratch).run(CLEAR);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(ran.stdout.contains("is archived"), "{}", ran.stdout);
    assert!(!scratch.path().join(".ralph/state.json").exists());
    assert_eq!(
        fs::read(loops(&scratch)[0].join("archived.json")).unwrap(),
        snapshot
    );
    assert!(
        status(&scratch)["loop_id"].is_null(),
        "there is no current loop"
    );
    let ran = tachikoma(&scratch).run(CLEAR);
    assert_eq!(ran.code(), Some(1), "there is nothing to clear");

    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_ne!(status(&scratch)["loop_id"], old);
    for (path, bytes) in before {
        assert_eq!(
            fs::read(path).unwrap(),
            bytes,
            "the old loop is still there"
        );
    }
    let ran = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(ran.stdout.matches("good  journal").count(), 2);
}

/// An archived loop is restored by moving its directory.
#[test]
fn an_archived_loop_can_be_resumed() {
    let scratch = with_history();
    let old = status(&scratch);
    assert_eq!(tachikoma(&scratch).run(CLEAR).code(), Some(0));
    let archived = loops(&scratch)[0].join("archived.json");
    fs::rename(archived, scratch.path().join(".ralph/state.json")).unwrap();
    assert_eq!(status(&scratch), old);
}

#[test]
fn new_loops_archive_the_previous_loop() {
    let scratch = with_history();
    let first = loops(&scratch).remove(0);
    let ran = tachikoma(&scratch).run(run(&["--new", "--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(first.join("archived.json").exists());
    let second = loops(&scratch).into_iter().find(|path| *path != first);
    let second = second.unwrap();
    assert!(!second.join("archived.json").exists());
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(second.join("archived.json").exists());
    let ran = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

/// An unreadable snapshot is archived or kept, never overwritten.
#[test]
fn a_snapshot_that_cannot_be_read_is_kept() {
    for text in ["half of someth", "{\n  \"version\": 99,\n  \"new\": 1}\n"] {
        let scratch = with_history();
        let first = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
        scratch.write(".ralph/state.json", text);
        let ran = tachikoma(&scratch).run(run(&["--new", "--quiet"], CLAIMS));
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        let kept = match text.contains("version") {
            // This snapshot is archived, so that the version that wrote it can resume the loop.
            true => format!(".ralph/loops/{first}/archived.json"),
            false => ".ralph/quarantine/state.json.1".to_owned(),
        };
        assert_eq!(scratch.read(kept.as_str()), text);
    }
    // The snapshot is also kept if no loop is left.
    let scratch = with_history();
    assert_eq!(tachikoma(&scratch).run(CLEAR).code(), Some(0));
    let newer = "{\n  \"version\": 99,\n  \"new\": 1}\n";
    scratch.write(".ralph/state.json", newer);
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(ran.stderr.contains("has version 99"), "{}", ran.stderr);
    assert_eq!(scratch.read(".ralph/state.json"), newer);
}

/// Only the version that wrote this snapshot can read it, so it must not be archived.
#[test]
fn a_snapshot_of_a_newer_version_is_not_cleared() {
    let scratch = with_history();
    let newer = "{\n  \"version\": 99,\n  \"new\": 1}\n";
    scratch.write(".ralph/state.json", newer);
    let before = files(&scratch.path().join(".ralph"));
    let ran = tachikoma(&scratch).run(CLEAR);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(ran.stderr.contains("has version 99"), "{}", ran.stderr);
    assert_eq!(files(&scratch.path().join(".ralph")), before);
}

#[test]
fn a_damaged_loop_can_be_cleared() {
    let scratch = with_history();
    fs::remove_file(scratch.path().join(".ralph/state.json")).unwrap();
    let journal = crate::support::journal(&scratch);
    fs::write(&journal, "no journal\n").unwrap();
    assert_eq!(tachikoma(&scratch).run(CLEAR).code(), Some(0));
    assert_eq!(fs::read_to_string(&journal).unwrap(), "no journal\n");
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[test]
fn clear_and_purge_refuse_a_live_runner() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    for words in [&CLEAR[..], &PURGE] {
        let ran = tachikoma(&scratch).run(words);
        assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
        assert!(
            ran.stderr.contains("another runner works in"),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains("`tachikoma stop` and try again"),
            "{}",
            ran.stderr
        );
    }
    assert_eq!(status(&scratch)["state"], "running");
    kill(&scratch, live);
}

/// Returns a directory with every kind of file that Tachikoma writes, including leftovers of killed writers.
fn full() -> Scratch {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    kill(&scratch, live);
    let words = run(&["--new", "--quiet", "--max-iterations", "1"], "echo words");
    assert_eq!(tachikoma(&scratch).run(words).code(), Some(3));
    let id = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    let unique = "00000000-0000-4000-8000-000000000000";
    for name in [
        format!(".state-{}.tmp", unique.replace('-', "")),
        format!("loops/{id}/.state-{}.tmp", unique.replace('-', "")),
        format!("loops/{id}/journal-0001.jsonl.zst.{unique}.tmp"),
        format!("loops/{id}/journal-0001.jsonl.4711.tmp"),
        format!("sessions/{id}/000001.1.log.zst.{unique}.tmp"),
        format!("sessions/{id}/000001.2.log.tail-a"),
        "quarantine/lock.1".to_owned(),
        "quarantine/deep.1/er/still".to_owned(),
    ] {
        scratch.write(format!(".ralph/{name}").as_str(), "remains");
    }
    for name in ["state.json.v1", "state.json.v1.1"] {
        let ralph = scratch.path().join(".ralph");
        fs::copy(ralph.join("state.json"), ralph.join(name)).unwrap();
    }
    // A killed runner leaves its socket.
    drop(UnixListener::bind(scratch.runtime_dir().join(format!("tachikoma/{id}.sock"))).unwrap());
    scratch
}

#[test]
fn a_purge_deletes_all_files_of_tachikoma() {
    let scratch = full();
    scratch.write("work.txt", "the work");
    let ran = tachikoma(&scratch).run(PURGE);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        !scratch.path().join(".ralph").exists(),
        "{}",
        ran.snapshot()
    );
    let sockets = files(&scratch.runtime_dir());
    assert!(sockets.is_empty(), "{sockets:?}");
    assert_eq!(scratch.read("work.txt"), "the work");
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[test]
fn a_purge_keeps_files_of_other_programs() {
    let scratch = full();
    let outside = scratch.home().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("journal-0001.jsonl"), "precious").unwrap();
    let id = loops(&scratch)[0].file_name().unwrap().to_owned();
    let id = id.to_str().unwrap();
    let foreign = [
        "notes.md".to_owned(),
        ".state-mine.tmp".to_owned(),
        "other-tool/state.json".to_owned(),
        "loops/loop_of_mine/journal-0001.jsonl".to_owned(),
        format!("loops/{id}/notes.md"),
        "sessions/notes/000001.1.log".to_owned(),
        "state.json".to_owned(),
        "state.json.v1".to_owned(),
        "quarantine/notes.md".to_owned(),
    ];
    for name in &foreign {
        scratch.write(format!(".ralph/{name}").as_str(), "not ours");
    }
    let link = format!("loop_{}", "00000000-0000-4000-8000-000000000000");
    symlink(&outside, scratch.path().join(".ralph/loops").join(&link)).unwrap();
    let ran = tachikoma(&scratch).run(PURGE);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    for left in ["notes.md", ".ralph/state.json\n", "quarantine/notes.md"] {
        assert!(ran.stderr.contains(left), "{left}: {}", ran.snapshot());
    }
    let mut expected: Vec<_> = foreign
        .iter()
        .map(|name| format!(".ralph/{name}"))
        .collect();
    expected.push(format!(".ralph/loops/{link}"));
    expected.sort();
    let left = files(&scratch.path().join(".ralph"));
    let left: Vec<_> = left
        .keys()
        .map(|path| path.strip_prefix(scratch.path()).unwrap().to_str().unwrap())
        .collect();
    assert_eq!(left, expected);
    let kept = fs::read_to_string(outside.join("journal-0001.jsonl"));
    assert_eq!(kept.unwrap(), "precious", "no link is followed");
}

/// `state_path` may point to a foreign file by mistake.
#[test]
fn a_purge_keeps_a_file_that_is_not_a_snapshot() {
    let scratch = with_history();
    scratch.write(
        "tachikoma.toml",
        "[state]\nstate_path = \"src/precious.json\"\n",
    );
    scratch.write("src/precious.json", "{\"version\": 1}\n");
    let ran = tachikoma(&scratch).run(PURGE);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.read("src/precious.json"), "{\"version\": 1}\n");
    let left = "note: not deleted, because Tachikoma did not create it: ";
    assert!(ran.stderr.contains(left), "{}", ran.snapshot());
}

#[test]
fn an_unconfirmed_purge_does_nothing() {
    let scratch = with_history();
    let before = files(&scratch.path().join(".ralph"));
    let ran = tachikoma(&scratch).run(["state", "clear", "--purge"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(ran.stderr.contains("use `--yes`"), "{}", ran.stderr);
    assert_eq!(files(&scratch.path().join(".ralph")), before);
}

#[test]
fn clear_asks_at_a_terminal() {
    let scratch = with_history();
    for (words, question) in [
        (&CLEAR[..], "archive the loop of"),
        (&["state", "clear", "--purge"], "delete all loops of"),
    ] {
        let before = files(&scratch.path().join(".ralph"));
        let mut terminal = Terminal::start(&tachikoma(&scratch), words, 0);
        terminal.await_text(question);
        terminal.press(b'\n');
        assert_eq!(terminal.wait(), Some(1), "no answer means no");
        assert_eq!(files(&scratch.path().join(".ralph")), before);
        let mut terminal = Terminal::start(&tachikoma(&scratch), words, 0);
        terminal.await_text(question);
        terminal.press(b'y');
        terminal.press(b'\n');
        assert_eq!(terminal.wait(), Some(0));
    }
    assert!(!scratch.path().join(".ralph").exists());
}
