//! Commits that a loop makes in the user's repository: their content, when they are made, and how they are reported.

use std::path::Path;

use tachikoma_testkit::{Live, Scratch, await_until};

use crate::autocommit_support::{
    WORK, dirty, files_of, git_hook, recorded, repository, snapshots, subjects,
};
use crate::claude_support::{
    bash, claims, claude, prompts, run_claude, says, scenario, stage, wrap_agent,
};
use crate::live_support::{await_nobody, seconds};
use crate::support::{BUSY, SOON, await_events, events, kill, run, status, tachikoma};

#[test]
fn each_successful_iteration_is_committed() {
    let scratch = repository("");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], WORK));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        subjects(&scratch),
        [
            "the user's",
            "tachikoma: iteration 1 succeeded",
            "tachikoma: iteration 2 succeeded"
        ]
    );
    assert_eq!(files_of(&scratch, "HEAD~1"), ["known", "new1"]);
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new2"]);
    assert_eq!(dirty(&scratch), "", "no other file is changed");
    let head = scratch.git(&["rev-parse", "HEAD"]);
    let said = format!("committed 2 files as {}", &head[..7]);
    assert!(ran.stdout.contains(&said), "{}", ran.snapshot());

    let git = &status(&scratch)["git"];
    assert_eq!(git["last_commit"]["id"], head.trim());
    assert_eq!(git["last_commit"]["files"], 2);
    assert_eq!(git["commits"], 2);
    assert_eq!(git["uncommitted"], 0);
    assert_eq!(git["files_changed"], 2);
    let told = tachikoma(&scratch).run(["status"]).stdout;
    let line = format!(
        "git        committed 2 files as {} at iteration 2",
        &head[..7]
    );
    assert!(told.contains(&line), "{told}");
    let history = tachikoma(&scratch).run(["history", "--json"]).stdout;
    let last: serde_json::Value =
        serde_json::from_str(history.lines().last().expect("a line")).expect("an object");
    assert_eq!(last["commit"]["id"], head.trim());
    assert_eq!(last["files_changed"], 2);
}

#[test]
fn a_snapshot_is_stored_before_each_iteration() {
    let scratch = repository("");
    // The second iteration changes nothing.
    let script = format!("[ $TACHIKOMA_ITERATION = 2 ] || {{ {WORK} }}");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "3"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let kept = snapshots(&scratch);
    let numbers: Vec<u32> = kept.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(
        kept[1].1, kept[2].1,
        "nothing was committed between the iterations"
    );
    let tree = |commit: &str| scratch.git(&["rev-parse", &format!("{commit}^{{tree}}")]);
    assert_eq!(tree(&kept[0].1), tree("HEAD~2"));
    assert_eq!(tree(&kept[2].1), tree("HEAD~1"));
    assert_eq!(events(&scratch, "snapshot_taken").len(), 2);
    assert_eq!(
        subjects(&scratch).len(),
        3,
        "an iteration without changes makes no commit"
    );
}

#[test]
fn work_of_a_failed_iteration_is_committed_with_the_next_success() {
    let scratch = repository("");
    let script = format!("{WORK} [ $TACHIKOMA_ITERATION != 1 ]");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        subjects(&scratch)[1..],
        ["tachikoma: iteration 2 succeeded"]
    );
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new1", "new2"]);
}

#[test]
fn a_failed_iteration_is_committed_with_commit_on_failure() {
    let scratch = repository(
        "[git]\ncommit_on_failure = true\ncommit_message = 'wip({loop}) {iteration}/{session}: {status}, {context}'\n",
    );
    let script = format!("{WORK} exit 1");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let loop_id = status(&scratch)["loop_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert_eq!(
        subjects(&scratch)[1..],
        [format!("wip({loop_id}) 1/1: failed, unknown")]
    );
}

