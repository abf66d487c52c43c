//! Resuming a loop after a crash, after its end, and with other flags and settings.

use std::fs;

use insta::assert_snapshot;
use serde_json::Value;
use tachikoma_testkit::{Scratch, Tool, await_until};

use crate::support::{
    BUSY, CLAIMS, SOON, as_configured, await_events, events, journal, journals, kill, lines, loops,
    run, shown, start_busy, status, tachikoma, with_history,
};

#[test]
fn an_interrupted_attempt_is_in_the_history() {
    let scratch = Scratch::new();
    let script = format!("[ $TACHIKOMA_ATTEMPT = 1 ] && {BUSY}; echo $TACHIKOMA_ITERATION");
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "1"], &script));
    await_events(&scratch, "agent_launched", 1);
    let history = || tachikoma(&scratch).run(["history", "--json"]).stdout;
    assert_eq!(history(), "", "the attempt is running");
    kill(&scratch, live);
    let rows = || -> Vec<(Value, Value)> {
        let history = history();
        let rows = history
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| (row["attempts"].clone(), row["outcome"].clone()))
            .collect()
    };
    let cut = (Value::from(1), Value::from("cut"));
    assert_eq!(rows(), std::slice::from_ref(&cut));
    assert_eq!(tachikoma(&scratch).run(["run"]).code(), Some(3));
    assert_eq!(rows(), [cut, (2.into(), "succeeded".into())]);
    let text = tachikoma(&scratch).run(["history"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].contains("Z cut  "), "{text}");
    assert!(lines[1].ends_with("- (attempt 1)"), "{text}");
    assert!(lines[2].ends_with("- (attempt 2)"), "{text}");
}

#[test]
fn a_killed_runner_repeats_its_iteration() {
    let scratch = Scratch::new();
    let script = format!(
        "[ $TACHIKOMA_ITERATION$TACHIKOMA_ATTEMPT = 21 ] && {BUSY}; echo $TACHIKOMA_ITERATION"
    );
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "3"], &script));
    await_events(&scratch, "agent_launched", 2);
    kill(&scratch, live);
    let before = status(&scratch)["loop_id"].clone();

    let ran = tachikoma(&scratch).run(["run"]);
    let from = "the state is from the snapshot and 3 records after it\n";
    assert!(ran.stderr.contains(from), "{}", ran.stderr);
    assert_snapshot!(shown(&ran), @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c [ $TACHIKOMA_ITERATION$TACHIKOMA_ATTEMPT = 21 ] && exec sleep 600; echo $TACHIKOMA_ITERATION`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      3 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] goes on: agent command, containment [HELD]
      ! iteration 2, attempt 1, was cut by the death of its runner and is repeated
    ━━ iteration 2 ━━ attempt 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | 2
      ✓ done in [DURATION]
    ━━ iteration 3 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | 3
      ✓ done in [DURATION]
    ! completed: the limit of 3 iterations is reached (3 iterations, 3 succeeded, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    resuming [LOOP], interrupted at iteration 2, attempt 1: the iteration is repeated as attempt 2; the state is from [SOURCE]
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    let after = status(&scratch);
    assert_eq!(after["loop_id"], before);
    assert_eq!(
        after["stats"]["iterations"], 3,
        "a repeated iteration counts once"
    );
    let started = events(&scratch, "iteration_started");
    let numbers: Vec<_> = started
        .iter()
        .map(|event| (event["iteration"].as_u64(), event["attempt"].as_u64()))
        .collect();
    let some = |iteration, attempt| (Some(iteration), Some(attempt));
    assert_eq!(numbers, [some(1, 1), some(2, 1), some(2, 2), some(3, 1)]);
}

#[test]
fn a_stopped_loop_is_resumed() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_snapshot!(shown(&ran), @r#"
    exit: 0
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c { echo done >> work; echo '<promise>COMPLETE</promise>'; }`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      100 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] goes on: agent command, containment [HELD]
      `agents.command.program` is ["sh", "-c", "{ echo done >> work; echo '<promise>COMPLETE</... now; it was ["sh", "-c", "exec sleep 600"]
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | <promise>COMPLETE</promise>
      ✓ done in [DURATION], claims completion
    ✓ completed: the work is complete (2 iterations, 1 succeeded, 1 interrupted, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    resuming [LOOP], ended at iteration 1 (stopped by the operator): iteration 2 is next; the state is from [SOURCE]
    "#);
    assert_eq!(loops(&scratch).len(), 1);
}

#[test]
fn a_loop_that_ended_with_an_error_is_resumed() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nmax_consecutive_failures = 1\n",
    );
    let script = format!("test -e mended && {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    scratch.write("mended", "");
    let ran = tachikoma(&scratch).run(["run", "--quiet"]);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    completed: the work is complete (2 iterations, 1 succeeded, 1 failed, [DURATION] of work)
    --- stderr
    resuming [LOOP], ended at iteration 1 (an iteration failed (max_consecutive_failures = 1); the last one: the agent ended with exit 1): iteration 2 is next; the state is from [SOURCE]
    ");
    assert_eq!(loops(&scratch).len(), 1);
    assert_eq!(status(&scratch)["iteration"], 2);
}

