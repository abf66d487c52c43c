//! Messages of `run` about an existing loop: resumed, recovered or refused.

use std::fs;
use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use serde_json::Value;
use tachikoma_testkit::{Ran, Scratch};

use crate::support::{
    await_events, events, files, journal, kill, loops, run, shown, start_busy, status, tachikoma,
    with_history,
};

/// Arguments of a run for one more iteration.
const ONE_MORE: [&str; 8] = [
    "run",
    "--quiet",
    "--delay",
    "0s",
    "--max-iterations",
    "2",
    "--",
    "true",
];

fn snapshot(scratch: &Scratch) -> PathBuf {
    scratch.path().join(".ralph/state.json")
}

fn damage(path: &Path, from: &str, to: &str) -> Vec<u8> {
    let text = fs::read_to_string(path).expect("the test owns this file");
    assert!(text.contains(from), "{text}");
    let damaged = text.replacen(from, to, 1).into_bytes();
    fs::write(path, &damaged).expect("the test owns this file");
    damaged
}

/// Returns the names and contents of the files in the quarantine directory.
fn quarantined(scratch: &Scratch) -> Vec<(String, Vec<u8>)> {
    let found = files(&scratch.path().join(".ralph/quarantine"));
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    found
        .into_iter()
        .map(|(path, bytes)| (name(&path), bytes))
        .collect()
}

#[track_caller]
fn all_records(ran: &Ran) -> Vec<Value> {
    let lines = ran.stdout.lines();
    let records: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("a record"))
        .collect();
    assert!(records.iter().all(|record| record["seq"].is_u64()));
    records
}

#[test]
fn run_reports_the_resumed_loop() {
    let scratch = Scratch::new();
    kill(&scratch, start_busy(&scratch, &["--max-iterations", "1"]));
    let ran = tachikoma(&scratch).run(["run", "--json", "--", "true"]);
    let records = all_records(&ran);
    assert_eq!(records[0]["event"]["type"], "started");
    assert_eq!(records[0]["event"]["resumption"]["kind"], "after_crash");
    let stderr = shown(&ran);
    let stderr = stderr.split("--- stderr").nth(1).expect("it is shown");
    assert_snapshot!(stderr, @r#"
    resuming [LOOP], interrupted at iteration 1, attempt 1: the iteration is repeated as attempt 2; the state is from [SOURCE]
    note: `agents.command.program` is ["true"] now; it was ["sh", "-c", "exec sleep 600"]
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
}

#[test]
fn a_damaged_snapshot_is_replaced_by_the_journal() {
    let scratch = with_history();
    let before = status(&scratch);
    let damaged = damage(&snapshot(&scratch), "\"execution_ms\"", "\"execution_mz\"");
    let ran = tachikoma(&scratch).run(ONE_MORE);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
    --- stderr
    resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): iteration 2 is next; the state is from [SOURCE]
    note: `iteration_delay` is "0s" now; it was the default
    note: `max_iterations` is 2 now; it was 1
    warning: falling back to the journal: snapshot [DIR]/.ralph/state.json is damaged: its checksum does not match; the journal is undamaged up to record 9, and the snapshot file is kept in .ralph/quarantine/
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
    let after = status(&scratch);
    assert_eq!(after["loop_id"], before["loop_id"]);
    assert_eq!(after["iteration"], 2);
    assert_eq!(
        quarantined(&scratch),
        [("state.json.1".to_owned(), damaged)]
    );
}

#[test]
fn damage_before_the_snapshot_is_tolerated() {
    let scratch = with_history();
    damage(&journal(&scratch), "{\"seq\":2,", "{\"sez\":2,");
    let ran = tachikoma(&scratch).run(ONE_MORE);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
    --- stderr
    resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): iteration 2 is next; the state is from [SOURCE]
    note: `iteration_delay` is "0s" now; it was the default
    note: `max_iterations` is 2 now; it was 1
    warning: falling back to the snapshot: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 2 (its checksum does not match); the snapshot has the damaged records
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
    assert_eq!(status(&scratch)["iteration"], 2);
}

#[test]
fn a_journal_older_than_the_snapshot_is_replaced_by_the_snapshot() {
    let scratch = with_history();
    let path = journal(&scratch);
    let text = fs::read_to_string(&path).expect("the test owns this file");
    let cut = text.trim_end().rfind('\n').expect("it has lines") + 1;
    fs::write(&path, &text[..cut]).expect("the test owns this file");
    let ran = tachikoma(&scratch).run(ONE_MORE);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
    --- stderr
    resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): iteration 2 is next; the state is from [SOURCE]
    note: `iteration_delay` is "0s" now; it was the default
    note: `max_iterations` is 2 now; it was 1
    warning: falling back to the snapshot: the journal ends at record 8, and the snapshot ends at record 9; later records, if there were any, are lost
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
    assert_eq!(status(&scratch)["iteration"], 2);
}

