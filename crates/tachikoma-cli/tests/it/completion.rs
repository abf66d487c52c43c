//! Completion with the real binary: who may claim it, and what prevents it.

use std::fs;

use serde_json::Value;
use tachikoma_testkit::{Scratch, await_until};

use crate::claude_support::{bash, claims, did, prompts, run_claude, says, scenario, stage};
use crate::live_support::{await_nobody, seconds};
use crate::support::{
    CLAIMS, SOON, await_events, events, kill, run, start_busy, status, tachikoma,
};

pub fn reasons(scratch: &Scratch) -> Vec<String> {
    let refused = events(scratch, "claim_refused").into_iter();
    let reasons = refused.filter_map(|event| event["reasons"].as_array().cloned());
    let words = reasons
        .flatten()
        .map(|reason| reason.as_str().unwrap().to_owned());
    words.collect()
}

pub fn script(scratch: &Scratch, name: &str, text: &str) {
    scratch.write_script(name, format!("#!/bin/sh\n{text}\n"));
}

#[test]
fn the_agent_claims_completion_from_inside_its_tree() {
    let scratch = Scratch::new();
    let script = "cd /; tachikoma done --reason 'all tests pass' > $TACHIKOMA_DIR/answer";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let answer = fs::read_to_string(scratch.path().join("answer")).unwrap();
    assert_eq!(
        answer,
        "end your turn; the claim is checked after iteration 1\n"
    );
    assert_eq!(events(&scratch, "claimed")[0]["reason"], "all tests pass");
}

#[test]
fn done_without_an_iteration_is_refused() {
    let scratch = Scratch::new();
    let nobody = tachikoma(&scratch).run(["done"]);
    assert_eq!(nobody.code(), Some(1), "{}", nobody.snapshot());
    assert!(
        nobody.stderr.contains("no loop runs in"),
        "{}",
        nobody.snapshot()
    );
    let live = tachikoma(&scratch).spawn(run(&["--delay", "1h"], "true"));
    await_events(&scratch, "wait_started", 1);
    let waiting = tachikoma(&scratch).run(["done"]);
    assert_eq!(waiting.code(), Some(1), "{}", waiting.snapshot());
    assert!(
        waiting.stderr.contains("no iteration is running"),
        "{}",
        waiting.snapshot()
    );
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    let long = tachikoma(&scratch).run(["done", "--reason", &"x".repeat(5000)]);
    assert_eq!(long.code(), Some(2), "{}", long.snapshot());
}

#[test]
fn the_operator_can_claim_completion_while_the_agent_works() {
    let scratch = Scratch::new();
    let live = tachikoma(&scratch).spawn(run(&[], "while [ ! -e go ]; do sleep 0.01; done"));
    await_events(&scratch, "agent_launched", 1);
    assert_eq!(tachikoma(&scratch).run(["done"]).code(), Some(0));
    assert_eq!(status(&scratch)["completion"]["claimed"], true);
    scratch.write("go", "");
    assert_eq!(live.wait(SOON).code(), Some(0));
    assert_eq!(
        status(&scratch)["completion"]["claimed"],
        false,
        "the claim was checked"
    );
}

#[test]
fn exit_0_is_not_a_claim_and_a_claim_without_work_is_rejected() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "3"], "exit 0"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let idle = stage(
        &scenario([claims(1_000), claims(2_000), did(), claims(3_000)]),
        "",
    );
    let ran = run_claude(&idle, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(status(&idle)["iteration"], 3);
    let nothing =
        "nothing was done yet: no file was changed, no commit made and no tool call succeeded";
    assert_eq!(reasons(&idle), [nothing, nothing]);
}

#[test]
fn a_question_of_the_agent_is_not_a_claim() {
    let turns = [
        did(),
        says("Shall I go on with the parser? (y/n)", 2_000),
        claims(3_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["iteration"], 2);
}

#[test]
fn text_that_mentions_the_promise_is_not_a_claim() {
    let words = "I am NOT outputting <promise>COMPLETE</promise> yet.";
    let turns = [
        did(),
        says(words, 2_000),
        says("not yet:\n<promise>COMPLETE</promise>", 3_000),
        claims(4_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        status(&scratch)["iteration"],
        3,
        "the promise on its own line is a claim"
    );
}

#[test]
fn a_claim_before_a_crash_does_not_end_the_next_run() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    assert_eq!(tachikoma(&scratch).run(["done"]).code(), Some(0));
    kill(&scratch, live);
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], "true"));
    assert_eq!(
        ran.code(),
        Some(3),
        "the claim was dropped with its attempt: {}",
        ran.snapshot()
    );
}

