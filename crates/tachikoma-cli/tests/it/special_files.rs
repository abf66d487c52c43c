//! Named pipes, links and missing files in `.ralph`.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::process::Command;

use rustix::process::Signal;
use tachikoma_testkit::{Scratch, await_until};

use crate::support::{
    BUSY, SOON, await_events, kill, loops, run, start_busy, status, tachikoma, unprivileged,
    with_history,
};

fn make_pipe(scratch: &Scratch, path: &str) {
    let made = Command::new("mkfifo")
        .arg(scratch.path().join(path))
        .status();
    assert!(made.expect("mkfifo starts").success());
}

/// Runs every command that reads a loop and checks that none of them blocks. Then continues the loop.
fn check_goes_on(scratch: &Scratch, why: &str) {
    for words in [&["status"][..], &["state", "show"], &["events"]] {
        let ran = tachikoma(scratch).run(words);
        assert_eq!(ran.code(), Some(0), "{words:?}: {}", ran.snapshot());
    }
    let ran = tachikoma(scratch).run(["state", "verify"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(ran.stdout.contains(why), "{}", ran.snapshot());
    let ran = tachikoma(scratch).run(["run", "--max-iterations", "2", "--delay", "0s"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(ran.stdout.contains(why), "{}", ran.snapshot());
    assert_eq!(status(scratch)["iteration"], 2);
}

#[test]
fn a_pipe_instead_of_the_snapshot_does_not_block() {
    let scratch = with_history();
    fs::remove_file(scratch.path().join(".ralph/state.json")).expect("the test owns this file");
    make_pipe(&scratch, ".ralph/state.json");
    check_goes_on(&scratch, "it is not a regular file");
    let kept = scratch.path().join(".ralph/quarantine/state.json.1");
    let kept = fs::symlink_metadata(kept).expect("it is kept");
    assert!(kept.file_type().is_fifo());
}

#[test]
fn a_link_instead_of_the_snapshot_is_not_followed() {
    let scratch = with_history();
    let snapshot = scratch.path().join(".ralph/state.json");
    let elsewhere = scratch.home().join("elsewhere.json");
    fs::rename(&snapshot, &elsewhere).expect("the test owns this file");
    let before = fs::read(&elsewhere).expect("the test owns this file");
    symlink(&elsewhere, &snapshot).expect("the test owns this file");
    check_goes_on(&scratch, "it is a symbolic link");
    assert_eq!(
        fs::read(&elsewhere).expect("the test owns this file"),
        before
    );
    assert!(!snapshot.is_symlink());
}

#[test]
fn a_pipe_instead_of_the_lock_does_not_block() {
    let scratch = with_history();
    fs::remove_file(scratch.path().join(".ralph/lock")).expect("the test owns this file");
    make_pipe(&scratch, ".ralph/lock");
    let ran = tachikoma(&scratch).run(["status"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let ran = tachikoma(&scratch).run(["run"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(
        ran.stderr.contains(".ralph/lock: it is not a regular file"),
        "{}",
        ran.snapshot()
    );
}

#[test]
fn a_pipe_instead_of_the_journal_does_not_block() {
    let scratch = with_history();
    let journal = crate::support::journal(&scratch);
    let kept = fs::read(&journal).expect("the test owns this file");
    fs::remove_file(&journal).expect("the test owns this file");
    let made = Command::new("mkfifo").arg(&journal).status();
    assert!(made.expect("mkfifo starts").success());
    // The messages of these commands may differ, but none of them removes the pipe.
    for words in [&["status"][..], &["state", "verify"], &["run"]] {
        let ran = tachikoma(&scratch).run(words);
        assert_ne!(ran.code(), None, "{words:?}: {}", ran.snapshot());
    }
    fs::remove_file(&journal).expect("it is still there");
    fs::write(&journal, kept).expect("the test owns this file");
}

/// Known fault of other loops: the agent deleted the state files. They are restored during the iteration, because the runner may be killed
/// before its end.
#[test]
fn a_kill_after_all_files_were_deleted_loses_nothing() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[state]\nauto_save_interval = \"100ms\"\n",
    );
    // The script deletes the whole directory in one step, so that it does not delete restored files.
    let script = format!(
        "[ $TACHIKOMA_ATTEMPT = 2 ] && exit 0
         until grep -q agent_launched .ralph/loops/*/*; do sleep 0.01; done
         cat .ralph/loops/*/* >before; mv .ralph \"$HOME/gone\"; rm -rf \"$HOME/gone\"; {BUSY}"
    );
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "1"], &script));
    await_events(&scratch, "repaired", 2);
    // The agent's next `git add` must not add the loop's files.
    assert!(scratch.path().join(".ralph/.gitignore").exists());
    kill(&scratch, live);
    let before = scratch.read("before");
    let loop_id = status(&scratch)["loop_id"].clone();
    assert!(before.contains(loop_id.as_str().expect("a loop")));
    let ran = tachikoma(&scratch).run(["run"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(
        ran.stderr.contains("interrupted at iteration 1, attempt 1"),
        "{}",
        ran.snapshot()
    );
    assert_eq!(status(&scratch)["loop_id"], loop_id);
}

/// The first runner is stopped while all files are deleted and a second runner is started.
#[test]
fn a_second_runner_is_refused_after_all_files_were_deleted() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[state]\nauto_save_interval = \"100ms\"\n",
    );
    let mut first = start_busy(&scratch, &[]);
    let kept = status(&scratch)["loop_id"].clone();
    first.signal(Signal::STOP);
    fs::remove_dir_all(scratch.path().join(".ralph")).expect("the test owns this file");
    let second = start_busy(&scratch, &[]);
    first.signal(Signal::CONT);
    let ran = first.wait(SOON);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(
        ran.stderr
            .contains("the lock of the working directory was lost")
            && ran.stderr.contains("`tachikoma state clear`"),
        "{}",
        ran.snapshot()
    );
    let now = status(&scratch);
    assert_eq!(now["state"], "running", "the second loop is not affected");
    let other = now["loop_id"].as_str().expect("a loop").to_owned();
    assert_ne!(now["loop_id"], kept);
    await_until("its snapshot", SOON, || {
        fs::read_to_string(scratch.path().join(".ralph/state.json"))
            .is_ok_and(|text| text.contains(&other))
    });
    assert!(!scratch.path().join(".ralph/quarantine").exists());
    assert_eq!(loops(&scratch).len(), 2, "the first loop still exists");

    // These are the commands that the hint suggests.
    for words in [&["stop", "--now"][..], &["state", "clear"]] {
        let ran = tachikoma(&scratch).run(words);
        assert_eq!(ran.code(), Some(0), "{words:?}: {}", ran.snapshot());
        await_until("the second one to end", SOON, || {
            !tachikoma_loop_runner::store::lock::is_held(&scratch.path())
        });
    }
    assert_eq!(second.wait(SOON).code(), Some(5));
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1", "--quiet"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["loop_id"], kept);
}

/// A file that cannot be moved away is not overwritten.
#[test]
fn an_unmovable_file_in_place_of_the_snapshot_stays() {
    let scratch = Scratch::new();
    let script = "[ $TACHIKOMA_ITERATION != 2 ] && exit 0
        until grep -q '\"iteration\": 2' .ralph/state.json; do sleep 0.01; done
        echo mine >.ralph/state.json; mkdir .ralph/quarantine; chmod 500 .ralph/quarantine";
    let ran = unprivileged(&scratch).run(run(&["--max-iterations", "3"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read(".ralph/state.json"), "mine\n");
    let warned = "the snapshot is not up to date: move away";
    assert!(ran.stdout.contains(warned), "{}", ran.snapshot());
}
