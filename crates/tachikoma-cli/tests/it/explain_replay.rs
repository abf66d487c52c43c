//! Tests of `tachikoma explain` and `tachikoma replay`. Both commands only read.

use std::fs::{self, OpenOptions};
use std::io::Write as _;

use insta::assert_snapshot;
use serde_json::Value;
use tachikoma_testkit::{Scratch, await_until, mask};

use crate::claude_support::{bash, claims, claude, run_claude, says, scenario, stage};
use crate::support::{
    BUSY, CLAIMS, SOON, await_events, files, journal, kill, loops, run, shown, start_busy, status,
    tachikoma, with_history,
};

/// An agent that fails in its second iteration and claims completion in its fourth.
const UPS_AND_DOWNS: &str = "case $TACHIKOMA_ITERATION in 2) exit 7;; 4) echo done >> work; echo '<promise>COMPLETE</promise>';; esac";

/// Returns the output of `replay --json`, and checks that no file has changed.
#[track_caller]
pub fn replay(scratch: &Scratch, flags: &[&str]) -> Value {
    let before = files(&scratch.path());
    let words = ["replay", "--json"].iter().chain(flags);
    let ran = tachikoma(scratch).run(words);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(files(&scratch.path()), before, "no file is written");
    ran.json()
}

/// Checks that a replay with the recorded settings reproduces every record.
#[track_caller]
pub fn comes_out_the_same(scratch: &Scratch) {
    let found = replay(scratch, &[]);
    assert_eq!(found["unexplained"], 0, "{found:#}");
    assert_eq!(found["differences"], Value::Array(Vec::new()), "{found:#}");
    assert_eq!(found["recorded"], found["replayed"], "{found:#}");
    assert_eq!(found["without_inputs"], 0, "{found:#}");
    assert_eq!(found["notes"], Value::Array(Vec::new()), "{found:#}");
}

/// Returns a loop with a session that reaches the redline twice.
fn filled_twice(more: &str) -> Scratch {
    let turns = [
        bash("true", 30_000),
        says("half", 100_000),
        bash("true", 145_000).until_told(),
        says("full", 171_000),
        bash("true", 15_000),
        says("again", 172_000),
        claims(20_000),
    ];
    let scratch = stage(&scenario(turns), more);
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    scratch
}

#[test]
fn replay_reproduces_a_loop_with_failures_and_waits() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--delay", "20ms"], UPS_AND_DOWNS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    comes_out_the_same(&scratch);
}

#[test]
fn replay_reproduces_reboots_hand_offs_and_hooks() {
    let hooks = "[[hook]]\non = 'before_reboot'\ncommand = 'true'\n[[hook]]\non = 'after_reboot'\ncommand = 'exit 3'\n";
    for more in ["", hooks, "[reboot.triggers]\nafter_iterations = 1\n"] {
        comes_out_the_same(&filled_twice(more));
    }
}

#[test]
fn replay_reproduces_commands_of_the_operator() {
    let scratch = Scratch::new();
    let script = format!("[ $TACHIKOMA_ITERATION -lt 5 ] && {BUSY}; {CLAIMS}");
    let live = tachikoma(&scratch).spawn(run(&[], &script));
    for (number, command) in [(1, "skip"), (2, "reboot"), (3, "pause")] {
        await_events(&scratch, "agent_launched", number);
        let words: &[&str] = match command {
            "pause" => &["pause", "--now"],
            command => &[command],
        };
        assert_eq!(tachikoma(&scratch).run(words).code(), Some(0), "{command}");
    }
    await_events(&scratch, "paused", 1);
    assert_eq!(tachikoma(&scratch).run(["resume"]).code(), Some(0));
    await_events(&scratch, "agent_launched", 4);
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    comes_out_the_same(&scratch);
    let ran = tachikoma(&scratch).run(["run", "--quiet"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    comes_out_the_same(&scratch);
}

#[test]
fn replay_reproduces_killed_runners_and_changed_settings() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &["--max-iterations", "7"]);
    kill(&scratch, live);
    comes_out_the_same(&scratch);
    let words = ["run", "--quiet", "--delay", "10ms", "--max-iterations", "3"];
    let ran = tachikoma(&scratch).run(words.iter().chain(&["--", "true"]));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    comes_out_the_same(&scratch);
}

