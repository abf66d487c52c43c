//! Damaged and lost records are reported, and the loop continues.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use tachikoma_testkit::{Scratch, await_until};

use crate::backups::{back_up, backups, say, up_to};
use crate::backups_damaged::damage;
use crate::encrypt::{ENCRYPTED, KEY};
use crate::support::{
    SOON, await_events, files, journal, kill, loops, run, start_busy, status, tachikoma,
    with_history,
};

/// Changes one byte of a file while a runner writes to it.
fn scratch_byte(path: &Path, at: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"\x07", at).unwrap();
}

#[test]
fn readers_skip_a_damaged_record() {
    let scratch = with_history();
    damage(&journal(&scratch), 4);
    say(&scratch, &up_to("2"), 3);
    let looks: [&[&str]; 7] = [
        &["history"],
        &["history", "--json"],
        &["events"],
        &["events", "--json"],
        &["state", "export"],
        &["explain", "2"],
        &["replay"],
    ];
    for words in looks {
        let ran = tachikoma(&scratch).run(words);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        let note = "is damaged at line 4: its checksum does not match";
        assert_eq!(ran.stderr.matches(note).count(), 1, "{}", ran.snapshot());
        assert!(!ran.stderr.contains("hint"), "{}", ran.snapshot());
    }
    let ran = tachikoma(&scratch).run(["history", "--json"]);
    for (number, line) in (1..).zip(ran.stdout.lines()) {
        assert!(
            line.contains(&format!("{{\"iteration\":{number},")),
            "{line}"
        );
    }
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.snapshot());
    let all = tachikoma(&scratch).run(["state", "export"]).stdout;
    let records = all.matches("\"seq\":").count();
    let told = tachikoma(&scratch).run(["events", "--json"]).stdout;
    assert!(
        records > told.lines().count() && told.lines().count() > 15,
        "{told}"
    );
    let last = all.lines().last().unwrap();
    assert!(
        last.contains(&format!("\"records\":{}", told.lines().count())),
        "{last}"
    );
    let ran = tachikoma(&scratch).run(["context"]);
    assert!(
        ran.stderr.contains("is damaged at line 4"),
        "{}",
        ran.snapshot()
    );
    assert!(
        ran.stderr.contains("has a context reading"),
        "{}",
        ran.snapshot()
    );
}

#[test]
fn an_unreadable_journal_is_an_error() {
    let scratch = with_history();
    let path = journal(&scratch);
    std::fs::write(&path, "garbage\n".repeat(9)).unwrap();
    let told = say(&scratch, &["history"], 1);
    assert!(told.contains("is damaged at line 1"), "{told}");
}

#[test]
fn a_runner_with_a_damaged_journal_continues_in_a_new_segment_and_backs_it_up() {
    for more in ["", ENCRYPTED] {
        let scratch = Scratch::new();
        scratch.write("../key.txt", KEY);
        let settings = format!("[state]\nbackup_interval = \"500ms\"\nmax_backups = 0\n{more}");
        scratch.write("tachikoma.toml", &settings);
        let live =
            tachikoma(&scratch).spawn(run(&["--delay", "50ms", "--max-iterations", "0"], "true"));
        await_until("a backup", SOON, || !backups(&scratch).is_empty());
        let first = journal(&scratch);
        scratch_byte(&first, std::fs::metadata(&first).unwrap().len() / 2);
        let second = first.with_file_name("journal-0002.jsonl");
        await_until("another segment", SOON, || second.exists());
        let before = backups(&scratch).len();
        await_until("more backups", SOON, || {
            backups(&scratch).len() > before + 1
        });
        assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
        let ran = live.wait(SOON);
        let repaired = "repaired the journal: journal ";
        let lines = ran.stdout.lines().filter(|line| line.contains(repaired));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 1, "{}", ran.snapshot());
        assert!(
            lines[0].contains("journal-0001.jsonl is damaged at line"),
            "{lines:?}"
        );
        assert!(
            lines[0].ends_with("segment 2 continues from the full state"),
            "{lines:?}"
        );
        assert!(
            !ran.stdout.contains("no backup was taken"),
            "{}",
            ran.snapshot()
        );
        say(&scratch, &["state", "backups"], 0);
        say(&scratch, &["status"], 0);
    }
}