#[test]
fn a_loop_is_resumed_with_a_raised_limit() {
    let scratch = with_history();
    let ran = tachikoma(&scratch).run(["run", "--quiet", "--delay", "0s", "--max-iterations", "3"]);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    completed: the limit of 3 iterations is reached (3 iterations, 3 succeeded, [DURATION] of work)
    --- stderr
    resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): iteration 2 is next; the state is from [SOURCE]
    note: `iteration_delay` is "0s" now; it was the default
    note: `max_iterations` is 3 now; it was 1
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
    assert_eq!(status(&scratch)["iteration"], 3);
    assert_eq!(loops(&scratch).len(), 1);
}

#[test]
fn a_completed_loop_is_followed_by_a_new_one() {
    let scratch = Scratch::new();
    let done = |words: &[&str]| {
        let ran = tachikoma(&scratch).run(words);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        (status(&scratch)["loop_id"].clone(), shown(&ran))
    };
    let (first, _) = done(&run(&[], CLAIMS));
    let before = journals(&scratch);
    let (second, said) = done(&run(&[], CLAIMS));
    assert_ne!(first, second);
    assert!(said.contains("is done: this is a new loop"), "{said}");
    for (path, bytes) in before {
        assert_eq!(fs::read(path).expect("it is kept"), bytes);
    }
}

#[test]
fn new_does_not_change_the_old_loop() {
    let scratch = with_history();
    let before = journals(&scratch);
    let old = status(&scratch)["loop_id"].clone();
    let ran = tachikoma(&scratch).run(run(&["--new", "--quiet"], CLAIMS));
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    completed: the work is complete (1 iteration, 1 succeeded, [DURATION] of work)
    --- stderr
    ");
    assert_ne!(status(&scratch)["loop_id"], old);
    for (path, bytes) in before {
        assert_eq!(fs::read(path).expect("it is kept"), bytes);
    }
}

