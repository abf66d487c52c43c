//! Gates with the real binary: their results, their failures, and that none of their processes is left.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;
use tachikoma_testkit::{Live, Scratch, await_until, processes_with};

use crate::autocommit_support::repository;
use crate::live_support::{await_nobody, seconds};
use crate::support::{
    CLAIMS, SOON, await_events, events, files, kill, loops, run, status, tachikoma,
};

/// Returns a `[[gate]]` table of the configuration.
pub fn gate(name: &str, command: &str, rest: &str) -> String {
    // The added condition makes the gate pass before the first iteration.
    let command = match (name, command.trim()) {
        ("", _) | (_, "") => command.to_owned(),
        _ => format!("[ \"$TACHIKOMA_ITERATION\" = 0 ] && exit; {command}"),
    };
    format!("[[gate]]\nname = '{name}'\ncommand = '''{command}'''\n{rest}\n")
}

/// An agent that saves the prompt of each iteration and claims completion.
const ASKS_AND_CLAIMS: &str =
    "cat > asked.$TACHIKOMA_ITERATION; echo '<promise>COMPLETE</promise>'";

/// Starts a loop with an agent that claims completion and a gate that sleeps, and returns when the gate runs.
#[track_caller]
pub fn judging(scratch: &Scratch, seconds: &str, rest: &str) -> Live {
    let command = format!("touch judging; sleep {seconds}");
    scratch.write("tachikoma.toml", gate("slow", &command, rest));
    let live = tachikoma(scratch).spawn(run(&[], CLAIMS));
    await_until("the gate runs", SOON, || {
        scratch.path().join("judging").exists() && !processes_with(seconds).is_empty()
    });
    live
}

fn results(scratch: &Scratch) -> Vec<Value> {
    let ran = events(scratch, "gates_ran").into_iter();
    let ran = ran.filter(|ran| ran["iteration"] != 0);
    let results = ran.filter_map(|ran| ran["results"].as_array().cloned());
    results.flatten().collect()
}

#[test]
fn ten_false_claims_are_rejected_and_a_proven_one_is_accepted() {
    let scratch = Scratch::new();
    let config = format!(
        "[stop_conditions]\nmax_test_failure_streak = 0\n{}",
        gate("proof", "echo no proof; test -e proof", "")
    );
    scratch.write("tachikoma.toml", config);
    let script = format!("[ $TACHIKOMA_ITERATION -gt 10 ] && touch proof; {ASKS_AND_CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "20"], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let refused = events(&scratch, "claim_refused");
    assert_eq!(refused.len(), 10);
    assert_eq!(status(&scratch)["iteration"], 11);
    for iteration in 2..=11 {
        let asked = fs::read_to_string(scratch.path().join(format!("asked.{iteration}"))).unwrap();
        assert!(asked.contains("the gate `proof` failed: exit 1"), "{asked}");
        assert!(asked.contains("~~~~\nno proof\n~~~~"), "{asked}");
        assert!(
            asked.ends_with("go"),
            "the reason is in the prompt: {asked}"
        );
    }
}

#[test]
fn all_gates_run_and_every_failure_is_named() {
    let scratch = Scratch::new();
    let told =
        "env | grep ^TACHIKOMA_ | sort > env.$TACHIKOMA_GATE_NAME; pwd -P > where; cat > input";
    let config = [
        gate("first", "echo one; exit 3", ""),
        gate("second", told, ""),
        gate("third", "kill -KILL $$", ""),
        gate("fourth", "./gate.sh", ""),
        gate("fifth", "no-such-program", ""),
        gate("sixth", "sleep 600", "timeout = '1s'"),
    ];
    scratch.write("tachikoma.toml", config.concat());
    scratch.write("gate.sh", "exit 0\n");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], CLAIMS));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let errors: Vec<Option<String>> = results(&scratch)
        .iter()
        .map(|result| result["error"].as_str().map(str::to_owned))
        .collect();
    let [first, second, third, fourth, fifth, sixth] = errors.as_slice() else {
        panic!("{errors:?}")
    };
    assert_eq!(first.as_deref(), Some("exit 3: one"));
    assert_eq!(*second, None);
    assert!(
        third.as_deref().unwrap().starts_with("signal 9"),
        "{third:?}"
    );
    let denied = fourth.as_deref().unwrap();
    assert!(
        denied.starts_with("exit 126: ") && denied.ends_with("Permission denied"),
        "{denied}"
    );
    let missing = fifth.as_deref().unwrap();
    assert!(
        missing.starts_with("exit 127: ") && missing.ends_with("not found"),
        "{missing}"
    );
    assert_eq!(sixth.as_deref(), Some("it did not end within 1s"));
    let reasons = events(&scratch, "claim_refused")[0]["reasons"].clone();
    assert_eq!(reasons.as_array().map(Vec::len), Some(5), "{reasons}");
    let text = |name: &str| fs::read_to_string(scratch.path().join(name)).unwrap();
    assert_eq!(text("input"), "", "stdin of a gate is empty");
    assert_eq!(text("where").trim_end(), scratch.path().to_str().unwrap());
    let told = text("env.second");
    for variable in [
        "TACHIKOMA_GATE_NAME=second",
        "TACHIKOMA_ITERATION=1",
        "TACHIKOMA_SESSION=1",
    ] {
        assert!(
            told.lines().any(|line| line == variable),
            "{variable}: {told}"
        );
    }
}

