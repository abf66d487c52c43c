//! Backups: automatic and manual, listed, checked and restored.

use std::fs;
use std::path::{Path, PathBuf};
use tachikoma_loop_runner::store::encryption::Encryption;

use tachikoma_testkit::{Scratch, await_until};

use crate::support::{
    BUSY, CLAIMS, SOON, await_events, events, files, kill, loops, run, start_busy, status,
    tachikoma, with_history,
};

/// Arguments of a run that ends after the given iteration.
pub fn up_to(iterations: &str) -> [&str; 6] {
    [
        "run",
        "--quiet",
        "--delay",
        "0s",
        "--max-iterations",
        iterations,
    ]
}

/// Returns the backups, oldest first.
pub fn backups(scratch: &Scratch) -> Vec<PathBuf> {
    files(&scratch.path().join(".ralph/backups"))
        .into_keys()
        .collect()
}

#[track_caller]
pub fn say(scratch: &Scratch, words: &[&str], code: i32) -> String {
    let ran = tachikoma(scratch).run(words);
    assert_eq!(ran.code(), Some(code), "{}", ran.snapshot());
    format!("{}{}", ran.stdout, ran.stderr)
}

/// Restores a backup and checks the exit code. Returns the output.
#[track_caller]
fn restore(scratch: &Scratch, file: &Path, code: i32) -> String {
    let file = file.to_str().unwrap();
    say(scratch, &["state", "restore", "--yes", file], code)
}

/// Makes a backup and returns its path.
#[track_caller]
pub fn back_up(scratch: &Scratch) -> PathBuf {
    let told = say(scratch, &["state", "backup"], 0);
    scratch.path().join(told.trim())
}

#[track_caller]
pub fn plan(scratch: &Scratch) -> serde_json::Value {
    let ran = tachikoma(scratch).run(["state", "show", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran.json()["custom"]["plan"].clone()
}

#[test]
fn a_resumed_loop_is_backed_up_first_and_a_new_one_is_not() {
    let scratch = with_history();
    assert_eq!(backups(&scratch), [] as [PathBuf; 0]);
    let ended = fs::read_to_string(crate::support::journal(&scratch)).unwrap();
    let last = ended.lines().count();
    say(&scratch, &up_to("2"), 3);
    let taken = backups(&scratch);
    assert_eq!(taken.len(), 1);
    let name = taken[0].to_str().unwrap();
    assert!(name.contains(&format!("-{last:020}-")), "{name}");
    let told = say(&scratch, &["state", "backups"], 0);
    assert!(told.starts_with("good  .ralph/backups/loop_"), "{told}");
    assert!(
        told.contains(&format!("iteration 1, record {last},")),
        "{told}"
    );
}

#[test]
fn a_backup_is_taken_before_a_session_is_replaced() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[reboot]\nmin_reboot_interval = \"0s\"\n[reboot.triggers]\nafter_iterations = 1\n",
    );
    say(
        &scratch,
        &run(&["--max-iterations", "2", "--quiet"], "true"),
        3,
    );
    assert_eq!(events(&scratch, "reboot_started").len(), 1);
    let ran = tachikoma(&scratch).run(["state", "backups", "--json"]);
    let told = ran.json();
    assert_eq!(told["backups"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!(told["backups"][0]["iteration"], 2, "{told}");
}

#[test]
fn backups_are_taken_at_an_interval_and_old_ones_deleted() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[state]\nbackup_interval = \"50ms\"\nmax_backups = 3\nbackup_dir = \"kept\"\n",
    );
    let live = start_busy(&scratch, &[]);
    let there = || files(&scratch.path().join("kept"));
    await_until("a backup by the clock", SOON, || !there().is_empty());
    for number in 1..=5 {
        let before = there();
        say(&scratch, &["state", "set", "plan", &number.to_string()], 0);
        await_until("another backup", SOON, || {
            there().keys().any(|path| {
                !before.contains_key(path) && path.extension().is_some_and(|e| e == "tar")
            })
        });
    }
    await_until("the oldest to go", SOON, || there().len() == 3);
    say(&scratch, &["state", "verify"], 0);
    kill(&scratch, live);
}