#[test]
fn uncommitted_work_is_committed_at_the_end() {
    let scratch = repository("");
    let script = format!("{WORK} touch up; {BUSY}");
    let live = tachikoma(&scratch).spawn(run(&[], &script));
    await_until("the work", SOON, || scratch.path().join("up").exists());
    let stop = tachikoma(&scratch).run(["stop"]);
    assert_eq!(stop.code(), Some(0), "{}", stop.snapshot());
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert_eq!(subjects(&scratch)[1..], ["tachikoma: iteration 1 end"]);
    assert_eq!(dirty(&scratch), "");
}

#[test]
fn a_stop_that_waits_for_a_commit_is_shown_by_status() {
    let scratch = repository("");
    git_hook(
        &scratch,
        "pre-commit",
        "touch .git/waits; until [ -e .git/go ]; do sleep 0.05; done",
    );
    let live = tachikoma(&scratch).spawn(run(&[], &format!("{WORK} {BUSY}")));
    let new = scratch.path().join("new1");
    await_until("the work", SOON, || new.exists());
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    let waits = scratch.path().join(".git/waits");
    await_until("the commit", SOON, || waits.exists());
    let ending = &status(&scratch)["ending"];
    assert_eq!(ending["kind"], "operator");
    let shown = tachikoma(&scratch).run(["status"]).stdout;
    let line = "\nending     stopped by the operator; `tachikoma stop --now` stops at once\n";
    assert!(shown.contains(line), "{shown}");
    scratch.write(".git/go", "");
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert!(status(&scratch)["ending"].is_null());
}

#[test]
fn work_interrupted_by_a_kill_is_committed_when_the_loop_stops_in_a_pause() {
    let scratch = repository("");
    let live = tachikoma(&scratch).spawn(run(&[], &format!("{WORK} {BUSY}")));
    let new = scratch.path().join("new1");
    await_until("the work", SOON, || new.exists());
    assert_eq!(tachikoma(&scratch).run(["pause"]).code(), Some(0));
    kill(&scratch, live);
    let live = tachikoma(&scratch).spawn(["run"]);
    await_events(&scratch, "paused", 1);
    scratch.write("mine", "the operator's\n");
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert_eq!(subjects(&scratch)[1..], ["tachikoma: iteration 1 end"]);
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new1"]);
    assert_eq!(dirty(&scratch), "?? mine\n");
}

#[test]
fn work_of_a_failed_iteration_is_committed_when_the_loop_completes() {
    let scratch = repository("");
    let script = format!("{WORK} exit 1");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(subjects(&scratch)[1..], ["tachikoma: iteration 1 end"]);
    assert_eq!(dirty(&scratch), "");
}

#[test]
fn work_of_a_failed_iteration_stays_uncommitted_after_an_error() {
    let scratch = repository("[stop_conditions]\nmax_consecutive_failures = 1\n");
    let script = format!("{WORK} exit 1");
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!(subjects(&scratch).len(), 1);
    assert_eq!(dirty(&scratch), " M known\n?? new1\n");
    assert_eq!(status(&scratch)["git"]["uncommitted"], 2);
}

#[test]
fn work_is_committed_before_a_reboot_and_the_hand_off_names_the_commit() {
    let scratch = repository("");
    let script = format!("{WORK} [ $TACHIKOMA_ITERATION = 2 ] || {BUSY}");
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "2"], &script));
    let new = scratch.path().join("new1");
    await_until("the agent has worked", SOON, || new.exists());
    assert_eq!(tachikoma(&scratch).run(["reboot"]).code(), Some(0));
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        subjects(&scratch)[1..],
        [
            "tachikoma: iteration 1 checkpoint",
            "tachikoma: iteration 2 succeeded"
        ]
    );
    let checkpoint = scratch.git(&["rev-parse", "--short=7", "HEAD~1"]);
    let given = tachikoma(&scratch).run(["checkpoint", "show", "2"]);
    let stands = format!("The work tree is at commit {}.", checkpoint.trim());
    assert!(given.stdout.contains(&stands), "{}", given.snapshot());
}