#[test]
fn accept_loss_names_the_lost_records() {
    let scratch = with_history();
    fs::remove_file(snapshot(&scratch)).expect("the test owns this file");
    let damaged = damage(
        &journal(&scratch),
        "\"iteration_started\"",
        "\"iteration_star7ed\"",
    );
    let mut words = ONE_MORE.to_vec();
    words.insert(1, "--accept-loss");
    let ran = tachikoma(&scratch).run(words);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
    --- stderr
    resuming [LOOP], interrupted before its first iteration: iteration 1 is next; the state is from [SOURCE]
    note: `iteration_delay` is "0s" now; it was the default
    note: `max_iterations` is 2 now; it was 1
    warning: falling back to record 3: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 4 (its checksum does not match); the records from there on are lost to the loop, and kept in .ralph/quarantine/
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
    let kept = [("journal-0001.jsonl.1".to_owned(), damaged)];
    assert_eq!(quarantined(&scratch), kept);
    let ran = tachikoma(&scratch).run(["events"]);
    assert!(
        ran.stdout
            .contains("warning: falling back to record 3: journal"),
        "{}",
        ran.stdout
    );
}

#[test]
fn accept_loss_is_refused_without_any_good_record() {
    let scratch = with_history();
    fs::remove_file(snapshot(&scratch)).expect("the test owns this file");
    damage(
        &journal(&scratch),
        "\"segment_opened\"",
        "\"segment_op7ned\"",
    );
    let before = files(&scratch.path().join(".ralph"));
    let ran = tachikoma(&scratch).run(["run", "--accept-loss"]);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 1: its checksum does not match
    hint: nothing was changed; no state before that line can be used: restore the file, or `tachikoma run --new` starts a new loop beside it
    ");
    assert_eq!(files(&scratch.path().join(".ralph")), before);
}

/// Checks that a run is refused and changes nothing.
#[track_caller]
fn refused(scratch: &Scratch) -> String {
    let before = files(&scratch.path().join(".ralph"));
    let ran = tachikoma(scratch).run(["run"]);
    assert_eq!(
        files(&scratch.path().join(".ralph")),
        before,
        "{}",
        ran.snapshot()
    );
    shown(&ran)
}

#[test]
fn a_snapshot_of_a_newer_version_is_refused() {
    let scratch = with_history();
    damage(&snapshot(&scratch), "\"version\": 1", "\"version\": 2");
    assert_snapshot!(refused(&scratch), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: snapshot [DIR]/.ralph/state.json has version 2; this version reads up to 1
    hint: nothing was changed; use the version that wrote it, or `tachikoma run --new` starts a new loop beside it
    ");
}

#[test]
fn a_missing_record_after_the_snapshot_is_refused() {
    let scratch = Scratch::new();
    let script = "[ $TACHIKOMA_ITERATION = 2 ] && exec sleep 600; true";
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "9"], script));
    await_events(&scratch, "agent_launched", 2);
    assert_eq!(tachikoma(&scratch).run(["pause"]).code(), Some(0));
    kill(&scratch, live);
    // The record of the launch is newer than the snapshot and older than the record of the pause.
    let path = journal(&scratch);
    let text = fs::read_to_string(&path).expect("the test owns this file");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert!(lines[lines.len() - 2].contains("agent_launched"), "{text}");
    let mut gapped = lines.clone();
    gapped.remove(lines.len() - 2);
    fs::write(&path, gapped.concat()).expect("the test owns this file");
    assert_snapshot!(refused(&scratch), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 10: record 11 follows record 9
    hint: nothing was changed; `tachikoma run --accept-loss` continues from record 9 (iteration 2) and keeps what follows in `.ralph/quarantine/`, `--new` starts a new loop beside it
    ");
}

#[test]
fn settings_that_changed_are_named_recorded_and_applied() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "max_iterations = 1\n[agents.command]\nprogram = [\"true\"]\nenv = { TOKEN = \"first-key\" }\n[agent]\nname = \"command\"\n",
    );
    scratch.write("prompt.md", "go\n");
    assert_eq!(tachikoma(&scratch).run(["run"]).code(), Some(3));
    let same = tachikoma(&scratch).run(["run", "--quiet"]);
    assert_eq!(
        events(&scratch, "config_changed").len(),
        0,
        "{}",
        same.stderr
    );

    scratch.write(
        "tachikoma.toml",
        "max_iterations = 2\niteration_delay = \"1ms\"\n[agents.command]\nprogram = [\"true\"]\nenv = { TOKEN = \"second-key\", OTHER = \"x\" }\n[agent]\nname = \"command\"\n",
    );
    let ran = tachikoma(&scratch).run(["run"]);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent command (`true`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] goes on: agent command, containment [HELD]
      `agents.command.env.OTHER` is "***" now; it was the default
      `iteration_delay` is "1ms" now; it was the default
      `max_iterations` is 2 now; it was 1
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✓ done in [DURATION]
    ! completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): iteration 2 is next; the state is from [SOURCE]
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
    assert_eq!(
        status(&scratch)["iteration"],
        2,
        "the changed settings are applied"
    );
    let changed = events(&scratch, "config_changed");
    assert_eq!(changed.len(), 1);
    assert_snapshot!(changed[0]["changes"], @r#"[{"from":null,"key":"agents.command.env.OTHER","to":"\"***\""},{"from":null,"key":"iteration_delay","to":"\"1ms\""},{"from":"1","key":"max_iterations","to":"2"}]"#);
    let all = fs::read_to_string(journal(&scratch)).expect("the test owns this file");
    assert!(
        !all.contains("first-key") && !all.contains("second-key"),
        "secrets are not shown"
    );
}