#[test]
fn a_bare_run_uses_the_arguments_of_the_last_run() {
    let scratch = Scratch::new();
    scratch.write("task.md", "from the file\n");
    let script = "cat >> got";
    let words = [
        "run",
        "task.md",
        "--delay",
        "0s",
        "--max-iterations",
        "1",
        "--",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(as_configured(&scratch).run(words).code(), Some(3));
    let ran = as_configured(&scratch).run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("got"), "from the file\nfrom the file\n");

    let words = [
        "run",
        "--max-iterations",
        "3",
        "--prompt-text",
        "in words\n",
    ];
    assert_eq!(as_configured(&scratch).run(words).code(), Some(3));
    let ran = as_configured(&scratch).run(["run", "--max-iterations", "4"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let got = scratch.read("got");
    assert!(got.ends_with("file\nin words\nin words\n"), "{got}");

    let ran = as_configured(&scratch).run(["run", "--dry-run"]);
    assert_snapshot!(shown(&ran), @r#"
    exit: 0
    --- stdout
    would run agent command (`sh -c cat >> got`)
    permission your own rights: nothing it does is denied
    in [DIR]
    prompt text, 9 bytes
    git is not used: no repository here
    max_iterations = 4  # recorded launch
    iteration_delay = "0s"  # recorded launch
    agent.name = "command"  # recorded launch
    agents.command.program = ["sh", "-c", "cat >> got"]  # recorded launch
    --- stderr
    "#);
}

#[test]
fn an_edited_setting_overrides_the_recorded_flag_with_a_message() {
    let scratch = with_history();
    scratch.write(
        "tachikoma.toml",
        "max_iterations = 2\niteration_delay = \"0s\"\n",
    );
    let ran = tachikoma(&scratch).run(["run", "--quiet"]);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
    --- stderr
    note: `max_iterations` is 2 (tachikoma.toml:1), edited since the last run was given 1
    resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): iteration 2 is next; the state is from [SOURCE]
    note: `iteration_delay` is "0s" now; it was the default
    note: `max_iterations` is 2 now; it was 1
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
    assert_eq!(status(&scratch)["iteration"], 2);
}

#[test]
fn an_edited_prompt_path_overrides_the_recorded_prompt_text() {
    let scratch = Scratch::new();
    let words = run(&["--max-iterations", "1"], "cat >> got");
    assert_eq!(tachikoma(&scratch).run(words).code(), Some(3));
    scratch.write("task.md", "from the file\n");
    scratch.write("tachikoma.toml", "prompt_path = \"task.md\"\n");
    for limit in ["2", "3"] {
        let ran = tachikoma(&scratch).run(["run", "--max-iterations", limit]);
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        let note = "note: `prompt_path` is \"task.md\" (tachikoma.toml:1), edited since the last run was given `--prompt-text`\n";
        assert_eq!(ran.stderr.contains(note), limit == "2", "{}", ran.stderr);
    }
    assert_eq!(scratch.read("got"), "gofrom the file\nfrom the file\n");
}

#[test]
fn a_paused_loop_stays_paused_after_a_crash() {
    let scratch = Scratch::new();
    let script = format!("[ $TACHIKOMA_ITERATION = 1 ] && {BUSY}; {CLAIMS}");
    let live = tachikoma(&scratch).spawn(run(&[], &script));
    await_events(&scratch, "agent_launched", 1);
    assert_eq!(tachikoma(&scratch).run(["pause", "--now"]).code(), Some(0));
    await_events(&scratch, "paused", 1);
    kill(&scratch, live);

    let live = tachikoma(&scratch).spawn(["run"]);
    // A record is written before it is published, so `status` may show an older state than the journal.
    await_until("the new runner to be known", SOON, || {
        status(&scratch)["runner"]["pid"] == live.pid()
    });
    assert_eq!(status(&scratch)["state"], "paused");
    assert_eq!(tachikoma(&scratch).run(["resume"]).code(), Some(0));
    assert_snapshot!(shown(&live.wait(SOON)), @"
    exit: 0
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c [ $TACHIKOMA_ITERATION = 1 ] && exec sleep 600; { echo done >> work; echo '<promise>COMPLETE</promise>'; }`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      100 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] goes on: agent command, containment [HELD]
      resumed
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | <promise>COMPLETE</promise>
      ✓ done in [DURATION], claims completion
    ✓ completed: the work is complete (2 iterations, 1 succeeded, 1 interrupted, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    resuming [LOOP], interrupted at iteration 1, attempt 1: it is still paused, and `tachikoma resume` continues; the state is from [SOURCE]
    ");
}

#[test]
fn damage_before_the_snapshot_loses_nothing() {
    let scratch = with_history();
    let before = status(&scratch);
    let journal = journal(&scratch);
    let text = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, text.replacen("\"started\"", "\"sta7ted\"", 1)).unwrap();
    assert_eq!(
        status(&scratch),
        before,
        "the snapshot contains the damaged record"
    );
    let ran = tachikoma(&scratch).run(["run", "--max-iterations", "9", "--delay", "0s"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["loop_id"], before["loop_id"]);
}

#[test]
fn records_lost_by_accept_loss_are_moved_to_quarantine() {
    let scratch = with_history();
    let loop_id = status(&scratch)["loop_id"].clone();
    fs::remove_file(scratch.path().join(".ralph/state.json")).unwrap();
    let journal = journal(&scratch);
    let text = fs::read_to_string(&journal).unwrap();
    let damaged = text.replacen("\"session_started\"", "\"session_star7ed\"", 1);
    fs::write(&journal, &damaged).unwrap();
    assert_eq!(tachikoma(&scratch).run(["run"]).code(), Some(1));
    let words = [
        "run",
        "--accept-loss",
        "--max-iterations",
        "2",
        "--delay",
        "0s",
        "--",
        "true",
    ];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        status(&scratch)["loop_id"],
        loop_id,
        "the same loop continues"
    );
    let kept: Vec<_> = fs::read_dir(scratch.path().join(".ralph/quarantine"))
        .unwrap()
        .collect();
    assert_eq!(kept.len(), 1);
    let kept = fs::read_to_string(kept[0].as_ref().unwrap().path()).unwrap();
    assert_eq!(kept, damaged, "unreadable files are not overwritten");
}

#[test]
fn a_wait_continues_after_a_crash() {
    let scratch = Scratch::new();
    let live = tachikoma(&scratch).spawn(run(&["--delay", "1h"], "true"));
    await_events(&scratch, "wait_started", 1);
    let before = status(&scratch)["waiting"].clone();
    kill(&scratch, live);

    let _live = tachikoma(&scratch).spawn(["run"]);
    await_events(&scratch, "wait_started", 2);
    assert_eq!(
        status(&scratch)["waiting"],
        before,
        "the wait has its original end"
    );
    assert_eq!(status(&scratch)["iteration"], 1);
}

#[test]
fn a_crash_does_not_skip_a_backoff() {
    let scratch = Scratch::new();
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "3"], "false"));
    await_events(&scratch, "wait_started", 2);
    kill(&scratch, live);
    let until = events(&scratch, "wait_started")[1]["wait"]["until"].clone();
    let until = until.as_str().expect("a time").to_owned();

    assert_eq!(tachikoma(&scratch).run(["run"]).code(), Some(3));
    let lines = lines(&scratch);
    let third = lines
        .iter()
        .rfind(|line| line.contains("iteration_started"));
    let third: Value = serde_json::from_str(third.expect("the loop continued")).expect("a record");
    let started = third["time"].as_str().expect("a time");
    // Times in this format sort as text.
    assert!(started >= until.as_str(), "{started} is before {until}");
    assert_eq!(status(&scratch)["stats"]["failed"], 3);
}

#[test]
fn everything_works_without_git() {
    let scratch = Scratch::new();
    // The PATH has only a shell, and no git.
    let bin = scratch.home().join("bin");
    fs::create_dir(&bin).expect("the test owns this file");
    std::os::unix::fs::symlink("/bin/sh", bin.join("sh")).expect("the test owns this file");
    let binary = env!("CARGO_BIN_EXE_tachikoma");
    let ran = Tool::new(binary, &scratch)
        .env("PATH", &bin)
        .run(run(&["--quiet"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let ran = Tool::new(binary, &scratch)
        .env("PATH", &bin)
        .run(["status"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}