/// What users of other loops could not find out: "what task, what step is it stuck at, what changed, why did it continue instead of stop".
#[test]
fn an_iteration_is_explained_with_every_decision_and_its_inputs() {
    let scratch = filled_twice("");
    let explain = |words: &[&str]| {
        let before = files(&scratch.path());
        let ran = tachikoma(&scratch).run(["explain"].iter().chain(words));
        assert_eq!(files(&scratch.path()), before, "no file is written");
        shown(&ran)
    };
    assert_snapshot!(explain(&["2"]), @"
    exit: 0
    --- stdout
    iteration 2 of [LOOP], session 1
    [TIME]    iteration 2, attempt 1, session 1: the running agent is prompted
    [TIME]    context 72.5 % (145 004 of 200 000 tokens), redline 85 %: below
    [TIME] => the agent is asked to finish: context 72.5 % (145 004 of 200 000 tokens), context.warning_percent = 70
    [TIME]    context 85.5 % (171 004 of 200 000 tokens), redline 85 %: reached
    [TIME] => a reboot is due and allowed: context 85.5 % (171 004 of 200 000 tokens), redline 85 %: reached; no earlier reboot
    [TIME] => the turn is ended for a reboot: context 85.5 % (171 004 of 200 000 tokens), redline 85 %: reached; a tool call or an answer in flight may end first (session.graceful_timeout) (until [TIME])
    [TIME]    context 85.5 % (171 010 of 200 000 tokens), redline 85 %: reached
    [TIME]    the agent reported success; it cost $0.0950
    [TIME]    1 tool call (Bash 1), 4 readings
    [TIME]    succeeded after [DURATION]
    [TIME] => the changes of the loop are committed, as succeeded (until [TIME])
    [TIME]    no progress, the 2nd iteration in a row
    [TIME] => no stop condition is met: 0 of 10 iterations failed in a row (stop_conditions.max_consecutive_failures); it ran [DURATION] of [DURATION] (stop_conditions.max_duration); 2 of 9 iterations (max_iterations); no claim of completion
    [TIME] => session 1 is rebooted: context 85.5 % (171 010 of 200 000 tokens), redline 85 %: reached
    [TIME] => the old session is asked for its hand-off (reboot.preserve_summary) (until [TIME])
    [TIME]    context 86 % (172 004 of 200 000 tokens), redline 85 %: reached
    [TIME]    context 86 % (172 010 of 200 000 tokens), redline 85 %: reached
    [TIME]    the agent reported success; it cost $0.0517
    [TIME]    it wrote a hand-off of 40 bytes
    [TIME]    the agent's process ended between two turns: exit 0
    [TIME] => the changes of the loop are committed, as checkpoint (until [TIME])
    [TIME]    agent claude is up (pid [PID])
    [TIME]    session 2 began
    [TIME]    session 2 took over after [DURATION]
    [TIME] => continued with iteration 3
    --- stderr
    ");
    assert_snapshot!(explain(&[]), @"
    exit: 0
    --- stdout
    [TIME] the loop ended: the work is complete: completion is claimed by the agent's promise; no gate is configured

    iteration 4 of [LOOP], session 3
    [TIME]    iteration 4, attempt 1, session 3: the running agent is prompted
    [TIME]    context 10 % (20 004 of 200 000 tokens), redline 85 %: below
    [TIME]    the reboot helped: the context is at 10 %
    [TIME]    context 10 % (20 010 of 200 000 tokens), redline 85 %: below
    [TIME]    the agent reported success, and claims that the work is complete; it cost $0.0061
    [TIME]    no tool calls, 2 readings
    [TIME]    succeeded after [DURATION]; it claims that the work is complete
    [TIME] => the changes of the loop are committed, as succeeded (until [TIME])
    [TIME]    no progress, the 4th iteration in a row
    [TIME] => the changes of the loop are committed, as end (until [TIME])
    [TIME]    the agent's process ended between two turns: exit 0
    --- stderr
    ");
    let ran = tachikoma(&scratch).run(["explain", "2", "--json"]);
    let entries: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let decision = |part: &str| {
        let found = entries.iter().find(|entry| {
            entry["kind"] == "decision" && entry["words"].as_str().unwrap().contains(part)
        });
        found.unwrap_or_else(|| panic!("{part}: {}", ran.stdout))
    };
    let wanted = decision("a reboot is due");
    assert_eq!(wanted["iteration"], 2);
    assert_eq!(wanted["inputs"]["context_tokens"], 171_004);
    assert_eq!(wanted["inputs"]["context_redline_tokens"], 170_000);
    let conditions = &decision("no stop condition")["inputs"]["stop_conditions"];
    let mut conditions = conditions.as_array().expect("a list").iter();
    let iterations = conditions.find(|it| it["key"] == "max_iterations");
    assert_eq!(iterations.expect("it is set")["limit"], "9");
}

#[test]
fn replay_applies_another_redline() {
    let scratch = filled_twice("");
    let found = replay(&scratch, &["--set", "context_redline_percent=60"]);
    let first = &found["differences"][0];
    assert_eq!(first["iteration"], 2, "{found:#}");
    let because = first["by"].as_str().unwrap();
    assert!(because.contains("redline 60 %: reached"), "{found:#}");
    let ran = tachikoma(&scratch).run([
        "replay",
        "--set",
        "reboot.enabled=false",
        "--set",
        "iteration_delay=30s",
    ]);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    with reboot.enabled=false, iteration_delay=30s:

    iteration 1
      recorded: continued
      replayed: waited [DURATION] (delay)
      because:  waits: iteration_delay is [DURATION]

    The replay stops at record 18: from here on the recorded inputs no longer apply.

                       recorded       replayed  (replayed: up to the difference)
    iterations                4              1
    reboots                   2              0
    cost                $0.3001        $0.0392
    tokens               997090         130020
    waited                [DURATION]          [DURATION]
    recorded:    the work is complete
    replayed:    not known
    --- stderr
    ");
    let ran = tachikoma(&scratch).run(["replay", "--set", "max_iterations=1"]);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    with max_iterations=1:

    iteration 1
      recorded: continued
      replayed: the loop ended: the limit of 1 iteration is reached
      because:  1 of 1 iterations (max_iterations)

    The replay stops at record 18: from here on the recorded inputs no longer apply.

                       recorded       replayed  (replayed: up to the difference)
    iterations                4              1
    reboots                   2              0
    cost                $0.3001        $0.0392
    tokens               997090         130020
    waited                [DURATION]          [DURATION]
    recorded:    the work is complete
    replayed:    the limit of 1 iteration is reached
    --- stderr
    ");
}

#[test]
fn replay_that_continues_after_the_recorded_end_has_no_outcome() {
    let scratch = with_history();
    let found = replay(&scratch, &["--set", "max_iterations=0"]);
    assert_eq!(found["goes_on"], true, "{found:#}");
    assert_eq!(found["replayed"]["outcome"], Value::Null);
}

#[test]
fn replay_refuses_an_invalid_setting_and_names_one_without_effect() {
    let scratch = with_history();
    let said = |set: &str| shown(&tachikoma(&scratch).run(["replay", "--set", set]));
    assert_snapshot!(said("max_iteration=3"), @"
    exit: 2
    --- stdout
    --- stderr
    error: --set: unknown key `max_iteration`
      hint: did you mean `max_iterations`?
    ");
    assert_snapshot!(said("max_iterations=many"), @"
    exit: 2
    --- stdout
    --- stderr
    error: --set: `max_iterations` must be a whole number, not a string
    ");
    assert_snapshot!(said("max_iterations"), @"
    exit: 2
    --- stdout
    --- stderr
    error: --set max_iterations: it must be KEY=VALUE
    hint: such as `--set context_redline_percent=60`; `tachikoma config show` lists the keys
    ");
    assert_snapshot!(said("context.warning_percent=120"), @"
    exit: 2
    --- stdout
    --- stderr
    error: --set: `context.warning_percent` must be a number from 0 to 100, not 120
    ");
    assert_snapshot!(said("reboot.triggers.on_patterns=[\"done\"]"), @r#"
    exit: 0
    --- stdout
    with reboot.triggers.on_patterns=["done"] every decision is the same

                       recorded       replayed
    iterations                1              1
    reboots                   0              0
    cost                $0.0000        $0.0000
    tokens                    0              0
    waited                [DURATION]          [DURATION]
    recorded:    the limit of 1 iteration is reached
    replayed:    the limit of 1 iteration is reached
    --- stderr
    note: `reboot.triggers.on_patterns` changes nothing here: it has this value already, or it concerns facts that the journal does not have
    "#);
}

#[test]
fn explain_reads_a_running_loop_without_its_lock() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let ran = tachikoma(&scratch).run(["explain"]);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    iteration 1 of [LOOP], session 1
    [TIME]    iteration 1, attempt 1, session 1: the agent is launched
    [TIME]    agent command is up (pid [PID])
    --- stderr
    ");
    let found = tachikoma(&scratch).run(["replay", "--json"]).json();
    assert_eq!(found["unexplained"], 0, "{found:#}");
    kill(&scratch, live);
    let ran = tachikoma(&scratch).run(["explain"]);
    let told = mask(&ran.stderr);
    assert_snapshot!(told, @"
    note: the journal ends with record 5 ([TIME]), in the middle of iteration 1, and the loop is not running: its runner was killed, or the machine went down; `tachikoma run` continues it
    ");
}

#[test]
fn explain_reads_a_damaged_journal_up_to_the_damage() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--quiet"], UPS_AND_DOWNS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let path = journal(&scratch);
    let whole = fs::read_to_string(&path).unwrap();
    let mut cut = OpenOptions::new().append(true).open(&path).unwrap();
    cut.write_all(br#"{"seq":99,"time":"20"#).unwrap();
    let both = || {
        let explain = tachikoma(&scratch).run(["explain", "2"]);
        let replay = tachikoma(&scratch).run(["replay"]);
        assert!(
            explain.stdout.contains("iteration 2"),
            "{}",
            explain.snapshot()
        );
        assert_eq!(replay.code(), Some(0), "{}", replay.snapshot());
        format!("{}{}", mask(&explain.stderr), mask(&replay.stderr))
            .replace(&scratch.path().display().to_string(), "[DIR]")
    };
    assert_snapshot!(both(), @"
    note: the last line of the journal is incomplete: its runner died while writing it, and the record was never used
    note: the last line of the journal is incomplete: its runner died while writing it, and the record was never used
    ");
    // The damage is in a record in the middle of the journal.
    let at = whole.rfind("\"iteration_failed\"").unwrap();
    let mut hurt = whole.clone().into_bytes();
    hurt[at + 1] = b'I';
    fs::write(&path, &hurt).unwrap();
    assert_snapshot!(both(), @"
    note: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 11: its checksum does not match; the rest of that file is left out
    note: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 11: its checksum does not match; the rest of that file is left out
    ");
    // One record is removed from the journal.
    let mut lines: Vec<&str> = whole.lines().collect();
    lines.remove(lines.len() - 4);
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    assert_snapshot!(both(), @"
    note: record 23 is missing before record 24; the rest of that file is left out
    note: record 23 is missing before record 24; the rest of that file is left out
    ");
}

#[test]
fn explain_finds_an_archived_loop_by_id() {
    let scratch = with_history();
    let old = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    let ran = tachikoma(&scratch).run(run(&["--quiet", "--new"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(loops(&scratch).len(), 2);
    for command in ["explain", "replay"] {
        let ran = tachikoma(&scratch).run([command, "--loop", &old]);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        assert!(
            ran.stdout.contains("limit of 1 iteration"),
            "{}",
            ran.stdout
        );
        let ran = tachikoma(&scratch).run([command]);
        assert!(
            ran.stdout.contains("the work is complete"),
            "{}",
            ran.stdout
        );
    }
    let tool = tachikoma(&scratch);
    assert_snapshot!(shown(&tool.run(["explain", "--loop", "mine"])), @"
    exit: 2
    --- stdout
    --- stderr
    error: --loop: `mine` is not a loop id (`loop_` and a UUID)
    hint: `.ralph/loops/` lists the stored loops; without `--loop` the current one is used
    ");
    let other = "loop_00000000-0000-0000-0000-000000000001";
    assert_snapshot!(shown(&tool.run(["replay", "--loop", other])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop [LOOP] in [DIR]
    hint: `.ralph/loops/` lists the stored loops; without `--loop` the current one is used
    ");
    assert_snapshot!(shown(&tool.run(["explain", "7"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: loop [LOOP] has no iteration 7
    hint: the last one is 1
    ");
    let nothing = Scratch::new();
    assert_snapshot!(shown(&tachikoma(&nothing).run(["explain"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop in [DIR]
    hint: `tachikoma run` starts one
    ");
}

#[test]
fn replay_handles_fresh_sessions_and_explain_refuses_iteration_0() {
    let turns = [says("a", 30_000)];
    let scratch = stage(&scenario(turns), "");
    let live = claude(&scratch).spawn(["run", "--max-iterations", "1"]);
    await_until("its end", SOON, || !status(&scratch)["outcome"].is_null());
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let found = replay(&scratch, &["--set", "session.fresh_each_iteration=true"]);
    assert_eq!(found["recorded"]["iterations"], 1, "{found:#}");
    let ran = tachikoma(&scratch).run(["explain", "0"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
}

#[test]
fn replay_refuses_a_value_with_unclosed_quotes() {
    let scratch = Scratch::new();
    for broken in ["max_iterations=[1", "agent.name=\"demo", "agent={name"] {
        let ran = tachikoma(&scratch).run(["replay", "--set", broken]);
        assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
        let said = format!("--set {broken}: the value is not valid TOML");
        assert!(ran.stderr.contains(&said), "{}", ran.snapshot());
    }
}

#[test]
fn replay_ignores_settings_without_effect_and_names_a_question_to_the_operator() {
    let scratch = filled_twice("");
    for setting in ["git.auto_commit=false", "agent.name=demo"] {
        let ran = tachikoma(&scratch).run(["replay", "--set", setting]);
        let shown = ran.snapshot();
        assert!(shown.contains("has no effect here"), "{shown}");
        assert!(shown.contains("every decision is the same"), "{shown}");
    }
    let found = replay(&scratch, &["--set", "attended_mode=true"]);
    assert_eq!(
        found["differences"][0]["by"], "the operator is asked first",
        "{found:#}"
    );
}