#[test]
fn dates_are_not_checkboxes_and_an_open_checkbox_rejects_a_claim() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nobjectives = 'plan.md'\n",
    );
    scratch.write("plan.md", "- [2024-01-02] begun\n- [x] a\n- [ ] b\n");
    let script = format!("[ $TACHIKOMA_ITERATION = 3 ] && echo '- [x] b' > plan.md; {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "9"], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(reasons(&scratch), ["1 of 2 objectives are open: b"; 2]);
    let shown = tachikoma(&scratch).run(["status"]);
    assert!(
        shown.stdout.contains("objectives 1 of 1 ticked\n"),
        "{}",
        shown.snapshot()
    );
}

#[test]
fn repeated_claims_do_not_end_a_loop_with_open_objectives() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nobjectives = 'plan.md'\n",
    );
    scratch.write("plan.md", "- [ ] a\n");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "6"], CLAIMS));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(reasons(&scratch).len(), 6);
}

#[test]
fn a_stop_script_ends_a_loop_without_a_claim() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\ncustom_scripts = ['./greeted.sh']\n",
    );
    script(&scratch, "greeted.sh", "grep -q hi said && exit 10; exit 0");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "9"], "echo hi > said"));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["iteration"], 1);
}

#[test]
fn the_loop_continues_until_all_objectives_are_ticked_and_all_gates_pass() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nobjectives = 'plan.md'\nmax_test_failure_streak = 0\n\
         [[gate]]\nname = 'features'\ncommand = 'test $(cat done) -ge 4'\n",
    );
    scratch.write("plan.md", "- [ ] one\n- [ ] two\n");
    let script = "echo $TACHIKOMA_ITERATION > done; [ $TACHIKOMA_ITERATION = 2 ] && printf -- '- [x] one\\n- [x] two\\n' > plan.md; true";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "9"], script));
    assert_eq!(
        ran.code(),
        Some(0),
        "only the objectives file claims completion: {}",
        ran.snapshot()
    );
    assert_eq!(status(&scratch)["iteration"], 4);
    assert_eq!(reasons(&scratch), ["the gate `features` failed: exit 1"; 2]);
}

#[test]
fn a_promise_in_the_last_bytes_of_the_output_is_recognized() {
    for _ in 0..5 {
        let scratch = Scratch::new();
        let script =
            "echo done > work; seq 1 20000; printf '<promise>COMPLETE</promise>'; kill -KILL $$";
        let with_exit = script.replace("; kill -KILL $$", "");
        let ran = tachikoma(&scratch).run(run(&["--quiet", "--max-iterations", "1"], &with_exit));
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    }
}