#[test]
fn a_failed_backup_is_a_warning_and_the_loop_continues() {
    let scratch = with_history();
    scratch.write(".ralph/backups", "in the way");
    say(&scratch, &up_to("2"), 3);
    let warned = events(&scratch, "warned");
    let told = warned[0]["warning"].as_str().unwrap();
    assert!(told.starts_with("no backup was taken: "), "{told}");
    let told = say(&scratch, &["state", "backup"], 1);
    assert!(told.contains(".ralph/backups"), "{told}");
}

#[test]
fn a_restore_keeps_the_replaced_loop() {
    let scratch = with_history();
    say(&scratch, &["state", "set", "plan", "7"], 0);
    let taken = back_up(&scratch);
    let before = status(&scratch);
    say(&scratch, &["state", "set", "plan", "8"], 0);
    say(&scratch, &up_to("3"), 3);
    assert_eq!(status(&scratch)["iteration"], 3);

    let told = restore(&scratch, &taken, 0);
    assert!(told.contains("is restored at iteration 1"), "{told}");
    assert!(
        told.contains("the replaced loop is kept as a backup: .ralph/backups/"),
        "{told}"
    );
    assert!(
        told.contains("the replaced loop is moved: .ralph/quarantine/loop_"),
        "{told}"
    );
    let after = status(&scratch);
    for key in ["loop_id", "iteration", "state", "outcome"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    assert_eq!(plan(&scratch), 7);
    say(&scratch, &["state", "verify"], 0);
    say(&scratch, &["events"], 0);
    say(&scratch, &["replay"], 0);
    assert_eq!(loops(&scratch).len(), 1, "no other file is left");

    // The backup of the replaced loop is restored.
    let kept = backups(&scratch).pop().unwrap();
    restore(&scratch, &kept, 0);
    assert_eq!(
        (status(&scratch)["iteration"].clone(), plan(&scratch)),
        (3.into(), 8.into())
    );
    say(&scratch, &up_to("4"), 3);
    assert_eq!(status(&scratch)["iteration"], 4);
    say(&scratch, &["state", "verify"], 0);
}

#[test]
fn a_loop_continues_in_another_directory_from_a_backup_alone() {
    let script =
        "echo here >> work; [ $(wc -l < work) -lt 4 ] || echo '<promise>COMPLETE</promise>'";
    let here = Scratch::new();
    let words = run(&["--quiet", "--max-iterations", "2"], script);
    say(&here, &words, 3);
    let taken = back_up(&here);
    let there = Scratch::new();
    fs::copy(here.path().join("work"), there.path().join("work")).unwrap();
    let copy = there.home().join("copy.tar");
    fs::copy(&taken, &copy).unwrap();
    let told = restore(&there, &copy, 0);
    assert!(told.contains("is restored at iteration 2"), "{told}");
    let goes_on = ["run", "--quiet", "--max-iterations", "9"];
    for scratch in [&here, &there] {
        say(scratch, &goes_on, 0);
        assert_eq!(scratch.read("work").lines().count(), 4);
    }
    let (here, there) = (status(&here), status(&there));
    for key in ["loop_id", "iteration", "outcome"] {
        assert_eq!(here[key], there[key], "{key}");
    }
    for key in ["iterations", "successful", "failed", "no_progress_count"] {
        assert_eq!(here["stats"][key], there["stats"][key], "{key}");
    }
}

#[test]
fn a_live_loop_can_be_backed_up_and_is_not_restored() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let taken = back_up(&scratch);
    let told = restore(&scratch, &taken, 1);
    assert!(told.contains("another runner works in"), "{told}");
    assert_eq!(status(&scratch)["state"], "running");
    kill(&scratch, live);
    // The backup was made during an iteration. The restored loop repeats it, as after a crash.
    say(&scratch, &["state", "restore", "--yes"], 0);
    say(
        &scratch,
        &["run", "--quiet", "--max-iterations", "1", "--", "true"],
        3,
    );
    assert_eq!(status(&scratch)["iteration"], 1);
    assert_eq!(events_of_all(&scratch, "attempt_cut"), 1);
    say(&scratch, &["state", "verify"], 0);
}