#[test]
fn only_the_first_of_many_changed_settings_are_named() {
    let scratch = with_history();
    let text: String = ["first_output", "silence", "tool", "session", "graceful"]
        .iter()
        .map(|name| format!("{name}_timeout = \"7m\"\n"))
        .collect();
    let long = "x".repeat(200);
    scratch.write(
        "tachikoma.toml",
        format!(
            "context_redline_percent = 50\nprompt_path = \"{long}\"\n[session]\n{text}result_grace = \"7m\"\ntranscripts_kept = 7\n"
        ),
    );
    let words = ["run", "--quiet", "--prompt-text", "go", "--", "true"];
    let ran = tachikoma(&scratch).run(words);
    assert_snapshot!(shown(&ran), @r#"
    exit: 3
    --- stdout
    completed: the limit of 1 iteration is reached (1 iteration, 1 succeeded, [DURATION] of work)
    --- stderr
    resuming [LOOP], ended at iteration 1 (the limit of 1 iteration is reached): its limit of 1 iteration still holds; the state is from [SOURCE]
    note: `context_redline_percent` is 50 now; it was the default
    note: `prompt_path` is "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... now; it was the default
    note: `session.first_output_timeout` is "7m" now; it was the default
    note: `session.graceful_timeout` is "7m" now; it was the default
    note: `session.result_grace` is "7m" now; it was the default
    note: `session.session_timeout` is "7m" now; it was the default
    note: `session.silence_timeout` is "7m" now; it was the default
    note: `session.tool_timeout` is "7m" now; it was the default
    note: more settings have changed: 1
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    "#);
}

/// Returns a loop of an earlier version that was killed in its fourteenth iteration.
fn of_format_1() -> Scratch {
    let data = Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = data.join("../tachikoma-loop-runner/tests/data/formats");
    let scratch = Scratch::new();
    let dir = ".ralph/loops/loop_5f10b65a-e591-4cb0-99fd-21b119471eb7/";
    let copy = |from: &str, to: String| {
        scratch.write(to, fs::read(data.join(from)).expect("it is there"));
    };
    for name in ["journal-0001.jsonl.zst", "journal-0002.jsonl"] {
        copy(&format!("journal-1/{name}"), format!("{dir}{name}"));
    }
    copy("snapshot-1/state.json", ".ralph/state.json".to_owned());
    scratch.write("prompt.md", "go\n");
    scratch.write("s.sh", "exit 0\n");
    scratch
}

#[test]
fn a_loop_of_an_earlier_version_is_resumed() {
    let scratch = of_format_1();
    let words = ["run", "--max-iterations", "15"];
    let ran = tachikoma(&scratch).run(words);
    assert_snapshot!(shown(&ran), @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent command (`sh s.sh`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      15 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] goes on: agent command, containment [HELD]
      some settings differ from those of the last run, which recorded no values
      ! iteration 14, attempt 1, was cut by the death of its runner and is repeated
    ━━ iteration 14 ━━ attempt 2 ━━ [CLOCK] ━━ session 3 ━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✓ done in [DURATION]
    ━━ iteration 15 ━━ [CLOCK] ━━ session 3 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✓ done in [DURATION]
    ! completed: the limit of 15 iterations is reached (15 iterations, 8 succeeded, 2 failed, 2 handed over, 1 skipped, 2 interrupted, 2 reboots, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    resuming [LOOP], interrupted at iteration 14, attempt 1: the iteration is repeated as attempt 2; the state is from [SOURCE]
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    assert_eq!(loops(&scratch).len(), 1);
    assert_eq!(status(&scratch)["stats"]["iterations"], 15);
}

#[test]
fn relative_paths_are_relative_to_the_working_directory() {
    let scratch = Scratch::new();
    scratch.write("work/task.md", "go\n");
    scratch.write(
        "tachikoma.toml",
        "working_dir = \"work\"\nprompt_path = \"task.md\"\n[state]\nstate_path = \".ralph/other.json\"\n",
    );
    for limit in ["1", "2"] {
        let words = [
            "run",
            "--delay",
            "0s",
            "--max-iterations",
            limit,
            "--",
            "true",
        ];
        let ran = tachikoma(&scratch).run(words);
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    }
    assert!(!scratch.path().join(".ralph").exists());
    let saved: Value = serde_json::from_str(&scratch.read("work/.ralph/other.json")).expect("JSON");
    assert_eq!(
        saved["core"]["iteration"], 2,
        "the second run continued the loop"
    );
    assert_eq!(saved["core"]["prompt_path"], "task.md");
    let work = scratch
        .path()
        .join("work")
        .canonicalize()
        .expect("it is ours");
    assert_eq!(saved["core"]["working_dir"], work.to_str().expect("UTF-8"));
    assert_ne!(saved["core"]["config_hash"], "");
}