#[test]
fn changes_of_a_before_reboot_hook_get_their_own_commit() {
    let turns = [
        bash("echo 1 > made", 30_000),
        says("full", 171_000),
        claims(20_000),
    ];
    let config = "\n[git]\ncommit_message = '{iteration} {status} at {context} in {session}'\n\
        [[hook]]\non = 'before_reboot'\ncommand = 'echo 2 > more'\n";
    let scratch = stage(&scenario(turns), config);
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        subjects(&scratch)[1..],
        ["1 succeeded at 85% in 1", "1 checkpoint at 86% in 1"]
    );
    assert_eq!(files_of(&scratch, "HEAD~1"), ["made"]);
    assert_eq!(files_of(&scratch, "HEAD"), ["more"]);
    let reboots = &status(&scratch)["stats"]["reboots"];
    assert_eq!(*reboots, 1, "{}", ran.snapshot());
    let second = &prompts(&scratch)[2];
    let head = scratch.git(&["rev-parse", "--short=7", "HEAD"]);
    let stands = format!("The work tree is at commit {}.", head.trim());
    assert!(second.1.contains(&stands), "{}", second.1);
}

#[test]
fn without_auto_commit_snapshots_are_stored_and_nothing_is_committed() {
    let scratch = repository("[git]\nauto_commit = false\n");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], WORK));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(subjects(&scratch).len(), 1);
    assert_eq!(snapshots(&scratch).len(), 2);
    assert_eq!(status(&scratch)["git"]["files_changed"], 2);
}

#[test]
fn a_rejecting_git_hook_loses_nothing_and_is_reported() {
    let scratch = repository("");
    git_hook(
        &scratch,
        "pre-commit",
        "[ -e .git/fine ] || { echo the linter is not content >&2; exit 1; }",
    );
    let script = format!("{WORK} [ $TACHIKOMA_ITERATION = 1 ] || touch .git/fine");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let refused = ran
        .stdout
        .lines()
        .find(|line| line.contains("not committed"));
    assert!(
        refused.is_some_and(|line| line.contains("the linter is not content")),
        "{}",
        ran.snapshot()
    );
    assert_eq!(
        subjects(&scratch)[1..],
        ["tachikoma: iteration 2 succeeded"]
    );
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new1", "new2"]);
}

/// Returns a repository with a git hook that hangs, and a loop that waits for its commit.
fn hanging(config: &str, delay: &str) -> (Scratch, Live, String) {
    let scratch = repository(config);
    let seconds = seconds();
    let hook = format!("[ -e .git/fine ] || {{ touch .git/hangs; sleep {seconds}; }}");
    git_hook(&scratch, "pre-commit", &hook);
    let live = tachikoma(&scratch).spawn(run(&["--delay", delay], WORK));
    (scratch, live, seconds)
}

fn await_hook(scratch: &Scratch) {
    let hangs = scratch.path().join(".git/hangs");
    await_until("the hook hangs", SOON, || hangs.exists());
}

/// Continues the loop with a git hook that no longer hangs, to the end of its next iteration.
fn goes_on_and_commits(scratch: &Scratch, iterations: &str) {
    scratch.write(".git/fine", "");
    let tool = tachikoma(scratch).env("TACHIKOMA_GIT__COMMIT_TIMEOUT", "5m");
    let ran = tool.run(run(&["--max-iterations", iterations], WORK));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(dirty(scratch), "", "{}", ran.snapshot());
    let log = scratch.git(&["log", "--format=%H", "--reverse"]);
    let made: Vec<&str> = log.lines().skip(1).collect();
    assert_eq!(recorded(scratch), made, "each commit is recorded once");
}

#[test]
fn stop_now_does_not_wait_for_a_hook_that_hangs() {
    let (scratch, live, seconds) = hanging("", "0s");
    await_hook(&scratch);
    let answer = tachikoma(&scratch).run(["stop", "--now"]);
    assert_eq!(answer.code(), Some(0), "{}", answer.snapshot());
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("not committed: it was canceled"),
        "{}",
        ran.snapshot()
    );
    await_nobody(&seconds);
    assert_eq!(subjects(&scratch).len(), 1);
    assert_eq!(
        dirty(&scratch),
        " M known\n?? new1\n",
        "the index of the user is unchanged"
    );
    assert_eq!(status(&scratch)["git"]["uncommitted"], 2);
    goes_on_and_commits(&scratch, "2");
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new1", "new2"]);
}