#[test]
fn hints_never_suggest_accept_loss_for_a_running_loop() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[state]\nbackup_interval = \"0s\"\nauto_save_interval = \"0s\"\n",
    );
    let live = start_busy(&scratch, &[]);
    await_events(&scratch, "agent_launched", 1);
    scratch_byte(&journal(&scratch), 700);
    let _ = std::fs::remove_file(scratch.path().join(".ralph/state.json"));
    let looks: [(&[&str], &str); 3] = [
        (
            &["state", "show"],
            "its runner has the whole state in memory",
        ),
        (
            &["state", "backup"],
            "its runner has the whole state in memory",
        ),
        (&["run"], "its runner has the whole state in memory"),
    ];
    for (words, hint) in looks {
        let told = say(&scratch, words, 1);
        assert!(told.contains("is damaged at line"), "{told}");
        assert!(
            told.contains(hint) && !told.contains("accept-loss"),
            "{told}"
        );
    }
    kill(&scratch, live);
    let told = say(&scratch, &["state", "show"], 1);
    assert!(told.contains("--accept-loss"), "{told}");
    assert_eq!(loops(&scratch).len(), 1);
}

/// Keeps the first lines of a file.
fn cut_to(path: &Path, lines: usize) {
    let text = std::fs::read_to_string(path).unwrap();
    let kept: String = text.split_inclusive('\n').take(lines).collect();
    assert!(
        kept.len() < text.len(),
        "the file has more than {lines} lines"
    );
    std::fs::write(path, kept).unwrap();
}

#[test]
fn a_journal_that_is_older_than_a_backup_has_lost_records() {
    let scratch = with_history();
    say(&scratch, &up_to("3"), 3);
    let taken = back_up(&scratch);
    let seq = tachikoma(&scratch).run(["state", "show", "--json"]).json()["seq"].clone();
    cut_to(&journal(&scratch), 12);
    std::fs::remove_file(scratch.path().join(".ralph/state.json")).unwrap();
    let ends = format!(
        "it ends with record 12, and backup {} has records up to {seq}",
        taken.display()
    );
    let told = say(&scratch, &["state", "verify"], 1);
    assert!(
        told.contains(&ends) && told.contains("--accept-loss"),
        "{told}"
    );
    let before = files(&scratch.path());
    let told = say(&scratch, &up_to("4"), 1);
    assert!(
        told.contains(&format!("damaged at line 13: {ends}")),
        "{told}"
    );
    let goes_on =
        format!("`tachikoma run --accept-loss` continues from record {seq} (iteration 3)");
    assert!(told.contains(&goes_on), "{told}");
    assert_eq!(files(&scratch.path()), before, "no file was changed");

    let mut words = up_to("4").to_vec();
    words.push("--accept-loss");
    let told = say(&scratch, &words, 3);
    assert!(told.contains("falling back to backup "), "{told}");
    assert_eq!(status(&scratch)["iteration"], 4);
    say(&scratch, &["state", "verify"], 0);
    // The journal is newer than this backup, so no record is reported as lost.
    say(&scratch, &["state", "backup"], 0);
    let told = say(&scratch, &["state", "restore", "--yes"], 0);
    assert!(told.contains("is restored at iteration 4"), "{told}");
}