#[test]
fn gates_that_fail_in_every_iteration_end_the_loop_and_are_in_the_prompt() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        gate("lint", "echo bad style; exit 1", "when = 'iteration'"),
    );
    let script = "cat > asked.$TACHIKOMA_ITERATION";
    let ran = tachikoma(&scratch).run(run(&[], script));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains(
            "gates failed 3 times in a row (max_test_failure_streak = 3), the last time: `lint`"
        ),
        "{}",
        ran.snapshot()
    );
    let asked = fs::read_to_string(scratch.path().join("asked.2")).unwrap();
    assert!(asked.contains("~~~~\nbad style\n~~~~"), "{asked}");
    assert!(
        events(&scratch, "claim_refused").is_empty(),
        "the agent claims nothing"
    );
    let now = status(&scratch);
    assert_eq!(now["outcome"]["kind"], "condition");
    assert_eq!(now["completion"]["gates"][0]["passed"], false);
    assert_eq!(now["stats"]["test_failure_streak"], 3);
    let again = tachikoma(&scratch).run(run(&["--max-iterations", "4"], script));
    assert_eq!(
        again.code(),
        Some(3),
        "the next run starts its count at 0: {}",
        again.snapshot()
    );
}

#[test]
fn output_of_a_gate_is_bounded_everywhere() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        gate("loud", "seq 1000000 2000000; exit 1", ""),
    );
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], ASKS_AND_CLAIMS));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let output = results(&scratch)[0]["output"].as_str().unwrap().to_owned();
    assert!(output.len() < (8 << 10) + 64, "{}", output.len());
    assert!(
        output.ends_with("1999999\n2000000"),
        "the end of the output is kept"
    );
    let asked = fs::read_to_string(scratch.path().join("asked.2")).unwrap();
    assert!(asked.len() < (16 << 10) + 64, "{}", asked.len());
    assert!(asked.contains("2000000\n~~~~"));
    let kept = files(&loops(&scratch)[0].join("gates"));
    let names = kept
        .keys()
        .map(|path| path.file_name().unwrap().to_str().unwrap());
    // Transcripts are compressed in the background, so a name may end with `.zst`.
    let names: Vec<&str> = names.map(|name| name.trim_end_matches(".zst")).collect();
    assert_eq!(names, ["000001.1-loud.log", "000002.1-loud.log"]);
    assert!(kept.values().all(|bytes| bytes.len() < (4 << 20) + 64));
    let verified = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(verified.code(), Some(0), "{}", verified.snapshot());
    assert!(verified.stdout.contains("gates"), "{}", verified.snapshot());
    let purged = tachikoma(&scratch).run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(purged.code(), Some(0), "{}", purged.snapshot());
    assert!(!scratch.path().join(".ralph").exists());
}

