//! Input of an agent in each turn: prompt, hand-off, variables and stdin.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use insta::assert_snapshot;
use tachikoma_testkit::{Scratch, await_until, mask};

use crate::claude_support::{bash, claude, says, scenario, stage};
use crate::support::{
    CLAIMS, SOON, as_configured, await_events, events, run, shown, start_busy, status, tachikoma,
};

#[test]
fn the_prompt_is_read_again_at_each_iteration() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "first\n");
    let script = "cat > got-$TACHIKOMA_ITERATION; echo second > prompt.md";
    let words = [
        "run",
        "--delay",
        "0s",
        "--max-iterations",
        "2",
        "--",
        "sh",
        "-c",
        script,
    ];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("got-1"), "first\n");
    assert_eq!(scratch.read("got-2"), "second\n");
}

// Known fault of other loops: the agent did not run in the configured working directory.
#[test]
fn the_agent_runs_in_the_configured_working_directory() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "working_dir = \"work\"\n");
    scratch.write("work/prompt.md", "go\n");
    let script = "cat > got; pwd -P > where";
    let words = ["run", "--max-iterations", "1", "--", "sh", "-c", script];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        scratch.read("work/got"),
        "go\n",
        "the prompt is read from the working directory"
    );
    let place = fs::canonicalize(scratch.path().join("work")).unwrap();
    assert_eq!(
        scratch.read("work/where").trim_end(),
        place.to_str().unwrap()
    );
    assert!(
        place.join(".ralph/loops").is_dir(),
        "the state is in the working directory"
    );
}

// Known fault of other loops: files of the loop were committed or deleted by git commands of the agent.
#[test]
fn git_ignores_the_state_of_the_loop() {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "go\n");
    let script = "git add -A && git status --porcelain; git clean -fdq";
    let words = ["run", "--max-iterations", "1", "--", "sh", "-c", script];
    let ran = tachikoma(&scratch).run(words);
    assert!(
        ran.stdout.contains("  | A  prompt.md\n"),
        "{}",
        ran.snapshot()
    );
    assert!(!ran.stdout.contains("ralph"), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["stats"]["successful"], 1);
}

#[test]
fn iterations_fail_while_the_prompt_file_is_missing() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    let script = format!("test -e seen && {CLAIMS} || {{ touch seen; rm prompt.md; }}");
    let words = ["run", "--delay", "0s", "--", "sh", "-c", &script];
    let live = tachikoma(&scratch).spawn(words);
    await_events(&scratch, "iteration_failed", 1);
    scratch.write("prompt.md", "go\n");
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let failed = &events(&scratch, "iteration_failed")[0];
    assert_eq!(failed["failure"]["kind"], "not_launched", "{failed}");
    let waits = events(&scratch, "wait_started");
    assert_eq!(waits[0]["wait"]["reason"], "backoff", "{waits:?}");
    let line = ran.snapshot();
    let line = line.lines().find(|line| line.contains("failed"));
    assert_snapshot!(line.unwrap_or_default(), @"  ✗ failed after [DURATION]: read prompt [DIR]/prompt.md: No such file or directory (os error 2)");
}

