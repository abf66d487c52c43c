//! A rollback of the operator that is interrupted is finished or undone.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::{Live, Scratch, Tool, await_until};

use crate::attended_support::{ATTENDED, CALLED_OFF, await_question, repository, rolled_back};
use crate::autocommit_support::path_with_git;
use crate::live_support::{SOON, await_status, obey, status, tool};

/// Shell patterns for the arguments with which git changes the work tree.
const CHANGES: &str = "*--dry-run*) ;; *read-tree*-m*-u*)";

/// Like `CHANGES`, but git has restored one file already.
const HALF_WAY: &str = "*--dry-run*) ;; *read-tree*-m*-u*";

/// Shell pattern for the arguments with which git stores the current work tree before a rollback.
const KEEPS: &str = "*update-ref*before-rollback*)";

/// A repository with an agent that damages two files and prints its prompt.
fn spoilt() -> Scratch {
    let script = "echo spoilt >a; echo spoilt >b; cat >>.git/prompts; echo == >>.git/prompts";
    repository(script, |scratch| {
        scratch.write("a", "good\n");
        scratch.write("b", "good\n");
    })
}

/// Returns the binary with a git wrapper that hangs at a given git command until a file exists.
fn slow<'a>(scratch: &'a Scratch, moment: &str) -> Tool<'a> {
    let home = scratch.home();
    let (hangs, go) = (home.join("hangs"), home.join("go"));
    let half = match moment {
        HALF_WAY => format!(") echo good >{}", scratch.path().join("a").display()),
        _ => ":".to_owned(),
    };
    let script = format!(
        "case \"$*\" in {moment} {half}; touch {hangs}; while [ ! -e {go} ]; do sleep 0.02; done;; esac",
        hangs = hangs.display(),
        go = go.display(),
    );
    tool(scratch).env("PATH", path_with_git(scratch, &script))
}

/// Starts a loop, rolls its first iteration back, and waits until git hangs.
fn rolling<'a>(scratch: &'a Scratch, moment: &str) -> (Tool<'a>, Live) {
    let tool = slow(scratch, moment);
    let live = tool.spawn(ATTENDED);
    await_question(&tool, 1);
    obey(&tool, &["answer", "continue"]);
    await_question(&tool, 2);
    assert_eq!(files(scratch), ["spoilt\n", "spoilt\n"]);
    obey(&tool, &["answer", "rollback"]);
    let hangs = scratch.home().join("hangs");
    await_until("git hangs", SOON, || hangs.exists());
    (tool, live)
}

fn go(scratch: &Scratch) {
    fs::write(scratch.home().join("go"), "").unwrap();
}

fn files(scratch: &Scratch) -> [String; 2] {
    ["a", "b"].map(|name| scratch.read(name))
}

fn whole(tool: &Tool<'_>) {
    let verified = tool.run(["state", "verify"]);
    assert_eq!(verified.code(), Some(0), "{}", verified.snapshot());
}

#[test]
fn a_stop_undoes_a_rollback_that_has_begun() {
    for words in [&["stop"][..], &["stop", "--now"]] {
        let scratch = spoilt();
        let (tool, live) = rolling(&scratch, CHANGES);
        let said = obey(&tool, words);
        assert_eq!(said, "stops after the rollback\n");
        let ran = live.wait(SOON);
        assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
        assert_eq!(files(&scratch), ["spoilt\n", "spoilt\n"]);
        assert_eq!(rolled_back(&tool), [json!(CALLED_OFF)]);
        whole(&tool);
    }
}

#[test]
fn a_stop_prevents_a_rollback_that_has_not_begun() {
    let scratch = spoilt();
    let (tool, live) = rolling(&scratch, KEEPS);
    obey(&tool, &["stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert_eq!(files(&scratch), ["spoilt\n", "spoilt\n"]);
    assert_eq!(rolled_back(&tool), [json!(CALLED_OFF)]);
    whole(&tool);
}

#[test]
fn the_next_turn_waits_for_a_rollback() {
    let scratch = spoilt();
    let (tool, live) = rolling(&scratch, CHANGES);
    obey(&tool, &["attend", "off"]);
    assert_eq!(
        obey(&tool, &["pause", "--now"]),
        "pauses after the rollback\n"
    );
    obey(&tool, &["resume"]);
    let skipped = tool.run(["skip"]);
    assert!(skipped.stderr.contains("is being rolled back"));
    obey(&tool, &["pause"]);
    assert_eq!(status(&tool)["iteration"], 1);
    go(&scratch);
    await_status(&tool, "paused", |it| it["state"] == "paused");
    assert_eq!(files(&scratch), ["good\n", "good\n"]);
    obey(&tool, &["stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn the_next_runner_finishes_a_rollback() {
    let scratch = spoilt();
    let (tool, live) = rolling(&scratch, HALF_WAY);
    let pid = Pid::from_raw(i32::try_from(live.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    live.wait(SOON);
    assert_eq!(
        files(&scratch),
        ["good\n", "spoilt\n"],
        "the rollback is incomplete"
    );
    go(&scratch);
    let live = tool.spawn(["run"]);
    let asked = await_question(&tool, 3);
    assert_eq!(files(&scratch), ["good\n", "good\n"]);
    assert_eq!(asked["about"], "iteration 1 is over, and was rolled back");
    assert_eq!(rolled_back(&tool), [Value::Null]);
    obey(&tool, &["answer", "continue"]);
    await_question(&tool, 4);
    let told = scratch.read(".git/prompts");
    assert!(
        told.contains("The operator rolled the work tree back"),
        "{told}"
    );
    let kept = scratch.git(&["for-each-ref", "--format=%(refname)"]);
    assert!(kept.contains("before-rollback-1"), "{kept}");
    obey(&tool, &["stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
    whole(&tool);
}
