//! `status`, `events` and `logs` before, during and after a loop.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use serde_json::Value;
use tachikoma_testkit::Scratch;

use crate::support::{
    CLAIMS, SOON, as_configured, await_events, files, kill, run, shown, start_busy, status,
    status_of_live, tachikoma, with_history,
};

fn keys(value: &Value) -> BTreeSet<&str> {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"));
    object.keys().map(String::as_str).collect()
}

/// Checks the keys of `status --json`. Programs rely on them, so none may be missing or new.
#[track_caller]
fn check_keys(status: &Value) {
    let expected = [
        "loop_id",
        "state",
        "iteration",
        "attempt",
        "session",
        "session_iterations",
        "question",
        "attended",
        "told",
        "completion",
        "context",
        "waiting",
        "pause_requested",
        "ending",
        "reboot",
        "git",
        "progress",
        "tests",
        "stats",
        "stop_conditions",
        "outcome",
        "started_at",
        "last_activity",
        "runner",
    ];
    assert_eq!(keys(status), BTreeSet::from(expected));
    assert_eq!(
        keys(&status["session"]),
        BTreeSet::from(["number", "agent_id"])
    );
    for (part, expected) in [
        ("waiting", &["reason", "until"][..]),
        ("outcome", &["kind", "reason"]),
        ("runner", &["pid", "since", "containment", "repository"]),
        ("context", &["percent", "tokens", "window", "estimated"]),
    ] {
        if !status[part].is_null() {
            assert_eq!(
                keys(&status[part]),
                expected.iter().copied().collect(),
                "{part}"
            );
        }
    }
}

#[test]
fn a_stopped_runner_is_shown_as_live_at_once() {
    let scratch = Scratch::new();
    let mut live = start_busy(&scratch, &[]);
    live.signal(rustix::process::Signal::STOP);
    let began = std::time::Instant::now();
    let ran = tachikoma(&scratch).run(["status"]);
    let took = began.elapsed();
    assert_eq!(ran.code(), Some(0));
    assert!(
        took.as_secs() < 5,
        "the command does not wait for the stopped runner: {took:?}"
    );
    assert!(
        ran.stdout.contains("state      running\n"),
        "{}",
        ran.stdout
    );
    let runner = format!("runner     pid {} since ", live.pid());
    assert!(ran.stdout.contains(&runner), "{}", ran.stdout);
    assert!(ran.stderr.contains("does not answer"), "{}", ran.stderr);
    assert!(ran.stderr.contains("from the journal"), "{}", ran.stderr);
}

#[test]
fn a_runner_with_a_deleted_socket_is_shown_as_live() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    std::fs::remove_dir_all(scratch.runtime_dir().join("tachikoma"))
        .expect("the test owns this file");
    let ran = tachikoma(&scratch).run(["status"]);
    assert!(
        ran.stdout.contains("state      running\n"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("no runner listens"), "{}", ran.stderr);
    drop(live);
}

