//! Detection of progress, with and without a repository.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use tachikoma_testkit::{Scratch, await_until};

use crate::autocommit_support::repository;
use crate::support::{SOON, as_configured, await_events, events, run, status, tachikoma};

/// Returns the progress score of each iteration.
fn scores(scratch: &Scratch) -> Vec<u64> {
    let measured = events(scratch, "progress_measured");
    let score = |event: &Value| event["score"].as_u64().unwrap_or(0);
    measured.iter().map(score).collect()
}

#[test]
fn a_loop_without_progress_ends_with_a_hint() {
    let scratch = Scratch::new();
    let ran = as_configured(&scratch).run(run(&[], "echo thinking"));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert_eq!(scores(&scratch), [0; 5]);
    let shown = ran.snapshot();
    assert!(
        shown.contains("5 iterations in a row without progress (max_no_progress_iterations = 5)"),
        "{shown}"
    );
    let known = status(&scratch);
    assert_eq!(known["outcome"]["kind"], "condition");
    assert_eq!(known["stats"]["no_progress_count"], 5);
    assert_eq!(known["progress"]["last_iteration"], Value::Null);
    // A second run continues the loop.
    let again = as_configured(&scratch).run(["run", "--max-iterations", "7"]);
    assert_eq!(again.code(), Some(3), "{}", again.snapshot());
    assert_eq!(status(&scratch)["stats"]["no_progress_count"], 2);
}

#[test]
fn without_a_repository_changed_files_are_progress() {
    let scratch = Scratch::new();
    let script = "case $TACHIKOMA_ITERATION in
        1) echo 1 > a; mkdir b; echo 1 > b/c;;
        2) ;;
        3) rm a;;
        4) echo 1 > b/c;;
        5) echo 2 > b/c;;
        6) echo 2 > b/c;;
    esac";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "6"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        scores(&scratch),
        [1, 0, 1, 0, 1, 0],
        "writing the same content is not a change"
    );
    let known = status(&scratch);
    assert_eq!(known["git"], Value::Null);
    assert_eq!(known["progress"]["last_iteration"], 5);
    assert_eq!(known["stats"]["no_progress_count"], 1);
    let history = tachikoma(&scratch).run(["history", "--json"]);
    let first: Value = serde_json::from_str(history.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["progress"], &first["files_changed"]),
        (&json!(1), &json!(2))
    );
}

#[test]
fn a_commit_by_the_agent_is_progress() {
    let scratch = repository("");
    let script = "[ $TACHIKOMA_ITERATION -gt 3 ] || { echo $TACHIKOMA_ITERATION > f; git add f; }
        git commit --quiet --allow-empty -m work";
    let ran = as_configured(&scratch).run(run(&[], script));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    // A change scores 1 and its commit 10. Commits without a change score 0.
    assert_eq!(scores(&scratch), [11, 11, 11, 0, 0, 0, 0, 0]);
}

#[test]
fn the_progress_score_grows_with_the_size_of_a_change_up_to_a_maximum() {
    let scratch = repository("");
    let script = "case $TACHIKOMA_ITERATION in
        1) seq 50 > fifty;;
        2) seq 100000 > many;;
        3) head -c 100000 /dev/urandom > binary;;
        4) printf '1\\n3\\n' > fifty;;
    esac";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "4"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    // The commit contributes 10 to each score.
    assert_eq!(scores(&scratch), [20, 50, 11, 19]);
    let lines = events(&scratch, "progress_measured")[3]["evidence"]["lines"].clone();
    assert_eq!(lines, 48);
}

#[test]
fn changes_of_the_user_between_iterations_are_not_progress() {
    for scratch in [Scratch::new(), repository("")] {
        let script = "while [ ! -e ../go.$TACHIKOMA_ITERATION ]; do sleep 0.01; done";
        let config = "iteration_delay = \"1h\"\n[git]\nauto_commit = false\n";
        scratch.write("tachikoma.toml", config);
        let around = scratch.path().parent().unwrap().to_owned();
        let go = |iteration: u32| fs::write(around.join(format!("go.{iteration}")), "").unwrap();
        let words = [
            "run",
            "--prompt-text",
            "go",
            "--max-iterations",
            "2",
            "--",
            "sh",
            "-c",
        ];
        let live = tachikoma(&scratch).spawn(words.into_iter().chain([script]));
        go(1);
        await_events(&scratch, "wait_started", 1);
        scratch.write("theirs", "a person's\n");
        let skipped = tachikoma(&scratch).run(["skip"]);
        assert_eq!(skipped.code(), Some(0), "{}", skipped.snapshot());
        go(2);
        let ran = live.wait(SOON);
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        assert_eq!(scores(&scratch), [0, 0]);
    }
}

#[test]
fn an_unmeasured_iteration_of_a_killed_runner_is_not_counted_as_no_progress() {
    let scratch = Scratch::new();
    let script = "[ $TACHIKOMA_ATTEMPT -gt 1 ] || { touch begun; sleep 600; }";
    let mut live = as_configured(&scratch).spawn(run(&["--max-iterations", "1"], script));
    await_until("the agent works", SOON, || {
        scratch.path().join("begun").exists()
    });
    live.signal(Signal::KILL);
    live.wait(SOON);
    let ran = as_configured(&scratch).run(["run"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scores(&scratch), [0; 0]);
    assert_eq!(status(&scratch)["stats"]["no_progress_count"], 0);
}

#[test]
fn failed_iterations_end_the_loop_by_the_failure_limit_not_the_no_progress_limit() {
    let scratch = Scratch::new();
    let config =
        "[stop_conditions]\nmax_consecutive_failures = 4\nmax_no_progress_iterations = 2\n";
    scratch.write("tachikoma.toml", config);
    let ran = as_configured(&scratch).run(run(&[], "exit 7"));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!(scores(&scratch), [0; 4]);
}

#[test]
fn the_snapshot_contains_the_progress_of_iterations() {
    let scratch = Scratch::new();
    scratch.write("plan.md", "- [x] one\n- [ ] two\n- [ ] three\n");
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nobjectives = \"plan.md\"\n",
    );
    let script = "[ $TACHIKOMA_ITERATION = 2 ] && sed -i 's/\\[ \\] two/[x] two/' plan.md; true";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "3"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let state: Value = serde_json::from_str(&scratch.read(".ralph/state.json")).unwrap();
    let progress = &state["progress"];
    assert_eq!(progress["iterations_since_progress"], 1);
    assert_eq!(progress["last_progress_iteration"], 2);
    assert_eq!(progress["recent_scores"], json!([0, 11, 0]));
    assert_eq!(progress["modified_files"], json!(["plan.md"]));
    assert_eq!(progress["completed_objectives"], json!(["one", "two"]));
    assert_eq!(progress["pending_objectives"], json!(["three"]));
}

#[test]
fn the_snapshot_names_files_that_were_changed_in_a_repository() {
    let scratch = repository("");
    let script =
        "mkdir -p src; echo $TACHIKOMA_ITERATION > src/both; echo 1 > src/a$TACHIKOMA_ITERATION";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let state: Value = serde_json::from_str(&scratch.read(".ralph/state.json")).unwrap();
    assert_eq!(
        state["progress"]["modified_files"],
        json!(["src/a1", "src/a2", "src/both"])
    );
}