/// Counts the events of a type in all segments of the only loop.
fn events_of_all(scratch: &Scratch, kind: &str) -> usize {
    let mark = format!("\"type\":\"{kind}\"");
    let texts = files(&loops(scratch)[0]);
    let count = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).matches(&mark).count();
    texts.values().map(count).sum()
}

#[test]
fn an_invalid_backup_is_refused_without_changes() {
    let scratch = with_history();
    let taken = back_up(&scratch);
    let whole = fs::read(&taken).unwrap();
    let elsewhere = scratch.home().join("bad.tar");
    let bad = elsewhere.to_str().unwrap();
    let mut flipped = whole.clone();
    let at = whole.len() * 2 / 3;
    flipped[at] ^= 4;
    let before = files(&scratch.path().join(".ralph"));
    for (bytes, said) in [
        (&flipped[..], "is damaged: "),
        (&whole[..whole.len() / 2], "is damaged: "),
        (b"", "is damaged: it is empty"),
        (b"words", "is damaged: "),
    ] {
        fs::write(&elsewhere, bytes).unwrap();
        let told = say(&scratch, &["state", "restore", "--yes", bad], 1);
        assert!(told.contains(said), "{told}");
        assert!(told.contains("`tachikoma state backups`"), "{told}");
    }
    fs::remove_file(&elsewhere).unwrap();
    say(&scratch, &["state", "restore", "--yes", bad], 1);
    assert_eq!(files(&scratch.path().join(".ralph")), before);

    // `state backups` names the damaged backup, and `state restore` uses the newest undamaged one.
    say(&scratch, &["state", "set", "plan", "7"], 0);
    let newer = back_up(&scratch);
    fs::write(&newer, flipped).unwrap();
    let told = say(&scratch, &["state", "backups"], 1);
    assert!(told.contains("wrong .ralph/backups/"), "{told}");
    let told = say(&scratch, &["state", "verify"], 1);
    assert!(told.contains("wrong backup"), "{told}");
    let told = say(&scratch, &["state", "restore", "--yes"], 0);
    assert!(told.contains("note: skipped: backup "), "{told}");
    assert_eq!(plan(&scratch), serde_json::Value::Null);
}

#[test]
fn restore_without_a_loop_or_a_backup_fails() {
    let scratch = Scratch::new();
    say(&scratch, &["state", "backup"], 1);
    let told = say(&scratch, &["state", "backups"], 0);
    assert!(told.starts_with("no backup in "), "{told}");
    let told = say(&scratch, &["state", "restore", "--yes"], 1);
    assert!(told.contains("no good backup in "), "{told}");
    assert!(!scratch.path().join(".ralph").exists());
}

/// The current loop is newer. It is archived, and the restored loop becomes the current one.
#[test]
fn restoring_another_loop_archives_the_current_one() {
    let scratch = with_history();
    let first = status(&scratch)["loop_id"].clone();
    let taken = back_up(&scratch);
    say(&scratch, &run(&["--new", "--quiet"], CLAIMS), 0);
    let second = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    restore(&scratch, &taken, 0);
    assert_eq!(status(&scratch)["loop_id"], first);
    let archived = scratch.path().join(".ralph/loops").join(second);
    assert!(archived.join("archived.json").exists());
    say(&scratch, &["state", "verify"], 0);
}