#[test]
fn a_graceful_stop_waits_for_the_commit() {
    let scratch = repository("");
    let hook = "touch .git/hangs; while [ ! -e .git/fine ]; do sleep 0.01; done";
    git_hook(&scratch, "pre-commit", hook);
    let live = tachikoma(&scratch).spawn(run(&[], WORK));
    await_hook(&scratch);
    assert_eq!(status(&scratch)["git"]["keeping"], "iteration");
    let answer = tachikoma(&scratch).run(["stop"]);
    let words = "stops after the commit";
    assert!(answer.stdout.contains(words), "{}", answer.snapshot());
    scratch.write(".git/fine", "");
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert_eq!(
        subjects(&scratch)[1..],
        ["tachikoma: iteration 1 succeeded"]
    );
}

#[test]
fn a_hanging_git_hook_is_killed_at_its_timeout() {
    let (scratch, live, seconds) = hanging("[git]\ncommit_timeout = '1s'\n", "10m");
    await_events(&scratch, "wait_started", 1);
    await_nobody(&seconds);
    let kept = &events(&scratch, "work_kept")[0]["kept"];
    let error = kept["error"].as_str().expect("an error");
    assert!(error.contains("did not end within 1s"), "{error}");
    assert_eq!(tachikoma(&scratch).run(["stop", "--now"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert_eq!(dirty(&scratch), " M known\n?? new1\n");
    goes_on_and_commits(&scratch, "2");
}

#[test]
fn skip_abandons_the_commit() {
    let (scratch, live, seconds) = hanging("", "10m");
    await_hook(&scratch);
    scratch.write(".git/fine", "");
    assert_eq!(tachikoma(&scratch).run(["skip"]).code(), Some(0));
    // The commit of the next iteration contains both changes.
    await_events(&scratch, "wait_started", 1);
    await_nobody(&seconds);
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new1", "new2"]);
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn a_runner_killed_in_a_commit_loses_nothing_and_commits_once() {
    let (scratch, live, seconds) = hanging("", "0s");
    await_hook(&scratch);
    kill(&scratch, live);
    goes_on_and_commits(&scratch, "2");
    await_nobody(&seconds);
    assert!(!scratch.path().join(".git/index.lock").exists());
    let all: Vec<String> = recorded(&scratch)
        .iter()
        .flat_map(|commit| files_of(&scratch, commit))
        .collect();
    for file in ["new1", "new2"] {
        let times = all.iter().filter(|name| *name == file).count();
        assert_eq!(times, 1, "{file}: {all:?}");
    }
}

#[test]
fn changes_of_a_killed_iteration_belong_to_the_loop() {
    let scratch = repository("");
    let script = format!("{WORK} [ $TACHIKOMA_ATTEMPT = 2 ] || {BUSY}");
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "1"], &script));
    let new = scratch.path().join("new1");
    await_until("the agent has worked", SOON, || new.exists());
    await_events(&scratch, "agent_launched", 1);
    kill(&scratch, live);
    // Changes of the user before the next run do not belong to the loop.
    let lock = scratch.path().join(".ralph/lock");
    await_until("a later stamp", SOON, || {
        let users = scratch.write("users", "the user's\n");
        let stamp = |path: &Path| path.metadata().and_then(|there| there.modified()).ok();
        stamp(&users) > stamp(&lock)
    });
    let ran = tachikoma(&scratch).run(["run"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new1"]);
    assert_eq!(dirty(&scratch), "?? users\n");
    let kept = snapshots(&scratch);
    assert_eq!(kept.len(), 1);
    let before = scratch.git(&["show", &format!("{}:known", kept[0].1)]);
    assert_eq!(
        before, "0\n",
        "the snapshot is from before the first attempt"
    );
}

/// Known fault of other loops: changes of the user were committed by the loop.
#[test]
fn changes_of_the_user_between_iterations_are_not_committed() {
    let scratch = repository("");
    scratch.write("mine", "committed\n");
    scratch.write(".gitignore", "local.conf\n");
    scratch.git(&["add", "mine", ".gitignore"]);
    scratch.git(&["commit", "--quiet", "-m", "mine"]);
    scratch.write("local.conf", "a password\n");
    // The user changes files during a wait and between two runs.
    let live = tachikoma(&scratch).spawn(run(&["--delay", "10m"], WORK));
    await_events(&scratch, "wait_started", 1);
    scratch.write("mine", "edited in a wait\n");
    scratch.write("mine too", "new\n");
    assert_eq!(tachikoma(&scratch).run(["skip"]).code(), Some(0));
    await_events(&scratch, "wait_started", 2);
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new2"]);
    scratch.write("mine again", "new\n");
    // The agent changes the ignore rules and creates an empty file.
    let work = format!("{WORK} echo node_modules >.gitignore; : >empty;");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "3"], &work));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        files_of(&scratch, "HEAD"),
        [".gitignore", "empty", "known", "new3"]
    );
    assert_eq!(
        dirty(&scratch),
        " M mine\n?? local.conf\n?? \"mine again\"\n?? \"mine too\"\n"
    );
}