#[test]
fn backups_of_another_epoch_or_key_are_not_compared_with_the_journal() {
    // This loop was restored to a state before its last backups.
    let scratch = with_history();
    let first = back_up(&scratch);
    say(&scratch, &up_to("3"), 3);
    back_up(&scratch);
    say(
        &scratch,
        &["state", "restore", "--yes", first.to_str().unwrap()],
        0,
    );
    say(&scratch, &["state", "verify"], 0);
    say(&scratch, &up_to("2"), 3);
    assert_eq!(status(&scratch)["iteration"], 2);

    // The backup of this loop cannot be decrypted.
    let scratch = with_history();
    say(&scratch, &up_to("3"), 3);
    let taken = back_up(&scratch);
    for backup in backups(&scratch) {
        std::fs::write(backup, "age-encryption.org/v1\n-> X25519 of another\n").unwrap();
    }
    assert!(taken.exists());
    cut_to(&journal(&scratch), 12);
    std::fs::remove_file(scratch.path().join(".ralph/state.json")).unwrap();
    say(&scratch, &["status"], 0);
}

#[test]
fn run_warns_before_a_new_loop_if_only_backups_of_the_old_one_are_left() {
    let scratch = with_history();
    scratch.write(
        "tachikoma.toml",
        "[state]\nmax_backups = 1\nbackup_interval = \"0s\"\n",
    );
    let first = loops(&scratch)[0].file_name().unwrap().to_owned();
    let taken = back_up(&scratch);
    let taken = taken.strip_prefix(scratch.path()).unwrap().display();
    std::fs::remove_dir_all(scratch.path().join(".ralph/loops")).unwrap();
    std::fs::remove_file(scratch.path().join(".ralph/state.json")).unwrap();
    let restore = format!("`tachikoma state restore {taken}` restores it");
    let has = format!("a backup has {} up to iteration 1", first.display());
    for (words, code) in [(["status"], 0), (["events"], 1)] {
        let told = say(&scratch, &words, code);
        assert!(told.contains(&restore) && told.contains(&has), "{told}");
    }
    let words = [
        "run",
        "--delay",
        "0s",
        "--max-iterations",
        "1",
        "--",
        "true",
    ];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let warned = ran.stdout.lines().find(|line| line.contains(&restore));
    let warned = warned.unwrap_or_default();
    assert!(
        warned.contains(&has) && warned.contains("warning"),
        "{}",
        ran.snapshot()
    );
    let told = say(&scratch, &["state", "restore", "--yes"], 1);
    let hint =
        format!("other loops have good backups: `tachikoma state restore {taken}` (iteration 1)");
    assert!(told.contains(&hint), "{told}");
    for _ in 0..2 {
        back_up(&scratch);
    }
    let told = say(&scratch, &["status"], 0);
    assert!(!told.contains("state restore"), "{told}");
    say(
        &scratch,
        &["state", "restore", "--yes", &taken.to_string()],
        0,
    );
    assert_eq!(status(&scratch)["loop_id"], first.to_str().unwrap());
}

#[test]
fn run_does_not_warn_of_backups_of_existing_loops() {
    let scratch = with_history();
    back_up(&scratch);
    say(&scratch, &["state", "clear"], 0);
    let told = say(&scratch, &["run", "--max-iterations", "1", "--", "true"], 3);
    assert!(!told.contains("state restore"), "{told}");

    let there = Scratch::new();
    let settings = format!(
        "[state]\nbackup_dir = {:?}\n",
        scratch.path().join(".ralph/backups")
    );
    there.write("tachikoma.toml", &settings);
    there.write("prompt.md", "go\n");
    let told = say(&there, &["run", "--max-iterations", "1", "--", "true"], 3);
    assert!(!told.contains("state restore"), "{told}");
}

#[test]
fn a_loop_that_a_restore_moved_to_quarantine_is_named() {
    let scratch = with_history();
    back_up(&scratch);
    say(&scratch, &["state", "restore", "--yes"], 0);
    let told = say(&scratch, &["state", "verify"], 0);
    let moved = told.lines().filter(|line| line.contains("quarantine"));
    let moved: Vec<&str> = moved.collect();
    let loops = moved
        .iter()
        .filter(|line| line.ends_with("a loop as it was before a restore"));
    assert_eq!(loops.count(), 1, "{moved:?}");
}