/// The snapshot and a part of the journal are deleted, but a backup still has the records.
#[test]
fn a_run_repairs_damage_from_a_backup() {
    let scratch = with_history();
    back_up(&scratch);
    say(&scratch, &["state", "set", "plan", "7"], 0);
    fs::remove_file(scratch.path().join(".ralph/state.json")).unwrap();
    let journal = crate::support::journal(&scratch);
    let text = fs::read_to_string(&journal).unwrap();
    fs::write(
        &journal,
        text.replacen("iteration_started", "iteration_starved", 1),
    )
    .unwrap();
    let told = say(&scratch, &["state", "show"], 0);
    assert!(told.contains("a backup and the journal after it"), "{told}");
    say(&scratch, &up_to("2"), 3);
    assert_eq!(
        (status(&scratch)["iteration"].clone(), plan(&scratch)),
        (2.into(), 7.into())
    );
    let warned = fs::read_to_string(loops(&scratch)[0].join("journal-0002.jsonl")).unwrap();
    assert!(warned.contains("falling back to backup "), "{warned}");
}

/// A purge deletes the backups of this directory's loops. In a shared directory, other backups and other files stay.
#[test]
fn a_purge_deletes_the_local_backups_of_its_loops() {
    for place in [".ralph/backups", "kept"] {
        let scratch = with_history();
        let setting = format!("[state]\nbackup_dir = \"{place}\"\n");
        scratch.write("tachikoma.toml", setting);
        let taken = back_up(&scratch);
        let dir = taken.parent().unwrap().to_owned();
        let name = taken.file_name().unwrap().to_str().unwrap().to_owned();
        let unique = "0".repeat(32);
        let half = dir.join(format!(".state-{unique}.tmp"));
        fs::write(&half, "half a backup").unwrap();
        let is_ours = place.starts_with(".ralph");
        if !is_ours {
            // A recent temporary file is not deleted, because another process may be writing it.
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(7_200);
            let file = fs::OpenOptions::new().write(true).open(&half).unwrap();
            file.set_modified(then).unwrap();
        }
        say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
        assert_eq!(files(&dir).len(), 0);
        assert_eq!(
            dir.exists(),
            !is_ours,
            "it is unknown which loop wrote this file"
        );
        assert!(!scratch.path().join(".ralph").exists());

        let theirs = [dir.join("notes.tar"), dir.join(name)];
        scratch.write("prompt.md", "go\n");
        say(
            &scratch,
            &["run", "--quiet", "--max-iterations", "1", "--", "true"],
            3,
        );
        fs::create_dir_all(&dir).unwrap();
        for path in &theirs {
            fs::write(path, "mine").unwrap();
        }
        say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
        let left: Vec<_> = files(&dir).into_keys().collect();
        // In the default backup directory, backups are recognized by their file name alone.
        let mut expected = theirs[..if is_ours { 1 } else { 2 }].to_vec();
        expected.sort();
        assert_eq!(left, expected);
    }
}

#[test]
fn an_unsaved_loop_is_not_backed_up() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[state]\nenabled = false\nbackup_interval = \"10ms\"\n",
    );
    let live = tachikoma(&scratch).spawn(run(&[], BUSY));
    await_until("the loop to run", SOON, || {
        status(&scratch)["state"] == "running"
    });
    let told = say(&scratch, &["state", "backup"], 1);
    assert!(told.contains("is not saved"), "{told}");
    kill(&scratch, live);
    assert!(!scratch.path().join(".ralph/backups").exists());
}