#[test]
fn status_before_the_first_loop_says_that_there_is_none() {
    let scratch = Scratch::new();
    assert_snapshot!(shown(&tachikoma(&scratch).run(["status", "--json"])), @r#"
    exit: 0
    --- stdout
    {"loop_id": null}
    --- stderr
    "#);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["status"])), @"
    exit: 0
    --- stdout
    no loop in [DIR]; `tachikoma run` starts one
    --- stderr
    ");
    assert!(files(&scratch.path()).is_empty(), "status only reads");
}

#[test]
fn status_shows_a_working_agent() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let working = status(&scratch);
    check_keys(&working);
    assert_eq!(working["state"], "running");
    assert_eq!(working["iteration"], 1);
    assert_eq!(working["runner"]["pid"], live.pid());
    assert!(
        working["outcome"].is_null() && working["waiting"].is_null(),
        "{working}"
    );
    assert_snapshot!(shown(&status_of_live(&scratch)), @"
    exit: 0
    --- stdout
    loop       [LOOP]
    state      running
    iteration  1 (attempt 1)
    session    1 (0 iterations)
    context    not known
    stops      it ran [DURATION] of [DURATION]
    stops      1 of 100 iterations
    so far     0 iterations, [DURATION] of work
    runner     pid [PID] since [TIME], containment [HELD]
    --- stderr
    ");
}

#[test]
fn status_shows_a_wait() {
    let scratch = Scratch::new();
    let _live = tachikoma(&scratch).spawn(run(&["--delay", "1h"], "true"));
    await_events(&scratch, "wait_started", 1);
    let waiting = status(&scratch);
    check_keys(&waiting);
    assert_eq!(waiting["waiting"]["reason"], "delay");
    assert!(waiting["waiting"]["until"].is_string(), "{waiting}");
    assert_snapshot!(shown(&status_of_live(&scratch)), @"
    exit: 0
    --- stdout
    loop       [LOOP]
    state      running
    waiting    delay until [TIME]
    iteration  1 (attempt 1)
    session    1 (1 iteration)
    context    not known
    stops      it ran [DURATION] of [DURATION]
    stops      1 of 100 iterations
    so far     1 iteration, 1 succeeded, [DURATION] of work
    runner     pid [PID] since [TIME], containment [HELD]
    --- stderr
    ");
}

#[test]
fn status_shows_a_paused_loop() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["pause", "--now"])), @"
    exit: 0
    --- stdout
    pauses; iteration 1 is interrupted
    --- stderr
    ");
    await_events(&scratch, "paused", 1);
    let paused = status(&scratch);
    check_keys(&paused);
    assert_eq!(paused["state"], "paused");
    assert_eq!(paused["waiting"]["reason"], "operator");
    assert!(
        paused["waiting"]["until"].is_null(),
        "only the operator ends a pause"
    );
    assert_snapshot!(shown(&tachikoma(&scratch).run(["resume"])), @"
    exit: 0
    --- stdout
    the loop continues
    --- stderr
    ");
    await_events(&scratch, "agent_launched", 2);
    assert_eq!(status(&scratch)["state"], "running");
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn status_shows_the_outcome_of_an_ended_loop() {
    let scratch = with_history();
    let ended = status(&scratch);
    check_keys(&ended);
    assert_eq!(ended["state"], "completed");
    assert_eq!(ended["outcome"]["kind"], "limit_reached");
    assert!(ended["runner"].is_null(), "no process runs the loop");
    assert_snapshot!(shown(&tachikoma(&scratch).run(["status"])), @"
    exit: 0
    --- stdout
    loop       [LOOP]
    state      completed
    iteration  1 (attempt 1)
    session    1 (1 iteration)
    context    not known
    stops      it ran [DURATION] of [DURATION]
    stops      1 of 1 iterations
    so far     1 iteration, 1 succeeded, [DURATION] of work
    outcome    limit_reached: the limit of 1 iteration is reached
    --- stderr
    ");
}

#[test]
fn status_shows_a_crashed_loop() {
    let scratch = Scratch::new();
    kill(&scratch, start_busy(&scratch, &[]));
    let before = files(&scratch.path());
    let crashed = status(&scratch);
    check_keys(&crashed);
    assert_eq!(crashed["state"], "idle");
    assert!(crashed["runner"].is_null(), "no process runs the loop");
    assert_eq!(files(&scratch.path()), before, "status only reads");
}

#[test]
fn status_finds_the_loop_from_a_subdirectory() {
    let scratch = with_history();
    scratch.write("src/deep/file", "");
    let here = tachikoma(&scratch).run(["status", "--json"]);
    let below = tachikoma(&scratch)
        .in_dir("src/deep")
        .run(["status", "--json"]);
    assert_eq!(below.stdout, here.stdout);
    let events = tachikoma(&scratch).in_dir("src/deep").run(["events"]);
    assert_eq!(events.code(), Some(0), "{}", events.snapshot());
    let ran = tachikoma(&scratch).in_dir("src/deep").run(["stop"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
}

#[test]
fn a_command_from_a_subdirectory_reaches_the_loop() {
    let scratch = Scratch::new();
    scratch.write("src/deep/file", "");
    let live = start_busy(&scratch, &[]);
    let ran = tachikoma(&scratch).in_dir("src/deep").run(["stop"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn events_are_printed_as_lines_with_their_time() {
    let scratch = Scratch::new();
    let script = "if [ $TACHIKOMA_ITERATION = 1 ]; then exit 1; fi; touch work; echo '<promise>COMPLETE</promise>'";
    let ran = tachikoma(&scratch).run(run(&[], script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_snapshot!(shown(&tachikoma(&scratch).run(["events"])), @"
    exit: 0
    --- stdout
    [TIME]   [LOOP] starts: agent command, containment [HELD]
    [TIME] ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━
    [TIME]   ✗ failed after [DURATION]: the agent ended with exit 1
    [TIME]   ↻ retry in [DURATION] (failure 1 of 10)
    [TIME] ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━
    [TIME]   ✓ done in [DURATION], claims completion
    [TIME] ✓ completed: the work is complete (2 iterations, 1 succeeded, 1 failed, [DURATION] of work)
    [TIME]   this run: [CLOCK] to [CLOCK]
    --- stderr
    ");
}

#[test]
fn logs_prints_the_output_of_the_agent() {
    let scratch = Scratch::new();
    let script = "echo out $TACHIKOMA_ITERATION; echo err >&2";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let sorted = |words: &[&str]| {
        let ran = tachikoma(&scratch).run(words);
        let mut lines: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(
        sorted(&["logs"]),
        ["err", "out 2"],
        "the log of the last iteration"
    );
    assert_eq!(sorted(&["logs", "1"]), ["err", "out 1"]);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["logs", "3"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: the agent in iteration 3 has no output, or its transcript was deleted
    hint: transcripts are in [DIR]/.ralph/sessions/[LOOP]
    ");
}

#[test]
fn a_dry_run_changes_nothing() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "max_iterations = 7\n");
    let before = files(&scratch.path());
    let ran = as_configured(&scratch).run(run(&["--dry-run"], CLAIMS));
    assert_snapshot!(shown(&ran), @r#"
    exit: 0
    --- stdout
    would run agent command (`sh -c { echo done >> work; echo '<promise>COMPLETE</promise>'; }`)
    permission your own rights: nothing it does is denied
    in [DIR]
    prompt text, 2 bytes
    git is not used: no repository here
    max_iterations = 7  # tachikoma.toml:1
    iteration_delay = "0s"  # --delay
    agent.name = "command"  # -- PROGRAM
    agents.command.program = ["sh", "-c", "{ echo done >> work; echo '<promise>COMPLETE</promise>'; }"]  # -- PROGRAM
    --- stderr
    "#);
    assert_eq!(files(&scratch.path()), before);
    assert!(!scratch.path().join(".ralph").exists());
    assert!(files(&scratch.runtime_dir()).is_empty());
}

#[test]
fn logs_are_found_from_a_subdirectory_with_the_configured_session_directory() {
    let scratch = Scratch::new();
    scratch.write("deep/er/file", "");
    scratch.write("tachikoma.toml", "[session]\nstate_dir = \"talk\"\n");
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let logs = tachikoma(&scratch).in_dir("deep/er").run(["logs"]);
    assert_eq!(
        logs.stdout, "<promise>COMPLETE</promise>\n",
        "{}",
        logs.stderr
    );
}

#[test]
fn every_new_loop_gets_a_random_version_4_uuid() {
    let scratch = Scratch::new();
    let ids: Vec<String> = (0..2)
        .map(|_| {
            let ran = tachikoma(&scratch).run(run(&["--new", "--max-iterations", "1"], "true"));
            assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
            status(&scratch)["loop_id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_ne!(ids[0], ids[1]);
    for id in ids {
        let uuid = id.strip_prefix("loop_").expect("a prefix");
        let groups: Vec<&str> = uuid.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert!(groups[2].starts_with('4'), "the version: {id}");
        assert!(
            groups[3].starts_with(['8', '9', 'a', 'b']),
            "the variant: {id}"
        );
    }
}