#[test]
fn processes_that_a_gate_leaves_are_ended() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let command = format!("setsid sleep {seconds} & exit 0");
    scratch.write("tachikoma.toml", gate("forks", &command, ""));
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(processes_with(&seconds), [0_u32; 0]);
}

#[test]
fn a_stop_ends_running_gates_and_the_next_run_checks_the_claim() {
    for words in [&["stop"][..], &["stop", "--now"]] {
        let scratch = Scratch::new();
        let seconds = seconds();
        let live = judging(&scratch, &seconds, "");
        let shown = tachikoma(&scratch).run(["status"]);
        assert!(
            shown.stdout.contains("checking   gates: slow\n"),
            "{}",
            shown.snapshot()
        );
        let told = tachikoma(&scratch).run(words);
        assert_eq!(told.code(), Some(0), "{}", told.snapshot());
        assert_eq!(live.wait(SOON).code(), Some(5));
        assert_eq!(processes_with(&seconds), [0_u32; 0]);
        scratch.write("tachikoma.toml", gate("slow", "exit 0", ""));
        let ran = tachikoma(&scratch).run(run(&[], "touch worked"));
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        assert!(
            !scratch.path().join("worked").exists(),
            "no iteration was needed"
        );
        assert!(
            ran.stderr
                .contains("its claim of completion is checked first"),
            "{}",
            ran.snapshot()
        );
    }
}

#[test]
fn a_signal_ends_gates_that_ignore_it() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let command =
        format!("trap 'touch told' TERM; touch judging; while :; do sleep {seconds}; done");
    scratch.write("tachikoma.toml", gate("stubborn", &command, ""));
    let mut live = tachikoma(&scratch).spawn(run(&[], CLAIMS));
    await_until("the gate runs", SOON, || {
        scratch.path().join("judging").exists() && !processes_with(&seconds).is_empty()
    });
    live.signal(Signal::TERM);
    assert_eq!(live.wait(SOON).code(), Some(143));
    await_nobody(&seconds);
    assert!(
        scratch.path().join("told").exists(),
        "the gate got SIGTERM first"
    );
}

#[test]
fn pause_and_skip_act_on_running_gates() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let live = judging(&scratch, &seconds, "");
    assert_eq!(tachikoma(&scratch).run(["pause", "--now"]).code(), Some(0));
    await_events(&scratch, "paused", 1);
    await_nobody(&seconds);
    assert_eq!(tachikoma(&scratch).run(["resume"]).code(), Some(0));
    await_events(&scratch, "check_started", 2);
    assert_eq!(tachikoma(&scratch).run(["skip"]).code(), Some(0));
    await_events(&scratch, "check_started", 3);
    assert_eq!(tachikoma(&scratch).run(["stop", "--now"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    await_nobody(&seconds);
    assert_eq!(events(&scratch, "claim_refused").len(), 2);
}

#[test]
fn a_killed_runner_leaves_nothing_of_a_gate_and_the_next_one_runs_it_again() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let live = judging(&scratch, &seconds, "");
    kill(&scratch, live);
    await_nobody(&seconds);
    scratch.write("tachikoma.toml", gate("slow", "exit 0", ""));
    let ran = tachikoma(&scratch).run(run(&[], "touch worked"));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        ran.stderr
            .contains("its gates and stop scripts are run again"),
        "{}",
        ran.snapshot()
    );
    assert!(!scratch.path().join("worked").exists());
}