#[test]
fn denied_tool_calls_are_not_work_and_are_explained_at_once_and_at_the_end() {
    let denied = || bash("cargo test --all", 1_000).denied();
    let scratch = stage(
        &scenario([denied(), denied(), denied(), claims(2_000)]),
        "[agents.claude]\nallow = [\"make\"]\n",
    );
    let ran = run_claude(&scratch, &["--max-iterations", "1"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let nothing =
        "nothing was done yet: no file was changed, no commit made and no tool call succeeded";
    assert_eq!(reasons(&scratch), [nothing]);
    let about: Vec<&str> = ran.stdout.lines().chain(ran.stderr.lines()).collect();
    let about = about
        .into_iter()
        .filter(|line| line.contains("denied: ") || line.contains("to allow"))
        .filter(|line| !line.starts_with("tachikoma "));
    insta::assert_snapshot!(about.collect::<Vec<_>>().join("\n"), @r#"
      ✗ denied: Bash `cargo test --all`; to allow it, set in tachikoma.toml: agents.claude.allow = ["make", "cargo test"]
      ✗ denied: Bash `cargo test --all` (2 times); to allow it, set in tachikoma.toml: agents.claude.allow = ["make", "cargo test"]
    note: the loop ended without progress after tool calls were denied: Bash `cargo test --all` (3 times)
      to allow them, set in tachikoma.toml: agents.claude.allow = ["make", "cargo test"]
    "#);
}

#[test]
fn required_claims_must_be_in_consecutive_iterations() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "[stop_conditions]\nconfirmations = 2\n");
    let script = format!("[ $TACHIKOMA_ITERATION = 2 ] || {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "9"], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["iteration"], 4);
    // The first of two required claims is not rejected.
    assert!(
        ran.stdout
            .contains("completion has to be confirmed (the agent's promise): this is claim 1 of 2"),
        "{}",
        ran.snapshot()
    );
    assert!(!ran.stdout.contains("not believed"), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains(
            "<promise>COMPLETE</promise> on a line of its own or `tachikoma done`, 2 times in a row, ends the loop"
        ),
        "{}",
        ran.snapshot()
    );
}

#[test]
fn a_missing_objectives_file_causes_one_warning_and_rejects_claims() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nobjectives = 'plan.md'\n",
    );
    scratch.write("plan.md", "- [ ] a\n");
    let script = format!("rm -f plan.md; {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "3"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(events(&scratch, "warned").len(), 1, "{}", ran.snapshot());
    let reasons = reasons(&scratch);
    assert_eq!(reasons.len(), 3);
    assert!(
        reasons[0].starts_with("the objectives cannot be read: read ")
            && reasons[0].contains("No such file"),
        "{reasons:?}"
    );
    // A binary file or a directory neither blocks nor ends the loop.
    scratch.write("plan.md", vec![b'x'; 2 << 20]);
    let script = format!("rm -f plan.md; [ $TACHIKOMA_ITERATION = 5 ] && mkfifo plan.md; {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "5"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn stop_scripts_get_the_status_and_their_exit_codes_are_obeyed() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\ncustom_scripts = ['a.sh', './b.sh', 'odd.sh', 'missing.sh', 'plain.txt']\n",
    );
    // Each script waits for the other one, so they must run in parallel.
    let waits = |own: &str, other: &str| {
        format!("touch {own}; until [ -e {other} ]; do sleep 0.01; done; cat > told.{own}; ")
    };
    script(&scratch, "a.sh", &(waits("a", "b") + "rm -f b; exit 0"));
    script(
        &scratch,
        "b.sh",
        &(waits("b", "a")
            + "[ $TACHIKOMA_ITERATION = 2 ] && { echo enough; exit 11; }; rm -f a; exit 0"),
    );
    script(&scratch, "odd.sh", "echo what; exit 3");
    scratch.write("plain.txt", "exit 10\n");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "9"], "rm -f a b"));
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    assert!(
        ran.stdout
            .contains("the stop script `b.sh` ended the loop: enough"),
        "{}",
        ran.snapshot()
    );
    let told: Value =
        serde_json::from_slice(&fs::read(scratch.path().join("told.a")).unwrap()).unwrap();
    assert_eq!(
        (&told["iteration"], &told["state"], &told["claimed"]),
        (&2.into(), &"running".into(), &false.into())
    );
    assert_eq!(told["working_dir"], scratch.path().to_str().unwrap());
    let warned: Vec<String> = events(&scratch, "warned")
        .iter()
        .map(|event| event["warning"].as_str().unwrap().to_owned())
        .collect();
    // Each message is printed once, although both iterations cause it.
    assert_eq!(warned.len(), 3, "{warned:?}");
    assert!(
        warned[0].starts_with("the stop script `missing.sh` cannot be asked: "),
        "{warned:?}"
    );
    assert!(
        warned[1].starts_with("the stop script `plain.txt` cannot be asked: "),
        "{warned:?}"
    );
    assert_eq!(
        warned[2],
        "the stop script `odd.sh` gave no usable answer: exit 3: what"
    );
}

#[test]
fn a_stop_ends_scripts_that_hang() {
    let scratch = Scratch::new();
    let seconds = seconds();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\ncustom_scripts = ['a.sh', 'b.sh']\n",
    );
    for name in ["a.sh", "b.sh"] {
        script(&scratch, name, &format!("exec sleep {seconds}"));
    }
    let live = tachikoma(&scratch).spawn(run(&[], "true"));
    await_until("both hang", SOON, || {
        tachikoma_testkit::processes_with(&seconds).len() == 2
    });
    assert_eq!(tachikoma(&scratch).run(["stop", "--now"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
    await_nobody(&seconds);
}

#[test]
fn reasons_for_rejecting_a_claim_are_in_the_next_prompt_of_every_kind_of_session() {
    for flags in [
        &["--max-iterations", "9"][..],
        &["--fresh-session", "--max-iterations", "9"],
    ] {
        let gate = "\n[[gate]]\nname = 'tests'\ncommand = 'echo two fail; test -e proof'\n";
        let proof = bash("touch proof", 3_000);
        let turns = [did(), claims(2_000), proof, claims(4_000)];
        let scratch = stage(&scenario(turns), gate);
        let ran = run_claude(&scratch, flags);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        let asked = prompts(&scratch);
        assert_eq!(asked[0].1, "the task\n");
        let second = &asked[1].1;
        assert!(
            second.starts_with("# Why the work is not accepted as complete\n"),
            "{second}"
        );
        assert!(
            second.contains("~~~~\ntwo fail\n~~~~") && second.ends_with("the task\n"),
            "{second}"
        );
    }
}
