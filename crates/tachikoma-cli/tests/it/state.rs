//! Tests of `tachikoma state show`, `verify` and `export`, which only read the state.

use std::fs;
use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::Value;
use tachikoma_testkit::{Ran, Scratch};

use crate::support::{
    await_events, files, journal, kill, loops, run, shown, start_busy, status, tachikoma,
    with_history,
};

#[track_caller]
fn good(scratch: &Scratch, words: &[&str]) -> Ran {
    let ran = tachikoma(scratch).run(words);
    assert_eq!(ran.code(), Some(0), "{words:?}: {}", ran.snapshot());
    ran
}

fn snapshot(scratch: &Scratch) -> PathBuf {
    scratch.path().join(".ralph/state.json")
}

#[test]
fn every_group_is_shown_with_its_source_and_whether_it_is_saved() {
    let scratch = with_history();
    good(&scratch, &["state", "set", "ticket", "{\"number\": 7}"]);
    let before = files(&scratch.path().join(".ralph"));
    let json = good(&scratch, &["state", "show", "--json"]);
    let hash = json.json()["core"]["config_hash"].clone();
    let ran = good(&scratch, &["state", "show"]).hide(hash.as_str().unwrap(), "[HASH]");
    assert_snapshot!(shown(&ran), @r#"
    exit: 0
    --- stdout
    loop           [LOOP]
    source         the snapshot and the journal after it, up to record 10
    saved          yes: [DIR]/.ralph/state.json is up to date
    status         completed
    iteration      1
    started        [TIME]
    last activity  [TIME]
    directory      [DIR]
    prompt         prompt.md
    config hash    [HASH]
    session        1
      since        [TIME]
      iterations   1
      context      not known
      before it    0
    no progress    in 1 iteration
      last seen    not known
      scores       0
    tests          0 failing runs in a row
    conditions     3 looked at
                   max_consecutive_failures 0%
                   max_duration 0%
                   max_iterations 100%
      last look    0 of 10 iterations failed in a row; it ran [DURATION] of [DURATION]; 1 of 1 iterations
    metrics        1 iteration, 1 succeeded, 0 failed, 0 reboots, [DURATION] of work
    custom         1
                   ticket = {"number":7}
    --- stderr
    "#);
    assert_eq!(
        json.stdout,
        fs::read_to_string(snapshot(&scratch)).unwrap(),
        "the snapshot file is printed unchanged"
    );
    let json = json.json();
    for group in [
        "version",
        "loop_id",
        "saved_at",
        "core",
        "session",
        "progress",
        "tests",
        "stop_conditions",
        "metrics",
        "custom",
        "state",
    ] {
        assert!(!json[group].is_null(), "{group}");
    }
    assert_eq!(json["custom"]["ticket"]["number"], 7);
    assert_eq!(
        files(&scratch.path().join(".ralph")),
        before,
        "no file is changed"
    );
}

#[test]
fn a_running_loop_and_one_with_a_killed_runner_can_be_shown() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let text = good(&scratch, &["state", "show"]).stdout;
    assert!(text.contains("status         running\n"), "{text}");
    let json = good(&scratch, &["state", "show", "--json"]).json();
    assert_eq!(json["core"]["status"], "running");
    assert_eq!(json["core"]["iteration"], 1);
    kill(&scratch, live);
    let before = files(&scratch.path().join(".ralph"));
    let text = good(&scratch, &["state", "show"]).stdout;
    assert!(text.contains("status         interrupted"), "{text}");
    assert!(text.contains("is behind by 1 records"), "{text}");
    let source = "source         the snapshot and the journal after it";
    assert!(text.contains(source), "{text}");
    assert_eq!(
        files(&scratch.path().join(".ralph")),
        before,
        "no file is changed"
    );
}

/// With an outdated, damaged or missing snapshot, `state show` prints the same state and names the problem.
#[test]
fn state_show_reports_an_outdated_snapshot() {
    let scratch = with_history();
    let old = fs::read(snapshot(&scratch)).unwrap();
    good(&scratch, &["state", "set", "a", "1"]);
    fs::write(snapshot(&scratch), &old).unwrap();
    let ran = good(&scratch, &["state", "show"]);
    assert!(
        ran.stdout.contains("is behind by 1 records"),
        "{}",
        ran.stdout
    );
    let json = good(&scratch, &["state", "show", "--json"]).json();
    assert_eq!(json["custom"]["a"], 1, "the journal has the value");
    fs::write(snapshot(&scratch), "{}").unwrap();
    let ran = good(&scratch, &["state", "show"]);
    assert!(ran.stdout.contains("is damaged"), "{}", ran.stdout);
    assert!(ran.stderr.contains("state verify"), "{}", ran.stderr);
    fs::remove_file(snapshot(&scratch)).unwrap();
    let ran = good(&scratch, &["state", "show"]);
    assert!(ran.stdout.contains("no: there is no"), "{}", ran.stdout);
}

#[test]
fn state_commands_without_a_loop_are_refused() {
    let scratch = Scratch::new();
    for words in [
        vec!["state", "show"],
        vec!["state", "verify"],
        vec!["state", "export"],
        vec!["state", "set", "a", "1"],
        vec!["state", "clear"],
        vec!["state", "clear", "--purge", "--yes"],
    ] {
        let ran = tachikoma(&scratch).run(&words);
        assert_eq!(ran.code(), Some(1), "{words:?}: {}", ran.snapshot());
        assert!(ran.stderr.contains("no loop in"), "{}", ran.snapshot());
    }
    assert!(
        !scratch.path().join(".ralph").exists(),
        "no file is created"
    );
}

