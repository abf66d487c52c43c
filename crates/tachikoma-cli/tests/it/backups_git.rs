//! Backups inside the work tree are not treated as work of the agent.

use tachikoma_testkit::{Scratch, await_until};

use crate::autocommit_support::{dirty, subjects};
use crate::backups::{back_up, say};
use crate::git_support::{commit_all, repository};
use crate::support::{SOON, as_configured, files, journals, kill, loops, run, status, tachikoma};

const KEPT: &str = "[state]\nbackup_dir = \"kept\"\nmax_backups = 0\nbackup_interval = \"1ms\"\n";

fn kept(scratch: &Scratch) -> usize {
    files(&scratch.path().join("kept")).len()
}

#[test]
fn backups_in_the_work_tree_are_neither_committed_nor_rolled_back() {
    let scratch = repository();
    scratch.write("tachikoma.toml", KEPT);
    scratch.write("kept/notes", "mine\n");
    commit_all(&scratch);
    let script = "echo $TACHIKOMA_ITERATION > work; echo $TACHIKOMA_ITERATION > kept/notes; tachikoma state backup";
    say(
        &scratch,
        &run(&["--quiet", "--max-iterations", "3"], script),
        3,
    );
    back_up(&scratch);
    let before = kept(&scratch);
    assert!(before > 4, "{before}");
    let names = scratch.git(&["log", "--all", "--name-only", "--format=", "--", "kept"]);
    assert!(
        names
            .lines()
            .all(|name| name.is_empty() || name == "kept/notes"),
        "{names}"
    );
    assert_eq!(scratch.git(&["log", "--format=%s"]).lines().count(), 5);
    say(&scratch, &["rollback", "2", "--yes"], 0);
    assert_eq!(
        scratch.read("kept/notes"),
        "1\n",
        "this file belongs to the user"
    );
    assert!(kept(&scratch) >= before, "{} of {before}", kept(&scratch));
}

#[test]
fn a_backup_in_the_work_tree_does_not_count_as_progress() {
    for scratch in [repository(), Scratch::new()] {
        scratch.write("tachikoma.toml", KEPT);
        let words = run(&["--allow-dirty"], "tachikoma state backup");
        let ran = as_configured(&scratch).run(words);
        assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
        assert_eq!(status(&scratch)["stats"]["no_progress_count"], 5);
        assert!(kept(&scratch) >= 5);
    }
}

/// Iterations that run again after a restore create new snapshots.
#[test]
fn snapshots_of_iterations_after_the_restored_one_are_moved_away() {
    let scratch = repository();
    let script = "echo life $LIFE iteration $TACHIKOMA_ITERATION >> work";
    let iterate = |life: &str, count: &str| {
        let words = run(
            &["--quiet", "--allow-dirty", "--max-iterations", count],
            script,
        );
        let ran = tachikoma(&scratch).env("LIFE", life).run(words);
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    };
    iterate("1", "1");
    let taken = back_up(&scratch);
    iterate("1", "3");
    say(
        &scratch,
        &["state", "restore", "--yes", taken.to_str().unwrap()],
        0,
    );
    scratch.write("work", "as restored\n");
    iterate("2", "3");
    let loop_id = loops(&scratch)[0]
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let work =
        |name: &str| scratch.git(&["show", &format!("refs/tachikoma/{loop_id}/{name}:work")]);
    assert_eq!(work("2"), "as restored\n");
    assert_eq!(work("3"), "as restored\nlife 2 iteration 2\n");
    assert_eq!(
        work("before-restore-1/3"),
        "life 1 iteration 1\nlife 1 iteration 2\n"
    );
    say(&scratch, &["rollback", "2", "--yes"], 0);
    assert_eq!(scratch.read("work"), "as restored\n");
    say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
    assert_eq!(scratch.git(&["for-each-ref", "refs/tachikoma"]), "");
}

/// After a restore, uncommitted work of the killed loop is committed, and later changes of the user are not.
#[test]
fn a_restored_loop_commits_its_uncommitted_work() {
    for hurt in [false, true] {
        let scratch = repository();
        let held = scratch.home().join("go");
        let script = format!(
            "echo $TACHIKOMA_ITERATION >> work; test $TACHIKOMA_ITERATION != 3 || test -e {held} || exec sleep 600",
            held = held.display()
        );
        let words = |count| {
            run(
                &["--quiet", "--allow-dirty", "--max-iterations", count],
                &script,
            )
        };
        say(&scratch, &words("2"), 3);
        back_up(&scratch);
        let live = tachikoma(&scratch).spawn(words("4"));
        await_until("the third iteration at work", SOON, || {
            scratch.read("work") == "1\n2\n3\n"
        });
        kill(&scratch, live);
        let written = |name: &str| {
            let there = scratch.path().join(name).metadata();
            there.unwrap().modified().unwrap()
        };
        // The file times of the user's change and of the restore must differ.
        await_until("a tick of the clock", SOON, || {
            scratch.write("tracked", "mine\n");
            written("tracked") > written(".ralph/lock")
        });
        if hurt {
            let journal = journals(&scratch).into_keys().next_back().unwrap();
            std::fs::OpenOptions::new()
                .append(true)
                .open(&journal)
                .and_then(|mut file| std::io::Write::write_all(&mut file, b"garbage\ngarbage\n"))
                .unwrap();
        }
        let told = say(&scratch, &["state", "restore", "--yes"], 0);
        assert_eq!(told.contains("could not be backed up"), hurt, "{told}");
        std::fs::write(&held, "").unwrap();
        say(&scratch, &words("4"), 3);
        assert_eq!(scratch.read("work"), "1\n2\n3\n3\n4\n");
        assert_eq!(dirty(&scratch), " M tracked\n", "{hurt}");
        assert_eq!(subjects(&scratch).len(), 5, "{hurt}");
    }
}

#[test]
fn without_a_terminal_a_restore_needs_a_flag_and_hints_name_it() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "work\n");
    for (words, code, says) in [
        (
            &["state", "restore"][..],
            2,
            "error: this restores a loop, and there is no terminal to ask for confirmation\nhint: nothing was changed; use `--yes`\n",
        ),
        (
            &["state", "restore", "--yes", "nosuch.tar"],
            1,
            "hint: `tachikoma state backups` lists local backups",
        ),
        (
            &["state", "backups", "--from", "file:///nodir"],
            1,
            "hint: the directory must exist and be writable: is the disk mounted?",
        ),
    ] {
        let ran = tachikoma(&scratch).run(words);
        assert_eq!(ran.code(), Some(code), "{}", ran.snapshot());
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
}