#[test]
fn a_stop_without_a_commit_still_records_the_owner_of_changes() {
    let scratch = repository("");
    let script = format!("{WORK} [ $TACHIKOMA_ITERATION = 2 ] || {BUSY}");
    let live = tachikoma(&scratch).spawn(run(&[], &script));
    let new = scratch.path().join("new1");
    await_until("the agent has worked", SOON, || new.exists());
    assert_eq!(tachikoma(&scratch).run(["stop", "--now"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert_eq!(
        subjects(&scratch).len(),
        1,
        "the stop does not wait for a commit"
    );
    scratch.write("mine", "new\n");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(files_of(&scratch, "HEAD"), ["known", "new1", "new2"]);
    assert_eq!(dirty(&scratch), "?? mine\n");
}

#[test]
fn git_maintenance_runs_after_a_commit_of_the_agent() {
    let scratch = repository("");
    // Git starts `git gc` at the next commit if there are this many packs.
    scratch.git(&["repack", "-q", "-d"]);
    scratch.write("more", "more\n");
    scratch.git(&["add", "more"]);
    scratch.git(&["commit", "--quiet", "-m", "more"]);
    scratch.git(&["repack", "-q", "-d"]);
    scratch.git(&["config", "gc.autoPackLimit", "1"]);
    assert_eq!(packs(&scratch), 2);
    let script = "{ git config my.own; git config gc.autoDetach; } > own; git add own; git commit --quiet -m own";
    let tool = tachikoma(&scratch)
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "my.own")
        .env("GIT_CONFIG_VALUE_0", "kept");
    let ran = tool.run(run(&["--max-iterations", "1"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let shown = ran.snapshot();
    assert!(!shown.contains("left processes behind"), "{shown}");
    assert_eq!(packs(&scratch), 1, "{shown}");
    assert_eq!(scratch.read("own"), "kept\nfalse\n");
}

/// Returns the number of packs in the repository.
fn packs(scratch: &Scratch) -> usize {
    let pack = scratch.path().join(".git/objects/pack");
    let files = pack.read_dir().unwrap().flatten();
    let names = files.map(|file| file.file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".pack")).count()
}

/// An agent that writes a file after its stdin was closed, before it exits.
const WRITES_AT_ITS_END: &str =
    "#!/bin/sh\nAGENT \"$@\"\ncode=$?\necho late > \"late-$TACHIKOMA_SESSION\"\nexit $code\n";

/// An agent that calls a tool by itself after the first turn, when `.git/go` exists.
const WORKS_BETWEEN_TURNS: &str = r#"#!/bin/sh
AGENT "$@" | while IFS= read -r line; do
    printf '%s\n' "$line"
    case "$line" in *'"type":"result"'*)
        [ -e .git/once ] && continue
        touch .git/once
        until [ -e .git/go ]; do sleep 0.05; done
        echo late > late.txt
        echo '{"type":"assistant","parent_tool_use_id":null,"message":{"id":"m","role":"assistant","model":"m","content":[{"type":"tool_use","id":"t","name":"Bash","input":{"command":"make late"}}],"usage":{"input_tokens":1,"output_tokens":1}}}'
    esac
done
"#;

#[test]
fn files_that_an_agent_writes_between_iterations_are_committed_with_the_next_one() {
    let busy = bash("until [ -e .git/paused ]; do sleep 0.05; done", 1_000);
    let turns = [busy, says("one", 2_000), says("two", 3_000)];
    let scratch = stage(&scenario(turns), "");
    wrap_agent(&scratch, WORKS_BETWEEN_TURNS);
    let live = claude(&scratch).spawn(["run", "--max-iterations", "2"]);
    await_events(&scratch, "tool_started", 1);
    assert_eq!(tachikoma(&scratch).run(["pause"]).code(), Some(0));
    scratch.write(".git/paused", "");
    await_events(&scratch, "paused", 1);
    scratch.write(".git/go", "");
    await_events(&scratch, "worked_outside", 1);
    assert_eq!(tachikoma(&scratch).run(["resume"]).code(), Some(0));
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let said = "the agent works although no iteration runs (Bash: make late)";
    assert!(ran.stdout.contains(said), "{}", ran.snapshot());
    assert_eq!(dirty(&scratch), "", "{}", ran.snapshot());
    let commit = scratch.git(&["log", "--format=%s", "--", "late.txt"]);
    assert!(commit.contains("iteration 2"), "{commit}");
}

#[test]
fn files_that_an_agent_writes_at_its_end_are_committed_before_a_reboot_and_at_the_end() {
    let turns = [says("one", 171_000), says("two", 21_000)];
    let scratch = stage(&scenario(turns), "");
    wrap_agent(&scratch, WRITES_AT_ITS_END);
    let ran = run_claude(&scratch, &["--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.git(&["status", "--porcelain"]), "");
    let of = |file: &str| scratch.git(&["log", "--format=%s", "--", file]);
    assert!(of("late-1").contains("checkpoint"), "{}", of("late-1"));
    assert!(of("late-2").contains("end"), "{}", of("late-2"));
    assert_eq!(status(&scratch)["git"]["uncommitted"], 0);
}

#[test]
fn edits_of_the_operator_in_a_pause_are_not_in_the_last_commit() {
    // One agent process runs for all iterations and is closed at the end of the loop.
    let busy = bash(
        "echo loop > loops.txt; until [ -e .git/paused ]; do sleep 0.05; done",
        1_000,
    );
    let scratch = stage(&scenario([busy, says("one", 2_000)]), "");
    scratch.write("mine.txt", "clean\n");
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "mine"]);
    let live = claude(&scratch).spawn(["run"]);
    await_events(&scratch, "tool_started", 1);
    assert_eq!(tachikoma(&scratch).run(["pause"]).code(), Some(0));
    scratch.write(".git/paused", "");
    await_events(&scratch, "paused", 1);
    scratch.write("mine.txt", "edited\n");
    // The file times of the edit and of the end of the agent must differ.
    let modified = |file: &str| {
        let metadata = std::fs::metadata(scratch.path().join(file)).expect("the file exists");
        metadata.modified().expect("the file has a time")
    };
    await_until("a later time of files", SOON, || {
        scratch.write(".git/later", "");
        let since_edit = modified(".git/later").duration_since(modified("mine.txt"));
        since_edit.is_ok_and(|passed| passed > std::time::Duration::from_millis(100))
    });
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert_eq!(dirty(&scratch), " M mine.txt\n", "{}", ran.snapshot());
}