#[test]
fn verify_names_damaged_objects_with_a_hint() {
    let scratch = with_history();
    let ran = good(&scratch, &["state", "verify"]);
    assert_eq!(ran.stdout.matches("good ").count(), 2, "{}", ran.stdout);
    assert!(ran.stdout.contains("good  snapshot    .ralph/state.json: "));
    let json = good(&scratch, &["state", "verify", "--json"]).json();
    assert_eq!(json["good"], true);
    assert_eq!(json["objects"][0]["kind"], "journal");

    // The damaged record is older than the snapshot, so the loop does not need it.
    let path = journal(&scratch);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("\"type\":\"started\"", "\"type\":\"sta7ted\"", 1),
    )
    .unwrap();
    let ran = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(ran.stdout.contains("wrong journal"), "{}", ran.stdout);
    assert!(
        ran.stdout
            .contains("damaged at line 2: its checksum does not match"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.contains("`tachikoma run` continues"),
        "{}",
        ran.stderr
    );

    // Without the snapshot, the damaged record is lost.
    fs::remove_file(snapshot(&scratch)).unwrap();
    let ran = tachikoma(&scratch).run(["state", "verify", "--json"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!(ran.json()["good"], false);
    assert!(ran.stderr.contains("--accept-loss"), "{}", ran.stderr);
}

#[test]
fn verify_accepts_a_running_loop() {
    let scratch = Scratch::new();
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "0"], "echo words"));
    await_events(&scratch, "iteration_completed", 3);
    for _ in 0..20 {
        good(&scratch, &["state", "verify"]);
    }
    good(&scratch, &["stop", "--now"]);
    live.wait(crate::support::SOON);
    good(&scratch, &["state", "verify"]);
}

#[test]
fn a_loop_that_crashed_and_continued_is_valid() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    kill(&scratch, live);
    good(&scratch, &["state", "verify"]);
    let words = run(&["--quiet", "--max-iterations", "2"], "true");
    assert_eq!(tachikoma(&scratch).run(words).code(), Some(3));
    good(&scratch, &["state", "verify"]);
}

fn exported(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn an_export_contains_the_state_all_records_and_an_end_marker() {
    let scratch = with_history();
    let lines = exported(&good(&scratch, &["state", "export"]).stdout);
    let records = exported(&good(&scratch, &["events", "--json"]).stdout);
    assert_eq!(lines[0]["export"], 1);
    assert_eq!(lines[0]["loop_id"], status(&scratch)["loop_id"]);
    let shown = good(&scratch, &["state", "show", "--json"]).json();
    assert_eq!(lines[0]["snapshot"], shown);
    assert_eq!(lines[1..lines.len() - 1], records);
    let end = serde_json::json!({"end": true, "records": records.len()});
    assert_eq!(lines.last(), Some(&end));
}

#[test]
fn an_export_overwrites_a_file_only_with_force() {
    let scratch = with_history();
    let ran = good(&scratch, &["state", "export", "--output", "out.jsonl"]);
    assert!(ran.stdout.contains("records to out.jsonl"));
    let text = scratch.read("out.jsonl");
    assert_eq!(text, good(&scratch, &["state", "export"]).stdout);
    scratch.write("out.jsonl", "mine");
    let ran = tachikoma(&scratch).run(["state", "export", "--output", "out.jsonl"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(ran.stderr.contains("--force"), "{}", ran.stderr);
    assert_eq!(scratch.read("out.jsonl"), "mine");
    good(
        &scratch,
        &["state", "export", "--output", "out.jsonl", "--force"],
    );
    assert_eq!(scratch.read("out.jsonl"), text);
    // If the journal is unreadable, no incomplete export is left.
    let path = journal(&scratch);
    let damaged = fs::read_to_string(&path).unwrap().replace("crc", "crd");
    fs::write(&path, damaged).unwrap();
    let ran = tachikoma(&scratch).run(["state", "export", "--output", "other.jsonl"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    let names: Vec<_> = fs::read_dir(scratch.path()).unwrap().flatten().collect();
    assert_eq!(names.len(), 3, "prompt.md, out.jsonl, .ralph: {names:?}");
}

/// A loop with temporary state can be shown while it runs.
#[test]
fn a_loop_with_temporary_state_can_be_shown() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "[state]\nenabled = false\n");
    let live = tachikoma(&scratch).spawn(run(&[], "touch up; exec sleep 600"));
    tachikoma_testkit::await_until("the agent", crate::support::SOON, || {
        scratch.path().join("up").exists()
    });
    good(&scratch, &["state", "set", "a", "1"]);
    let json = good(&scratch, &["state", "show", "--json"]).json();
    assert_eq!(json["custom"]["a"], 1);
    good(&scratch, &["state", "verify"]);
    good(&scratch, &["state", "export"]);
    let ran = tachikoma(&scratch).run(["state", "clear"]);
    assert!(
        ran.stderr.contains("another runner works in"),
        "{}",
        ran.stderr
    );
    kill(&scratch, live);
    let ran = tachikoma(&scratch).run(["state", "show"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
}

#[test]
fn a_running_loop_can_be_exported() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let lines = exported(&good(&scratch, &["state", "export"]).stdout);
    let last = lines.len() - 2;
    assert_eq!(lines[0]["snapshot"]["seq"], lines[last]["seq"]);
    kill(&scratch, live);
    assert_eq!(loops(&scratch).len(), 1);
}
