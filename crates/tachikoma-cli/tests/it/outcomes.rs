//! Exit code and final output of `run` for each outcome.

use std::io::Read as _;
use std::process::Stdio;

use insta::assert_snapshot;
use rustix::process::Signal;
use tachikoma_testkit::{Scratch, await_until};

use crate::support::{
    BUSY, CLAIMS, SOON, await_events, events, lines, run, shown, start_busy, status, tachikoma,
};

#[test]
fn exit_code_is_0_when_the_work_is_complete() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c { echo done >> work; echo '<promise>COMPLETE</promise>'; }`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      100 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | <promise>COMPLETE</promise>
      ✓ done in [DURATION], claims completion
    ✓ completed: the work is complete (1 iteration, 1 succeeded, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    ");
    assert_eq!(status(&scratch)["outcome"]["kind"], "done");
}

#[test]
fn a_promise_inside_a_sentence_is_not_a_claim() {
    let scratch = Scratch::new();
    let script = "echo 'I do not say <promise>COMPLETE</promise> yet'";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let ended = &events(&scratch, "iteration_completed")[0]["report"];
    assert_ne!(ended["claimed"], true, "{ended}");
}

/// Known fault of other loops: text about a claim was taken for a claim.
#[test]
fn a_quoted_completion_promise_is_not_a_claim() {
    for (script, why) in [
        ("cat", "it is quoted from the prompt"),
        (
            "printf 'I am not saying this yet:\\n<promise>COMPLETE</promise>\\n'",
            "the words around it deny it or name a condition",
        ),
        (
            "printf '```\\n<promise>COMPLETE</promise>\\n```\\n'",
            "it is in a code block",
        ),
    ] {
        let scratch = Scratch::new();
        scratch.write(
            "prompt.md",
            "Work. At the end print\n<promise>COMPLETE</promise>\n",
        );
        let words = ["run", "--delay", "0s", "--max-iterations", "1", "--"];
        let ran = tachikoma(&scratch).run(words.into_iter().chain(["sh", "-c", script]));
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        let warned = events(&scratch, "warned");
        let warning = warned[0]["warning"].as_str().unwrap();
        assert!(warning.ends_with(why), "{script}: {warning}");
    }
}

#[test]
fn a_claim_in_a_failed_iteration_is_ignored() {
    let scratch = Scratch::new();
    let script = format!("{CLAIMS}; exit 1");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn a_claim_that_its_gate_confirms_ends_the_loop() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[[gate]]\nname = \"tests\"\ncommand = \"true\"\n",
    );
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], CLAIMS));
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c { echo done >> work; echo '<promise>COMPLETE</promise>'; }`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      1 iteration, 12h of work
      completion  a claim of completion (<promise>COMPLETE</promise> on a line of its own or `tachikoma done`) needs these gates to pass: tests
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
      gates: tests
      ✓ before the first iteration: gate tests passed in [DURATION]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | <promise>COMPLETE</promise>
      ✓ done in [DURATION], claims completion
      completion is claimed; gates: tests
      ✓ gate tests passed in [DURATION]
    ✓ completed: the work is complete (1 iteration, 1 succeeded, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    ");
}

