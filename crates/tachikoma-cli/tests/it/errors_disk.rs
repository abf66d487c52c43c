//! A full disk: the loop waits until there is space, and can be stopped.

use std::io::Write as _;

use insta::assert_snapshot;
use tachikoma_testkit::{Scratch, Tool};

use crate::support::{PATIENCE, shown};

/// Runs a script with `.ralph` on a private disk of 256 KiB. Returns its output; `None` if such a disk cannot be mounted.
fn on_a_small_disk(scratch: &Scratch, script: &str) -> Option<String> {
    let mount = "mkdir .ralph && mount -t tmpfs -o size=256k,mode=700 tmpfs .ralph || exit 77\n";
    let script = format!("{mount}{script}");
    let root = rustix::process::geteuid().is_root();
    let namespace = if root { "-m" } else { "-rm" };
    let words = [
        namespace,
        "sh",
        "-c",
        &script,
        env!("CARGO_BIN_EXE_tachikoma"),
    ];
    let ran = Tool::new("unshare", scratch).env(PATIENCE, "0").run(words);
    if ran.stderr.contains("unshare failed") || ran.code() == Some(77) {
        skipped(&format!(
            "no small disk can be had here: {}",
            ran.snapshot()
        ));
        return None;
    }
    Some(shown(&ran))
}

#[test]
fn a_manual_backup_on_a_full_disk_fails_and_suggests_to_free_space() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    let script = r#"
        "$0" run --quiet --max-iterations 1 -- true 2>/dev/null
        head -c 300000 /dev/zero >.ralph/ballast 2>/dev/null
        "$0" state backup
        echo "exit $?"
    "#;
    if let Some(shown) = on_a_small_disk(&scratch, script) {
        assert!(shown.contains("exit 1"), "{shown}");
        let hint = "hint: nothing was changed; free some disk space and try again";
        assert!(shown.contains(hint), "{shown}");
    }
}

#[test]
fn a_disk_that_is_full_at_the_start_is_an_error() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    let script = r#"
        "$0" run --quiet --max-iterations 1 -- true
        head -c 300000 /dev/zero >.ralph/ballast 2>/dev/null
        "$0" run --quiet --new -- true
        echo "exit $?"
        ls .ralph/loops | wc -l
        rm .ralph/ballast
        "$0" run --quiet --max-iterations 2
        echo "exit $?"
    "#;
    if let Some(shown) = on_a_small_disk(&scratch, script) {
        assert_snapshot!(shown, @"
        exit: 0
        --- stdout
        completed: the limit of 1 iteration is reached (1 iteration, 1 succeeded, [DURATION] of work)
        exit 1
        1
        completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
        exit 3
        --- stderr
        hint: raise `--max-iterations` to continue, or use `--new` to start over
        error: write [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl: No space left on device (os error 28)
        hint: free some space; `tachikoma run` continues when there is space
        resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): iteration 2 is next; the state is from [SOURCE]
        note: `max_iterations` is 2 now; it was 1
        hint: raise `--max-iterations` to continue, or use `--new` to start over
        ");
    }
}

/// Fills most of the disk, runs a loop until it waits for space, and then runs `script`, in which `$pid` is the runner.
fn check_full(script: &str) -> Option<String> {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    let begin = r#"
        exec 2>&1
        head -c 200000 /dev/zero >.ralph/ballast
        "$0" run --quiet --delay 0s -- sh -c 'test -e .ralph/ballast || { touch work; echo "<promise>COMPLETE</promise>"; }' >log 2>&1 &
        pid=$!
        # A runner that is busy for long is not waited for, and then that is said.
        until shown=$("$0" status 2>/dev/null); echo "$shown" | grep -q disk_full; do sleep 0.05; done
        echo "$shown" | grep -e ^state -e ^waiting
    "#;
    let end = r#"
        "$0" events | grep -o 'there is room on the disk again' || echo "no wait on record"
    "#;
    let shown = on_a_small_disk(&scratch, &format!("{begin}{script}{end}"))?;
    // The number of iterations that fit on the disk depends on the file system, so numbers are masked.
    let parts: Vec<String> = shown
        .split_inclusive(|c: char| !c.is_ascii_digit())
        .map(
            |part| match part.trim_end_matches(|c: char| !c.is_ascii_digit()) {
                number if number.len() > 1 => part.replace(number, "[N]"),
                _ => part.to_owned(),
            },
        )
        .collect();
    // The last record that fits on the disk may be the end of an iteration or the start of the survey of its changes.
    let repeated = "the iteration is repeated as attempt 2";
    let looked = "its changes are surveyed and committed again";
    Some(parts.concat().replace(looked, repeated))
}

#[test]
fn a_loop_on_a_full_disk_continues_when_space_is_free() {
    let script = r#"
        "$0" pause
        rm .ralph/ballast
        wait $pid
        echo "exit $?"
        cat log
    "#;
    if let Some(shown) = check_full(script) {
        assert_snapshot!(shown, @"
        exit: 0
        --- stdout
        state      running
        waiting    disk_full until [TIME]
        error: the disk is full: nothing can be recorded, so only `stop` is possible; free some space, and the loop continues by itself (the loop is running)
        exit 0
        completed: the work is complete ([N] iterations, [N] succeeded, [DURATION] of work)
        no wait on record
        --- stderr
        ");
    }
}

#[test]
fn a_loop_on_a_full_disk_can_be_stopped() {
    let script = r#"
        "$0" stop
        wait $pid
        echo "exit $?"
        cat log
        rm .ralph/ballast
        "$0" run --quiet
    "#;
    if let Some(shown) = check_full(script) {
        assert_snapshot!(shown, @"
        exit: 0
        --- stdout
        state      running
        waiting    disk_full until [TIME]
        stopped; the disk is full, so the stop was not recorded
        exit 5
        note: the disk is full: the end of this run was not recorded, and `tachikoma run` continues where the journal ends
        stopped: stopped by the operator ([N] iterations, [N] succeeded, [DURATION] of work)
        hint: `tachikoma run` continues where it stopped
        resuming [LOOP], interrupted at iteration [N], attempt 1: the iteration is repeated as attempt 2; the state is from [SOURCE]
        completed: the work is complete ([N] iterations, [N] succeeded, [DURATION] of work)
        no wait on record
        --- stderr
        ");
    }
}

#[test]
fn a_signal_ends_a_loop_on_a_full_disk() {
    let script = r#"
        kill -TERM $pid
        wait $pid
        [ $? = 143 ] && echo "exit of SIGTERM"
        cat log
        rm .ralph/ballast
        "$0" run --quiet
    "#;
    if let Some(shown) = check_full(script) {
        assert_snapshot!(shown, @"
        exit: 0
        --- stdout
        state      running
        waiting    disk_full until [TIME]
        exit of SIGTERM
        note: the disk is full: the end of this run was not recorded, and `tachikoma run` continues where the journal ends
        stopped: stopped by SIGTERM ([N] iterations, [N] succeeded, [DURATION] of work)
        hint: `tachikoma run` continues where it stopped
        resuming [LOOP], interrupted at iteration [N], attempt 1: the iteration is repeated as attempt 2; the state is from [SOURCE]
        completed: the work is complete ([N] iterations, [N] succeeded, [DURATION] of work)
        no wait on record
        --- stderr
        ");
    }
}

/// Writes to the terminal directly, because the test harness hides the output of passing tests.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