#[test]
fn killing_the_guard_of_gates_fails_only_the_running_gate() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let live = judging(&scratch, &seconds, "");
    // The processes are the shell of the gate and its child.
    let found = processes_with(&seconds);
    let above = found.iter().map(|process| parent_of(*process));
    let guard = above.into_iter().find(|above| !found.contains(above));
    let guard = guard.expect("nobody is its own guard");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(guard).unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    await_events(&scratch, "claim_refused", 1);
    assert_eq!(
        results(&scratch)[0]["error"],
        "its guard was killed, and it with the guard"
    );
    assert_eq!(tachikoma(&scratch).run(["stop", "--now"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    await_nobody(&seconds);
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.nth(1).unwrap().parse().unwrap()
}

#[test]
fn an_unsaved_loop_runs_gates() {
    let scratch = Scratch::new();
    let config = format!(
        "[state]\nenabled = false\n{}",
        gate("tests", "echo tested", "")
    );
    scratch.write("tachikoma.toml", config);
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("gate tests passed in"),
        "{}",
        ran.snapshot()
    );
}

#[test]
fn invalid_gates_are_refused_before_the_first_iteration() {
    for (config, what) in [
        (
            gate("", "true", ""),
            "`gate.name` of `true` must not be empty",
        ),
        (
            gate("a", " ", ""),
            "`gate.command` of `a` must not be empty",
        ),
        (
            gate("a", "true", "") + &gate("a", "false", ""),
            "`gate.name` is `a` twice",
        ),
        (
            "[stop_conditions]\ncustom_scripts = ['']\n".to_owned(),
            "`stop_conditions.custom_scripts` has an empty path",
        ),
    ] {
        let scratch = Scratch::new();
        scratch.write("tachikoma.toml", &config);
        let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
        assert_eq!(ran.code(), Some(2), "{config}: {}", ran.snapshot());
        assert!(ran.stderr.contains(what), "{}", ran.snapshot());
    }
}

#[test]
fn a_gate_can_read_the_status_but_not_command() {
    let scratch = Scratch::new();
    let bin = env!("CARGO_BIN_EXE_tachikoma");
    let command = format!("{bin} stop --now; {bin} done; {bin} note from a gate");
    scratch.write("tachikoma.toml", gate("tests", &command, ""));
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let output = results(&scratch)[0]["output"].as_str().unwrap().to_owned();
    assert!(
        output.contains("only the operator may ask this"),
        "{output}"
    );
    assert!(output.contains("no iteration is running"), "{output}");
    assert!(output.ends_with("noted"), "{output}");
}

#[test]
fn changes_of_a_gate_belong_to_the_loop() {
    let scratch = Scratch::with_git();
    scratch.write("lock", "1\n");
    scratch.write(".gitignore", "tachikoma.toml\n");
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "before the loop"]);
    let command = "echo $TACHIKOMA_ITERATION >> lock; test $TACHIKOMA_ITERATION = 2";
    scratch.write("tachikoma.toml", gate("updates", command, ""));
    let script = format!("echo $TACHIKOMA_ITERATION > work; {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    // The gate runs after the iteration and again at the end of the loop.
    for (commit, files) in [("HEAD~1", "lock\nwork"), ("HEAD", "lock")] {
        let committed = scratch.git(&["show", "--name-only", "--format=", commit]);
        assert_eq!(committed.trim(), files, "{}", ran.snapshot());
    }
    assert_eq!(scratch.git(&["status", "--porcelain"]), "");
}

#[test]
fn a_broken_gate_is_reported_before_the_first_iteration() {
    let scratch = repository(
        "[stop_conditions]\nmax_test_failure_streak = 1\n\
         [[gate]]\nname = 'broken'\ncommand = 'echo x >> made; no-such-program'\n",
    );
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], "echo 1 > work"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let seen = ran
        .stdout
        .find("before the first iteration: gate broken failed after");
    let begun = ran.stdout.find("━━ iteration 1 ━━");
    assert!(seen.is_some() && seen < begun, "{}", ran.snapshot());
    let baseline = || events(&scratch, "gates_ran");
    assert_eq!(baseline()[0]["iteration"], 0);
    // The loop commits files that the gate changed.
    assert_eq!(scratch.git(&["status", "--porcelain"]), "");
    assert_eq!(scratch.git(&["ls-files", "made"]).trim(), "made");
    let ran = tachikoma(&scratch).run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        baseline().len(),
        1,
        "a resumed loop already has its baseline"
    );
}
