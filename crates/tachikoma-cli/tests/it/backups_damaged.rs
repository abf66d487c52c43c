//! Restores with damaged backups, interrupted restores and concurrent restores: no loops are mixed, and no records are lost.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use tachikoma_testkit::Scratch;

use crate::backups::{back_up, backups, plan, say, up_to};
use crate::support::{files, journal, loops, status, tachikoma, unprivileged, with_history};

fn ralph(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.path().join(".ralph").join(name)
}

fn restore(scratch: &Scratch, file: &Path) -> String {
    say(
        scratch,
        &["state", "restore", "--yes", file.to_str().unwrap()],
        0,
    )
}

/// Replaces a line of a journal by another one of the same length.
pub fn damage(path: &Path, line: usize) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[line - 1] = lines[line - 1].replacen("\"seq\"", "\"sea\"", 1);
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn segments_of_two_epochs_with_one_number_are_not_mixed() {
    let scratch = with_history();
    let first = back_up(&scratch);
    restore(&scratch, &first);
    say(&scratch, &["state", "set", "plan", "2"], 0);
    back_up(&scratch);
    fs::remove_dir_all(ralph(&scratch, "loops")).unwrap();
    fs::remove_file(ralph(&scratch, "state.json")).unwrap();
    restore(&scratch, &first);
    say(&scratch, &["state", "set", "plan", "3"], 0);
    say(&scratch, &["state", "set", "more", "3"], 0);
    fs::remove_file(ralph(&scratch, "state.json")).unwrap();
    damage(&loops(&scratch)[0].join("journal-0002.jsonl"), 2);
    let told = say(&scratch, &["state", "show"], 1);
    assert!(told.contains("is damaged at line 2"), "{told}");
}

#[test]
fn a_loop_that_runs_in_two_directories_is_controlled_in_each() {
    let here = with_history();
    let there = Scratch::new();
    there.write("prompt.md", "go on\n");
    restore(&there, &back_up(&here));
    let runtime = here.runtime_dir();
    let tool = |scratch| tachikoma(scratch).env("XDG_RUNTIME_DIR", runtime.to_str().unwrap());
    let go_on = ["run", "--detach", "--attended", "--max-iterations", "9"];
    for scratch in [&here, &there] {
        let ran = tool(scratch).run(go_on);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    }
    let outcome = |scratch| tool(scratch).run(["status", "--json"]).json()["outcome"].clone();
    for (scratch, other) in [(&here, Some(&there)), (&there, None)] {
        let ran = tool(scratch).run(["stop"]);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        assert_eq!(outcome(scratch)["kind"], "operator");
        if let Some(other) = other {
            assert!(outcome(other).is_null(), "the other loop continues");
        }
    }
}

/// A restore was killed before it moved the old snapshot.
#[test]
fn the_snapshot_of_an_earlier_epoch_is_not_used() {
    let scratch = with_history();
    let taken = back_up(&scratch);
    say(&scratch, &["state", "set", "plan", "8"], 0);
    say(&scratch, &up_to("3"), 3);
    let before = fs::read(ralph(&scratch, "state.json")).unwrap();
    restore(&scratch, &taken);
    fs::write(ralph(&scratch, "state.json"), &before).unwrap();
    assert_eq!(plan(&scratch), serde_json::Value::Null);
    say(&scratch, &up_to("2"), 3);
    assert_eq!(status(&scratch)["iteration"], 2);
    say(&scratch, &["state", "verify"], 0);
    let kept = files(&ralph(&scratch, "quarantine"));
    assert!(
        kept.values().any(|bytes| *bytes == before),
        "{:?}",
        kept.keys()
    );
}

/// The journal lost records that only the snapshot contains.
#[test]
fn a_restoration_keeps_the_snapshot_of_a_loop_that_cannot_be_backed_up() {
    let scratch = with_history();
    let taken = back_up(&scratch);
    say(&scratch, &["state", "set", "plan", "8"], 0);
    let snapshot = fs::read(ralph(&scratch, "state.json")).unwrap();
    say(&scratch, &["state", "set", "plan", "9"], 0);
    say(&scratch, &["state", "set", "plan", "10"], 0);
    fs::write(ralph(&scratch, "state.json"), &snapshot).unwrap();
    let path = journal(&scratch);
    let lines = fs::read_to_string(&path).unwrap().lines().count();
    damage(&path, lines - 5);
    damage(&path, lines - 1);
    let elsewhere = scratch.home().join("copy.tar");
    fs::rename(&taken, &elsewhere).unwrap();
    let told = restore(&scratch, &elsewhere);
    assert!(told.contains("could not be backed up"), "{told}");
    let kept = files(&ralph(&scratch, "quarantine"));
    assert!(
        kept.values().any(|bytes| *bytes == snapshot),
        "{:?}",
        kept.keys()
    );
}