/// The next run deletes incomplete backups of a killed runner and keeps complete ones.
#[test]
fn a_killed_runner_leaves_complete_backups_only() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[state]\nbackup_interval = \"1ms\"\nmax_backups = 0\n",
    );
    for round in 0..3 {
        let script = "i=0; while [ $i -lt 40 ]; do tachikoma note n$i; i=$((i+1)); done; sleep 600";
        let live = tachikoma(&scratch).spawn(run(&[], script));
        await_events(&scratch, "agent_launched", round + 1);
        await_until("some backups", SOON, || {
            backups(&scratch).len() > 3 * round + 1
        });
        kill(&scratch, live);
        let whole = |path: &&PathBuf| path.extension().is_some_and(|end| end == "tar");
        for path in backups(&scratch).iter().filter(whole) {
            // A writer may reserve the name with an empty file before it moves the backup there.
            let is_empty = fs::metadata(path).unwrap().len() == 0;
            let read =
                tachikoma_loop_runner::store::backup::read_through(path, &Encryption::plain());
            assert!(is_empty || read.is_ok(), "{}: {read:?}", path.display());
        }
    }
    say(
        &scratch,
        &["run", "--quiet", "--max-iterations", "1", "--", "true"],
        3,
    );
    let half = |path: &Path| path.extension().is_some_and(|end| end == "tmp");
    assert!(!backups(&scratch).iter().any(|path| half(path)));
}

/// `compress` applies to snapshot and backups, and changing it converts existing files.
#[test]
fn compress_packs_snapshot_and_backups_and_can_be_changed() {
    let scratch = with_history();
    let there = |name: &str| scratch.path().join(".ralph").join(name).exists();
    let before = status(&scratch);
    scratch.write("tachikoma.toml", "[state]\ncompress = true\n");
    assert_eq!(
        status(&scratch),
        before,
        "the uncompressed snapshot is read"
    );
    say(&scratch, &["state", "set", "plan", "7"], 0);
    assert!(there("state.json.zst") && !there("state.json"));
    say(&scratch, &up_to("2"), 3);
    assert!(there("state.json.zst") && !there("state.json"));
    assert_eq!(plan(&scratch), 7);
    let taken = backups(&scratch).remove(0);
    assert!(taken.to_str().unwrap().ends_with(".tar.zst"), "{taken:?}");
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(told.contains("snapshot    .ralph/state.json.zst"), "{told}");
    let warned = events(&scratch, "repaired").len() + events(&scratch, "warned").len();
    assert_eq!(warned, 0, "no file was moved to quarantine");

    // If the journal is deleted, the loop continues from the snapshot.
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "9"], BUSY));
    await_events(&scratch, "agent_launched", 3);
    kill(&scratch, live);
    fs::remove_dir_all(scratch.path().join(".ralph/loops")).unwrap();
    assert_eq!(status(&scratch)["loop_id"], before["loop_id"]);
    say(&scratch, &["state", "restore", "--yes"], 0);
    assert!(there("state.json.zst") && !there("state.json"));

    scratch.write("tachikoma.toml", "");
    say(
        &scratch,
        &["run", "--quiet", "--max-iterations", "3", "--", "true"],
        3,
    );
    assert!(!there("state.json.zst") && there("state.json"));
    scratch.write("tachikoma.toml", "[state]\ncompress = true\n");
    say(&scratch, &["state", "clear"], 0);
    assert!(!there("state.json.zst") && !there("state.json"));
    say(
        &scratch,
        &run(&["--quiet", "--max-iterations", "1"], "true"),
        3,
    );
    assert!(there("state.json.zst"));
    say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
    assert!(!scratch.path().join(".ralph").exists());
}

/// A compressed snapshot that is damaged or of another loop is handled like an uncompressed one.
#[test]
fn a_damaged_compressed_snapshot_loses_nothing() {
    let scratch = with_history();
    scratch.write("tachikoma.toml", "[state]\ncompress = true\n");
    say(&scratch, &["state", "set", "plan", "7"], 0);
    let path = scratch.path().join(".ralph/state.json.zst");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let told = say(&scratch, &["state", "verify"], 1);
    assert!(
        told.contains("wrong snapshot    .ralph/state.json.zst"),
        "{told}"
    );
    say(&scratch, &up_to("2"), 3);
    assert_eq!(plan(&scratch), 7);
    assert!(
        scratch
            .path()
            .join(".ralph/quarantine/state.json.zst.1")
            .exists()
    );
    say(&scratch, &["state", "verify"], 0);
}
