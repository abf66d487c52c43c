//! With `state.enabled = false`, the loop works and leaves no files.

use std::fs;
use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use tachikoma_testkit::{Scratch, Tool, await_until};

use crate::autocommit_support::{WORK, repository, snapshots, subjects};
use crate::support::{BUSY, SOON, files, kill, loops, run, shown, status, tachikoma, with_history};

const UNKEPT: &str = "[state]\nenabled = false\n";

/// Returns the binary with its own temporary directory.
fn unkept(scratch: &Scratch) -> Tool<'_> {
    scratch.write("tachikoma.toml", UNKEPT);
    let temporary = scratch.home().join("tmp");
    fs::create_dir_all(&temporary).expect("the test owns this file");
    tachikoma(scratch).env("TMPDIR", temporary)
}

/// Returns the files in the temporary directory.
fn stores(scratch: &Scratch) -> Vec<PathBuf> {
    let user = fs::read_dir(scratch.home().join("tmp")).expect("the test owns this file");
    let below = user
        .flatten()
        .filter_map(|dir| fs::read_dir(dir.path()).ok());
    below
        .flatten()
        .flatten()
        .map(|store| store.path())
        .collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_loop_with_temporary_state_runs_to_its_end_and_leaves_no_files() {
    let scratch = Scratch::new();
    let script = "echo $TACHIKOMA_ITERATION; [ $TACHIKOMA_ITERATION = 2 ] && exit 1; true";
    let ran = unkept(&scratch).run(run(&["--max-iterations", "3"], script));
    let user = format!("tachikoma-{}/", rustix::process::geteuid().as_raw());
    let shown = shown(&ran).replace(&user, "[USER]/");
    assert_snapshot!(shown, @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c echo $TACHIKOMA_ITERATION; [ $TACHIKOMA_ITERATION = 2 ] && exit 1; true`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      3 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | 1
      ✓ done in [DURATION]
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | 2
      ✗ failed after [DURATION]: the agent ended with exit 1
      ↻ retry in [DURATION] (failure 1 of 10)
    ━━ iteration 3 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | 3
      ✓ done in [DURATION]
    ! completed: the limit of 3 iterations is reached (3 iterations, 2 succeeded, 1 failed, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    note: `state.enabled` is false: this loop cannot be resumed; its journal is in [HOME]/tmp/[USER]/[LOOP], and gone at its end
    hint: this loop is not saved (`state.enabled = false`); `tachikoma run` starts a new one
    ");
    assert_eq!(stores(&scratch), Vec::<PathBuf>::new());
    assert_eq!(
        names(&scratch.path().join(".ralph")),
        [".gitignore", "lock"]
    );
    assert_eq!(status(&scratch)["loop_id"], serde_json::Value::Null);

    // The next run starts a new loop, because no loop can be resumed.
    let ran = unkept(&scratch).run(run(&["--max-iterations", "1", "--json"], "true"));
    assert!(
        ran.stdout.contains("\"resumption\":{\"kind\":\"new\"}"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_live_loop_with_temporary_state_answers_requests() {
    let scratch = Scratch::new();
    let tool = unkept(&scratch);
    let live = tool.spawn(run(&[], &format!("echo hello; {BUSY}")));
    await_until("the agent to speak", SOON, || {
        live.stdout().contains("| hello")
    });
    let below = scratch.path().join("below");
    fs::create_dir(&below).expect("the test owns this file");

    let status = unkept(&scratch).in_dir("below").run(["status", "--json"]);
    let status = status.json();
    assert_eq!(
        (&status["state"], &status["iteration"]),
        (&"running".into(), &1.into())
    );
    let events = tool.run(["events"]);
    assert!(
        events.stdout.contains("━━ iteration 1 ━━"),
        "{}",
        events.snapshot()
    );
    let logs = tool.run(["logs"]);
    assert_eq!(logs.stdout, "hello\n", "{}", logs.snapshot());
    let second = tool.run(run(&[], "true"));
    assert!(
        second.stderr.contains("another runner works in"),
        "{}",
        second.snapshot()
    );
    assert_eq!(
        stores(&scratch).len(),
        1,
        "a second runner does not remove the state of the first one"
    );

    assert_eq!(tool.run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert_eq!(stores(&scratch), Vec::<PathBuf>::new());
}

#[test]
fn temporary_state_of_a_killed_runner_is_removed_at_the_next_start() {
    let scratch = Scratch::new();
    let tool = unkept(&scratch);
    let live = tool.spawn(run(&[], &format!("touch up; {BUSY}")));
    await_until("the agent", SOON, || scratch.path().join("up").exists());
    let left = stores(&scratch);
    assert_eq!(left.len(), 1);
    kill(&scratch, live);
    assert_eq!(stores(&scratch), left, "the killed runner did not clean up");

    let ran = tool.run(run(&["--json", "--max-iterations", "1"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("\"resumption\":{\"kind\":\"new\"}"),
        "{}",
        ran.stdout
    );
    assert_eq!(stores(&scratch), Vec::<PathBuf>::new());
}

#[test]
fn temporary_state_of_a_killed_runner_can_be_purged() {
    let scratch = Scratch::new();
    let tool = unkept(&scratch);
    let live = tool.spawn(run(&[], &format!("touch up; {BUSY}")));
    await_until("the agent", SOON, || scratch.path().join("up").exists());
    kill(&scratch, live);
    let ran = tool.run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(stores(&scratch), Vec::<PathBuf>::new());
    assert!(!scratch.path().join(".ralph").exists());
    // Without files of Tachikoma there is nothing to purge.
    let ran = tool.run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
}

#[test]
fn a_saved_loop_is_not_used_with_temporary_state() {
    let scratch = with_history();
    let kept = status(&scratch)["loop_id"].clone();
    let before = files(&scratch.path().join(".ralph"));
    let ran = unkept(&scratch).run(run(&["--max-iterations", "1"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(!ran.stderr.contains("resuming"), "{}", ran.stderr);
    assert_eq!(files(&scratch.path().join(".ralph")), before);
    assert_eq!(loops(&scratch).len(), 1);

    fs::remove_file(scratch.path().join("tachikoma.toml")).expect("the test owns this file");
    let ran = tachikoma(&scratch).run(["run", "--max-iterations", "2", "--delay", "0s"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["loop_id"], kept);
    assert_eq!(status(&scratch)["iteration"], 2);
}

#[test]
fn git_snapshots_of_temporary_state_are_removed_and_commits_stay() {
    let scratch = repository(UNKEPT);
    let temporary = scratch.home().join("tmp");
    fs::create_dir_all(&temporary).expect("the test owns this file");
    let tool = tachikoma(&scratch).env("TMPDIR", temporary);
    let script = format!("{WORK} [ $TACHIKOMA_ITERATION != 3 ] || {BUSY}");
    let ran = tool.run(run(&["--max-iterations", "2"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(subjects(&scratch).len(), 3);
    assert_eq!(snapshots(&scratch), []);
    // The snapshots are removed after a kill of the runner, too.
    let live = tool.spawn(run(&[], &format!("{WORK} {BUSY}")));
    await_until("a snapshot", SOON, || !snapshots(&scratch).is_empty());
    kill(&scratch, live);
    let ran = tool.run(run(&["--max-iterations", "1", "--allow-dirty"], WORK));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(snapshots(&scratch), []);
}