#[test]
fn a_locked_loop_in_the_way_of_a_restore_is_moved_away() {
    let hurt: [fn(&Path); 4] = [
        |dir| {
            fs::remove_file(dir.join("journal-0001.jsonl")).unwrap();
            fs::create_dir(dir.join("journal-0001.jsonl")).unwrap();
        },
        |dir| {
            let journal = dir.join("journal-0001.jsonl");
            fs::rename(&journal, dir.join("elsewhere")).unwrap();
            symlink("elsewhere", journal).unwrap();
        },
        |dir| {
            let journal = dir.join("journal-0001.jsonl");
            fs::remove_file(&journal).unwrap();
            let made = std::process::Command::new("mkfifo").arg(journal).status();
            assert!(made.unwrap().success());
        },
        |dir| {
            fs::remove_dir_all(dir).unwrap();
            fs::write(dir, "a file").unwrap();
        },
    ];
    for (number, hurt) in hurt.iter().enumerate() {
        for named in [true, false] {
            let scratch = with_history();
            say(&scratch, &["state", "set", "plan", "7"], 0);
            let taken = back_up(&scratch);
            hurt(&loops(&scratch)[0]);
            let mut words = vec!["state", "restore", "--yes"];
            words.extend(named.then_some(taken.to_str().unwrap()));
            let told = say(&scratch, &words, 0);
            assert!(told.contains("warning: "), "{number}: {told}");
            assert_eq!(plan(&scratch), 7, "{number}");
            let quarantine = fs::read_dir(ralph(&scratch, "quarantine")).unwrap();
            assert!(quarantine.count() > 0, "{number}");
            say(&scratch, &up_to("2"), 3);
        }
    }
}

/// A complete last record without a newline is not damage, even in a closed segment.
#[test]
fn a_backup_with_a_missing_line_end_restores_an_undamaged_loop() {
    let scratch = with_history();
    let path = journal(&scratch);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.trim_end()).unwrap();
    let taken = back_up(&scratch);
    let there = Scratch::new();
    restore(&there, &taken);
    say(&there, &["state", "verify"], 0);
    fs::remove_file(ralph(&there, "state.json")).unwrap();
    assert_eq!(status(&there)["iteration"], 1);
}