#[test]
fn a_reboot_gives_a_hand_off_to_the_next_session() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "the task\n");
    let script = format!(
        "cat > got-$TACHIKOMA_ITERATION; [ $TACHIKOMA_ITERATION = 1 ] && exec sleep 600; {CLAIMS}"
    );
    let live = tachikoma(&scratch).spawn(["run", "--delay", "0s", "--", "sh", "-c", &script]);
    await_until("the agent to have read its prompt", SOON, || {
        fs::read_to_string(scratch.path().join("got-1")).is_ok_and(|got| got == "the task\n")
    });
    await_events(&scratch, "agent_launched", 1);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["reboot"])), @"
    exit: 0
    --- stdout
    reboots; iteration 1 ends, and the new session continues its work
    --- stderr
    ");
    let ran = live.wait(SOON);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c cat > got-$TACHIKOMA_ITERATION; [ $TACHIKOMA_ITERATION = 1 ] && exec sleep 600; { echo done >> work; echo '<promise>COMPLETE</promise>'; }`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      100 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ↻ a reboot is due: asked for by the operator
      ! ending the agent: interrupt
      ↻ handed over after [DURATION]
    ── rebooted: session 1 -> 2 (asked for by the operator) ────────────────────────
      hand-off: written by the loop, not by the old session
    ━━ iteration 2 ━━ [CLOCK] ━━ session 2 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | <promise>COMPLETE</promise>
      ✓ done in [DURATION], claims completion
    ✓ completed: the work is complete (2 iterations, 1 succeeded, 1 handed over, 1 reboot, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    ");
    assert_snapshot!(scratch.read("got-2"), @"
    # Hand-off from the previous session

    You continue the work of an earlier session. Its conversation is gone, but its changes to the files are there. Look at the work tree first, and do not repeat finished work.

    - Session 2, iteration 2, attempt 1.
    - So far: 1 iterations finished, 0 succeeded, 0 failed, 1 handed over.
    - The previous session was replaced: asked for by the operator.

    ---

    the task
    ");
    let stats = &status(&scratch)["stats"];
    assert_eq!(
        (&stats["reboots"], &stats["handed_over"]),
        (&1.into(), &1.into())
    );
}

#[test]
fn a_skip_ends_the_current_iteration_and_continues() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &["--max-iterations", "1"]);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["skip"])), @"
    exit: 0
    --- stdout
    skips iteration 1
    --- stderr
    ");
    assert_eq!(live.wait(SOON).code(), Some(3));
    let stats = &status(&scratch)["stats"];
    assert_eq!(
        (&stats["iterations"], &stats["skipped"]),
        (&1.into(), &1.into())
    );
}

#[test]
fn a_skip_ends_a_wait() {
    let scratch = Scratch::new();
    let words = run(&["--delay", "1h", "--max-iterations", "2"], "true");
    let live = tachikoma(&scratch).spawn(words);
    await_events(&scratch, "wait_started", 1);
    let skip = tachikoma(&scratch).run(["skip"]);
    assert_eq!(skip.stdout, "skips the wait\n", "{}", skip.snapshot());
    assert_eq!(live.wait(SOON).code(), Some(3));
}

#[test]
fn a_paused_loop_stays_paused_over_a_reboot() {
    let scratch = Scratch::new();
    let _live = start_busy(&scratch, &[]);
    assert_eq!(tachikoma(&scratch).run(["pause", "--now"]).code(), Some(0));
    await_events(&scratch, "paused", 1);
    let reboot = tachikoma(&scratch).run(["reboot"]);
    assert_eq!(
        reboot.stdout,
        "reboots and stays paused\n",
        "{}",
        reboot.snapshot()
    );
    await_events(&scratch, "reboot_completed", 1);
    await_events(&scratch, "paused", 2);
    assert_eq!(status(&scratch)["state"], "paused");
    assert_eq!(status(&scratch)["session"]["number"], 2);
    assert_eq!(events(&scratch, "iteration_started").len(), 1);
}

#[test]
fn the_agent_gets_iteration_and_attempt_as_variables() {
    let scratch = Scratch::new();
    let script = "env | grep ^TACHIKOMA_ | sort > variables";
    let ran = as_configured(&scratch).run(run(&["--max-iterations", "2"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let variables = scratch.read("variables");
    let here = scratch.path().display().to_string();
    assert_snapshot!(mask(&variables.replace(&here, "[SCRATCH]")), @"
    TACHIKOMA_ATTEMPT=1
    TACHIKOMA_DIR=[SCRATCH]
    TACHIKOMA_INSIDE=[LOOP]
    TACHIKOMA_ITERATION=2
    TACHIKOMA_LOOP_ID=[LOOP]
    TACHIKOMA_SESSION=1
    ");
}

#[test]
fn a_long_lived_agent_gets_no_iteration_variables() {
    let turns = [
        says("one", 1_000),
        bash("env | grep ^TACHIKOMA_ | sort > variables", 1_000),
        says("two", 1_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let ran =
        claude(&scratch)
            .env("TACHIKOMA_ITERATION", "7")
            .run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let variables = scratch.read("variables");
    let names = variables.lines().filter_map(|line| line.split_once('='));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    assert!(names.contains(&"TACHIKOMA_SESSION"), "{names:?}");
    assert!(
        !names.contains(&"TACHIKOMA_ITERATION") && !names.contains(&"TACHIKOMA_ATTEMPT"),
        "{names:?}"
    );
}

// Known fault of other loops: the agent read the stdin of the loop.
#[test]
fn the_agent_does_not_inherit_stdin() {
    let scratch = Scratch::new();
    let words = run(&["--max-iterations", "1"], "cat > got");
    let mut command = tachikoma(&scratch).command(words);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin
        .write_all(b"what the operator types\n")
        .expect("it is open");
    await_until("its end", SOON, || {
        child.try_wait().expect("it is ours").is_some()
    });
    assert_eq!(scratch.read("got"), "go");
}

#[test]
fn the_prompt_can_be_passed_as_an_argument() {
    let scratch = Scratch::new();
    let text = "[agents.command]\nprogram = [\"sh\", \"-c\", \"cat > stdin; echo \\\"$1\\\" > argument\", \"sh\"]\nprompt = \"argument\"\n";
    scratch.write("tachikoma.toml", text);
    let words = [
        "run",
        "--agent",
        "command",
        "--prompt-text",
        "go there",
        "--max-iterations",
        "1",
    ];
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("argument"), "go there\n");
    assert_eq!(scratch.read("stdin"), "", "stdin of the agent is empty");
}

#[test]
fn the_agent_may_read_the_status_but_not_command() {
    let scratch = Scratch::new();
    let binary = env!("CARGO_BIN_EXE_tachikoma");
    let script =
        format!("{binary} status --json > asked; {binary} stop 2> refused; echo $? >> refused");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(
        scratch.read("asked").contains("\"state\": \"running\""),
        "{}",
        scratch.read("asked")
    );
    assert_snapshot!(scratch.read("refused"), @"
    error: only the operator may ask this; from inside the agent only `status`, `note` and `done` may be asked
    1
    ");
}

#[test]
fn programs_are_found_in_the_path_of_the_agent() {
    let scratch = Scratch::new();
    scratch.write_script("own/bin/my-agent", format!("#!/bin/sh\n{CLAIMS}\n"));
    let bin = scratch.path().join("own/bin");
    let config = format!("[agents.command.env]\nPATH = \"{}:/bin\"\n", bin.display());
    scratch.write("tachikoma.toml", config);
    let words = ["run", "--quiet", "--prompt-text", "go", "--"];
    let ran = tachikoma(&scratch).run(words.iter().chain(&["my-agent"]));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());

    scratch.write(
        "tachikoma.toml",
        "[agents.command.env]\nPATH = \"/nowhere\"\n",
    );
    let ran = tachikoma(&scratch).run(words.iter().chain(&["sh"]));
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    let why = "program `sh` is not found; looked in PATH: /nowhere\n";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
}