#[test]
fn a_loop_that_ends_after_too_many_failures_shows_the_last_one() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nmax_consecutive_failures = 2\n",
    );
    let ran = tachikoma(&scratch).run(run(&[], "echo no licence >&2; exit 7"));
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c echo no licence >&2; exit 7`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      100 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | no licence
      ✗ failed after [DURATION]: the agent ended with exit 7
      ↻ retry in [DURATION] (failure 1 of 2)
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | no licence
      ✗ failed after [DURATION]: the agent ended with exit 7
    ✗ error: 2 iterations failed in a row (max_consecutive_failures = 2); the last one: the agent ended with exit 7 (2 iterations, 2 failed, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
    assert_eq!(status(&scratch)["outcome"]["kind"], "error");
}

#[test]
fn the_iteration_limit_includes_earlier_runs() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], "true"));
    assert_snapshot!(shown(&ran), @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c true`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✓ done in [DURATION]
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✓ done in [DURATION]
    ! completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    let again = tachikoma(&scratch).run(["run"]);
    assert_snapshot!(shown(&again), @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c true`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      2 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] goes on: agent command, containment [HELD]
    ! completed: the limit of 2 iterations is reached (2 iterations, 2 succeeded, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    resuming [LOOP], ended at iteration 2 (the limit of 2 iterations is reached): its limit of 2 iterations still holds; the state is from [SOURCE]
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
    assert_eq!(events(&scratch, "iteration_started").len(), 2);
}

#[test]
fn a_stop_of_the_operator_ends_the_loop() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let stop = tachikoma(&scratch).run(["stop"]);
    assert_snapshot!(shown(&stop), @"
    exit: 0
    --- stdout
    stops; iteration 1 is interrupted
    --- stderr
    ");
    assert_snapshot!(shown(&live.wait(SOON)), @"
    exit: 5
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c exec sleep 600`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      100 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ! stopping: stopped by the operator
      ! ending the agent: interrupt
      ! interrupted after [DURATION]
    ! stopped: stopped by the operator (1 iteration, 1 interrupted, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    hint: `tachikoma run` continues where it stopped
    ");
    assert_eq!(status(&scratch)["outcome"]["kind"], "operator");
    assert_eq!(status(&scratch)["state"], "stopped");
}

#[test]
fn a_stop_of_the_operator_ends_a_delay_and_a_backoff() {
    // Only the third backoff is long enough to be observed.
    for (script, reason, waits) in [("true", "delay", 1), ("false", "backoff", 3)] {
        let scratch = Scratch::new();
        let live = tachikoma(&scratch).spawn(run(&["--delay", "1h"], script));
        await_events(&scratch, "wait_started", waits);
        assert_eq!(status(&scratch)["waiting"]["reason"], reason);
        let stop = tachikoma(&scratch).run(["stop"]);
        assert_eq!(stop.stdout, "stopped\n", "{}", stop.snapshot());
        assert_eq!(live.wait(SOON).code(), Some(5), "{reason}");
    }
}

#[track_caller]
fn check_signal(signal: Signal) -> Option<i32> {
    let scratch = Scratch::new();
    let mut live = start_busy(&scratch, &[]);
    live.signal(signal);
    let code = live.wait(SOON).code();
    assert_eq!(status(&scratch)["outcome"]["kind"], "signal");
    assert_eq!(status(&scratch)["state"], "stopped");
    assert_eq!(status(&scratch)["stats"]["interrupted"], 1);
    code
}

#[test]
fn signals_escalate_from_stop_to_kill() {
    assert_eq!(check_signal(Signal::HUP), Some(129));
    assert_eq!(check_signal(Signal::INT), Some(130));
    assert_eq!(check_signal(Signal::TERM), Some(143));
}

#[test]
fn a_reader_that_closes_the_output_pipe_does_not_end_the_loop() {
    for flags in [
        &["--max-iterations", "3"][..],
        &["--json", "--max-iterations", "3"],
    ] {
        let scratch = Scratch::new();
        let mut command = tachikoma(&scratch).command(run(flags, "echo a line"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        await_until("its end", SOON, || {
            child.try_wait().expect("it is ours").is_some()
        });
        let code = child.wait().expect("the test started this process").code();
        assert_eq!(code, Some(3), "{flags:?}");
        assert_eq!(status(&scratch)["stats"]["successful"], 3, "{flags:?}");
    }
}

#[test]
fn events_can_be_piped_into_head() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    for words in [
        &["events"][..],
        &["config", "show"],
        &["completions", "bash"],
    ] {
        let mut command = tachikoma(&scratch).command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        drop(child.stdout.take());
        let mut stderr = String::new();
        let mut pipe = child.stderr.take().expect("it is a pipe");
        pipe.read_to_string(&mut stderr).expect("it is text");
        child.wait().expect("the test started this process");
        assert_eq!(stderr, "", "{words:?}");
    }
}

#[test]
fn quiet_prints_one_line() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--quiet"], CLAIMS));
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    completed: the work is complete (1 iteration, 1 succeeded, [DURATION] of work)
    --- stderr
    ");
}

#[test]
fn json_output_is_the_journal_without_checksums() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--json", "--max-iterations", "2"], "echo hi"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let first: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(first, lines(&scratch));

    let again = tachikoma(&scratch).run(["run", "--json", "--max-iterations", "3"]);
    let second: Vec<&str> = again.stdout.lines().collect();
    assert_eq!(
        [first, second].concat(),
        lines(&scratch),
        "a later run prints only its own records"
    );

    let all = tachikoma(&scratch).run(["events", "--json"]);
    assert_eq!(all.stdout.lines().collect::<Vec<_>>(), lines(&scratch));
}

#[test]
fn events_follow_prints_all_records_and_ends_with_the_loop() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let follower = tachikoma(&scratch).spawn(["events", "--follow", "--json"]);
    await_until("the first records", SOON, || {
        follower.stdout().contains("agent_launched")
    });
    let stop = tachikoma(&scratch).run(["stop", "--now"]);
    assert_eq!(stop.code(), Some(0), "{}", stop.snapshot());
    assert_eq!(live.wait(SOON).code(), Some(5));
    let followed = follower.wait(SOON);
    assert_eq!(followed.code(), Some(0), "{}", followed.snapshot());
    assert_eq!(followed.stdout.lines().collect::<Vec<_>>(), lines(&scratch));
}

#[test]
fn agent_output_cannot_control_the_terminal() {
    let scratch = Scratch::new();
    let script = r"printf 'plain \033[31mred\033[0m \033]0;title\007end\n'";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], script));
    assert!(ran.stdout.contains("  | plain red end\n"), "{}", ran.stdout);
    let logs = tachikoma(&scratch).run(["logs"]);
    assert_eq!(logs.stdout, "plain red end\n");
}

#[test]
fn a_second_run_in_a_directory_has_its_own_exit_code() {
    // The loop continues if its agent is killed by a signal.
    let scratch = Scratch::new();
    let live = tachikoma(&scratch).spawn(run(&["--max-iterations", "1"], BUSY));
    await_events(&scratch, "agent_launched", 1);
    let pid = events(&scratch, "agent_launched")[0]["pid"].as_i64();
    let pid = pid.and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a process id"), Signal::KILL).expect("it lives");
    let ran = live.wait(SOON);
    assert_snapshot!(shown(&ran), @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c exec sleep 600`)  in [DIR]
      permission  your own rights: nothing it does is denied
      limits      1 iteration, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✗ failed after [DURATION]: the agent ended with signal 9
    ! completed: the limit of 1 iteration is reached (1 iteration, 1 failed, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
}