#[test]
fn a_backup_is_restored_without_its_earlier_segments() {
    let scratch = with_history();
    let taken = back_up(&scratch);
    restore(&scratch, &taken);
    say(&scratch, &up_to("2"), 3);
    let taken = back_up(&scratch);
    let second = fs::read_to_string(loops(&scratch)[0].join("journal-0002.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(second.lines().next().unwrap()).unwrap();
    let there = Scratch::new();
    restore(&there, &taken);
    let kept = fs::read_to_string(loops(&there)[0].join("journal-0002.jsonl")).unwrap();
    let behind = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(behind(&kept), behind(&second));
    let told = say(&there, &["state", "verify"], 0);
    let lost = format!(
        "records 1 to {} are lost",
        first["seq"].as_u64().unwrap() - 1
    );
    assert!(told.contains(&lost), "{told}");
    assert_eq!(status(&there)["iteration"], 2);
}

/// A restore that cannot swap two directories atomically moves the loop away for a moment. Here it was killed at that moment.
#[test]
fn the_next_run_puts_back_a_loop_that_an_interrupted_restore_moved_away() {
    let scratch = with_history();
    let before = status(&scratch);
    let dir = loops(&scratch)[0].clone();
    let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
    let was = dir.with_file_name(format!(".was-{name}"));
    fs::rename(&dir, &was).unwrap();
    let half = dir.with_file_name(format!(".state-{}.tmp", "0".repeat(32)));
    fs::create_dir(&half).unwrap();
    for words in [&["status"][..], &["state", "verify"]] {
        let told = say(&scratch, words, 1);
        assert!(
            told.contains("a restore of the loop was interrupted"),
            "{told}"
        );
    }
    say(&scratch, &up_to("2"), 3);
    let after = status(&scratch);
    assert_eq!(
        (&after["loop_id"], &after["iteration"]),
        (&before["loop_id"], &2.into())
    );
    assert!(!was.exists() && !half.exists());

    // The loop is in its place, so the directory left by the interrupted restore is moved to quarantine.
    fs::create_dir(&was).unwrap();
    fs::write(was.join("journal-0001.jsonl"), "").unwrap();
    say(&scratch, &up_to("3"), 3);
    assert!(!was.exists());
    let quarantine = files(&ralph(&scratch, "quarantine"));
    assert!(
        quarantine
            .keys()
            .any(|path| path.ends_with("journal-0001.jsonl"))
    );
}

#[test]
fn a_restore_is_not_undone_by_the_next_restore() {
    let scratch = with_history();
    say(&scratch, &["state", "set", "plan", "7"], 0);
    back_up(&scratch);
    say(&scratch, &["state", "set", "plan", "8"], 0);
    say(&scratch, &["state", "restore", "--yes"], 0);
    assert_eq!(plan(&scratch), 7);
    let told = say(&scratch, &["state", "restore", "--yes"], 0);
    assert!(
        told.contains("an earlier restore replaced that loop"),
        "{told}"
    );
    assert_eq!(plan(&scratch), 7);
}

/// A loop in a parent directory is a different loop, which neither `restore` nor `run` uses.
#[test]
fn a_restore_replaces_an_existing_file() {
    let scratch = with_history();
    let taken = back_up(&scratch);
    let above = Scratch::new();
    above.write("prompt.md", "go\n");
    say(
        &above,
        &["run", "--quiet", "--max-iterations", "1", "--", "true"],
        3,
    );
    let before = status(&above);
    fs::create_dir(above.path().join("below")).unwrap();
    let link = above.home().join("link.tar");
    symlink(&taken, &link).unwrap();
    let tool = tachikoma(&above).in_dir("below");
    let ran = tool.run(["state", "restore", "--yes", link.to_str().unwrap()]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(ran.stdout.contains("/below; "), "{}", ran.stdout);
    assert!(above.path().join("below/.ralph/loops").exists());
    assert_eq!(status(&above), before);
}

/// An old backup that cannot be deleted is kept, and the new backup is made.
#[test]
fn a_backup_is_taken_even_if_an_old_one_cannot_be_deleted() {
    let scratch = with_history();
    scratch.write("tachikoma.toml", "[state]\nmax_backups = 1\n");
    let first = back_up(&scratch);
    let tool = unprivileged(&scratch);
    let dir = first.parent().unwrap();
    std::os::unix::fs::chown(&first, Some(0), Some(0)).unwrap();
    std::os::unix::fs::chown(dir, Some(0), Some(0)).unwrap();
    fs::set_permissions(&first, fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap();
    let ran = tool.run(["state", "set", "plan", "7"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let ran = tool.run(["state", "backup"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        ran.stderr
            .contains("warning: an older backup could not be removed (remove "),
        "{}",
        ran.stderr
    );
    assert!(scratch.path().join(ran.stdout.trim()).exists() && first.exists());
}

/// In the default backup directory, unreadable backups are recognized by their name and deleted.
#[test]
fn a_purge_deletes_damaged_backups() {
    let scratch = with_history();
    let taken = back_up(&scratch);
    let mut bytes = fs::read(&taken).unwrap();
    bytes[600] ^= 1;
    fs::write(&taken, bytes).unwrap();
    assert_eq!(backups(&scratch).len(), 1);
    say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
    assert!(!scratch.path().join(".ralph").exists());
}

/// Two directories share a backup directory, and the loop of the second one was restored from a backup of the first.
#[test]
fn a_purge_keeps_backups_of_other_loops_in_a_shared_directory() {
    let here = with_history();
    let there = Scratch::new();
    let shared = here.home().join("shared");
    let setting = format!(
        "[state]\nmax_backups = 2\nbackup_dir = \"{}\"\n",
        shared.display()
    );
    here.write("tachikoma.toml", &setting);
    there.write("tachikoma.toml", &setting);
    let ours = [back_up(&here), back_up(&here)];
    restore(&there, &ours[0]);
    for number in ["1", "2", "3"] {
        say(&there, &["state", "set", "plan", number], 0);
        back_up(&there);
    }
    assert!(ours.iter().all(|path| path.exists()));
    say(&here, &["state", "restore", "--yes"], 0);
    assert_eq!(
        plan(&here),
        serde_json::Value::Null,
        "the backup belongs to the other loop"
    );
    say(&there, &["state", "clear", "--purge", "--yes"], 0);
    assert!(
        ours.iter().all(|path| path.exists()),
        "{:?}",
        files(&shared).keys()
    );
}

/// The restore fails when it archives the other loop, after the restored loop is in its place.
#[test]
fn a_restore_that_fails_late_is_undone() {
    let scratch = with_history();
    let taken = back_up(&scratch);
    let dir = loops(&scratch)[0].clone();
    let new = [
        "run",
        "--new",
        "--quiet",
        "--max-iterations",
        "1",
        "--",
        "true",
    ];
    say(&scratch, &new, 3);
    let tool = unprivileged(&scratch);
    let status = || tool.run(["status", "--json"]).json();
    let before = (status(), files(&dir));
    let name = before.0["loop_id"].as_str().unwrap();
    let other = ralph(&scratch, "loops").join(name);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o500)).unwrap();
    let ran = tool.run(["state", "restore", "--yes", taken.to_str().unwrap()]);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!((status(), files(&dir)), before);
    assert_eq!(fs::read_dir(ralph(&scratch, "loops")).unwrap().count(), 2);
}
