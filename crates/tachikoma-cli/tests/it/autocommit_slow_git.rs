//! A git command that hangs: the loop waits for a limited time and obeys commands meanwhile.

use std::time::{Duration, Instant};

use tachikoma_testkit::{Scratch, Tool, await_until, processes_with};

use crate::autocommit_support::{WORK, git_hook, path_with_git, repository, subjects};
use crate::claude_support::{claude, says, scenario, stage};
use crate::live_support::{await_nobody, seconds};
use crate::support::{SOON, await_events, events, run, status, tachikoma};

/// Upper bound for these tests: half the time that an iteration waits for its snapshot.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Returns the binary with a git wrapper that hangs at a snapshot commit if the shell condition is true.
fn slow<'a>(tool: Tool<'a>, scratch: &Scratch, condition: &str, seconds: &str) -> Tool<'a> {
    // Without an uncommitted change, no snapshot commit would be created.
    scratch.write("theirs", "not committed");
    let marks = scratch.home();
    let hangs = marks.join("hangs");
    let script = format!(
        "case \"$*\" in *commit-tree*) if {condition}; then touch {}; sleep {seconds}; fi;; esac",
        hangs.display()
    );
    tool.env("PATH", path_with_git(scratch, &script))
}

fn await_slow(scratch: &Scratch) {
    let hangs = scratch.home().join("hangs");
    await_until("git hangs", SOON, || hangs.exists());
}

#[test]
fn a_stop_does_not_wait_for_the_snapshot() {
    let scratch = repository("");
    let seconds = seconds();
    let live = slow(tachikoma(&scratch), &scratch, "true", &seconds).spawn(run(&[], WORK));
    await_slow(&scratch);
    let asked = Instant::now();
    assert_eq!(tachikoma(&scratch).run(["stop", "--now"]).code(), Some(0));
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    await_nobody(&seconds);
}

#[test]
fn a_third_ctrl_c_starts_no_agent_that_waits_for_its_snapshot() {
    let scratch = repository("");
    let seconds = seconds();
    let mut live = slow(tachikoma(&scratch), &scratch, "true", &seconds).spawn(run(&[], WORK));
    await_slow(&scratch);
    // Pressed quickly, before the first Ctrl-C has canceled the snapshot.
    for _ in 0..3 {
        live.signal(rustix::process::Signal::INT);
    }
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(130), "{}", ran.snapshot());
    await_nobody(&seconds);
    let stats = &status(&scratch)["stats"];
    assert_eq!(stats["iterations"], stats["interrupted"], "{stats}");
}

#[test]
fn an_iteration_starts_without_its_snapshot_if_the_snapshot_takes_too_long() {
    let scratch = repository("");
    let seconds = seconds();
    let tool = slow(tachikoma(&scratch), &scratch, "true", &seconds);
    let live = tool.spawn(run(&["--max-iterations", "1"], WORK));
    let ran = live.wait(Duration::from_secs(90));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let warned = &events(&scratch, "warned")[0]["warning"];
    let words = "there is no snapshot before iteration 1, so";
    assert!(
        warned.as_str().is_some_and(|w| w.starts_with(words)),
        "{warned}"
    );
    await_nobody(&seconds);
    assert_eq!(
        subjects(&scratch)[1..],
        ["tachikoma: iteration 1 succeeded"],
        "the work of the iteration is committed anyway"
    );
}

#[test]
fn the_first_iteration_waits_for_the_first_survey() {
    let scratch = repository("");
    // The survey takes longer than an iteration waits for its snapshot.
    let begun = scratch.home().join("begun");
    let script = format!(
        "case \"$*\" in *ls-files*) if [ ! -e {0} ]; then touch {0}; sleep 23; fi;; esac",
        begun.display()
    );
    let tool = tachikoma(&scratch).env("PATH", path_with_git(&scratch, &script));
    let live = tool.spawn(run(&["--max-iterations", "1"], WORK));
    let ran = live.wait(Duration::from_secs(90));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        subjects(&scratch)[1..],
        ["tachikoma: iteration 1 succeeded"],
        "changes of the agent are not attributed to the user"
    );
}

#[test]
fn a_prompt_that_waits_for_its_snapshot_is_not_sent_after_an_interrupt() {
    // The turn changes a file, so that the second iteration needs a new snapshot.
    let turns = [
        tachikoma_testkit::Turn::bash("echo 1 > made"),
        says("one", 1_000),
        says("two", 2_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let seconds = seconds();
    let tool = slow(claude(&scratch), &scratch, "[ -e made ]", &seconds);
    let live = tool.spawn(["run"]);
    await_slow(&scratch);
    await_events(&scratch, "iteration_started", 2);
    let asked = Instant::now();
    assert_eq!(claude(&scratch).run(["skip"]).code(), Some(0));
    await_events(&scratch, "iteration_started", 3);
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    let prompts = crate::claude_support::prompts(&scratch);
    assert_eq!(prompts.len(), 1, "the second prompt was never sent");
    assert_eq!(claude(&scratch).run(["stop", "--now"]).code(), Some(0));
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    await_nobody(&seconds);
    assert_eq!(status(&scratch)["stats"]["skipped"], 1);
}

#[test]
fn a_killed_runner_leaves_no_process_of_a_commit() {
    let scratch = repository("");
    let seconds = seconds();
    let script = format!("setsid sleep {seconds} </dev/null >/dev/null 2>&1 &\nsleep {seconds}");
    git_hook(&scratch, "pre-commit", &script);
    let mut live = tachikoma(&scratch).spawn(run(&[], WORK));
    await_until("the hook and its child", SOON, || {
        processes_with(&seconds).len() == 2
    });
    live.signal(rustix::process::Signal::KILL);
    await_nobody(&seconds);
    let lock = scratch.path().join(".git/index.lock");
    assert!(!lock.exists(), "git had enough time to store the snapshot");
}
