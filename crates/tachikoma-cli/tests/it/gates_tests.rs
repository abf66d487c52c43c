//! Test results of gates: read from reports or output, stored between runs, and reported to the agent.

use std::fs;

use serde_json::{Value, json};
use tachikoma_testkit::Scratch;

use crate::support::{events, loops, run, status, tachikoma};

/// Returns a loop with one gate that runs after every iteration.
fn gated(command: &str, rest: &str) -> Scratch {
    let scratch = Scratch::new();
    let config = format!(
        "[stop_conditions]\nmax_test_failure_streak = 0\n\
         [[gate]]\nname = 'tests'\nwhen = 'iteration'\ncommand = '''{command}'''\n{rest}\n"
    );
    scratch.write("tachikoma.toml", config);
    scratch
}

/// A gate that prints the file `tap.N` in iteration N, and fails if it has a failed test.
const TAP: &str = "cat tap.$TACHIKOMA_ITERATION; ! grep -q ^not tap.$TACHIKOMA_ITERATION";

#[track_caller]
fn iterate(scratch: &Scratch, iterations: u32, script: &str) {
    let limit = iterations.to_string();
    let ran = tachikoma(scratch).run(run(&["--max-iterations", &limit], script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

fn warnings(scratch: &Scratch) -> Vec<String> {
    let warned = events(scratch, "warned");
    let text = |event: &Value| event["warning"].as_str().map(str::to_owned);
    warned.iter().filter_map(text).collect()
}

#[test]
fn changed_tests_are_recorded_and_in_the_next_prompt() {
    let scratch = gated(TAP, "");
    scratch.write("tap.1", "1..3\nok 1 - a\nnot ok 2 - b\nok 3 - c # SKIP\n");
    scratch.write("tap.2", "1..3\nnot ok 1 - a\nok 2 - b\nok 3 - d\n");
    scratch.write("tap.3", "1..3\nok 1 - a\nok 2 - b\nok 3 - d\n");
    iterate(&scratch, 3, "cat > asked.$TACHIKOMA_ITERATION");
    let runs = events(&scratch, "tests_ran");
    assert_eq!(runs.len(), 3);
    let counts: Vec<_> = runs
        .iter()
        .map(|run| (&run["passed"], &run["failed"], &run["skipped"]))
        .collect();
    assert_eq!(counts[0], (&json!(1), &json!(1), &json!(1)));
    assert_eq!(counts[2], (&json!(3), &json!(0), &json!(0)));
    assert_eq!(runs[0]["failing"], json!(["b"]));
    assert_eq!(runs[1]["newly_failing"], json!(["a"]));
    assert_eq!(runs[1]["fixed"], json!(["b"]));
    assert_eq!(
        runs[1]["newly_passing"], 2,
        "test b passes again, and d is new"
    );
    let asked = scratch.read("asked.2");
    assert!(
        asked.contains("## Failing tests (1 of 2, after iteration 1)\n\n- b\n"),
        "{asked}"
    );
    let asked = scratch.read("asked.3");
    assert!(asked.contains("- a (passed before)\n"), "{asked}");
    let known = status(&scratch);
    assert_eq!(known["tests"]["passed"], 3);
    let shown = tachikoma(&scratch).run(["status"]).stdout;
    assert!(
        shown.contains("tests      3 passed, 0 failed; fixed: a; at iteration 3"),
        "{shown}"
    );
    let state: Value = serde_json::from_str(&scratch.read(".ralph/state.json")).unwrap();
    assert_eq!(state["tests"]["passing"], json!(["a", "b", "d"]));
    assert_eq!(state["tests"]["recently_fixed"], json!(["b", "a"]));
    let handed = tachikoma(&scratch).run(["checkpoint", "show", "--now"]);
    assert_eq!(handed.code(), Some(0), "{}", handed.snapshot());
    assert!(handed.stdout.contains("# Hand-off"), "{}", handed.stdout);
    assert!(
        !handed.stdout.contains("Failing tests"),
        "{}",
        handed.stdout
    );
}

#[test]
fn a_newly_passing_test_is_progress() {
    let scratch = gated(
        "cat ../tap.$TACHIKOMA_ITERATION; ! grep -q ^not ../tap.$TACHIKOMA_ITERATION",
        "",
    );
    let around = scratch.path().parent().unwrap().to_owned();
    fs::write(around.join("tap.1"), "1..1\nnot ok 1 - a\n").unwrap();
    fs::write(around.join("tap.2"), "1..1\nok 1 - a\n").unwrap();
    fs::write(around.join("tap.3"), "1..1\nok 1 - a\n").unwrap();
    iterate(&scratch, 3, "true");
    let measured = events(&scratch, "progress_measured");
    let scores: Vec<_> = measured
        .iter()
        .map(|event| event["score"].as_u64().unwrap_or(0))
        .collect();
    assert_eq!(scores, [0, 5, 0]);
    // The result of the test changed although no file did.
    assert_eq!(events(&scratch, "tests_ran")[1]["flaky"], json!(["a"]));
}

#[test]
fn only_a_report_of_the_current_run_is_read() {
    let write =
        "[ $TACHIKOMA_ITERATION = 2 ] || cp junit.$TACHIKOMA_ITERATION out/TEST-a.xml; false";
    let scratch = gated(write, "report = 'out/**/TEST-*.xml'");
    let junit = |name: &str| {
        format!("<testsuite><testcase name=\"{name}\"><failure/></testcase></testsuite>")
    };
    scratch.write("junit.1", junit("one"));
    scratch.write("junit.3", "this is no XML");
    scratch.write("junit.4", "this is no XML");
    scratch.write("junit.5", junit("five"));
    scratch.write("out/other.xml", junit("other"));
    // The report is older than the tolerance for file times.
    let age = "touch -d '1 hour ago' out/*";
    iterate(&scratch, 5, age);
    let runs = events(&scratch, "tests_ran");
    let failing: Vec<_> = runs.iter().map(|run| run["failing"].clone()).collect();
    assert_eq!(failing, [json!(["one"]), json!(["five"])]);
    let warnings = warnings(&scratch);
    assert_eq!(
        warnings.len(),
        3,
        "each warning is printed once: {warnings:#?}"
    );
    assert!(
        warnings[0].ends_with("there is none"),
        "before the first iteration: {warnings:?}"
    );
    assert!(
        warnings[1].ends_with("it is from an earlier run"),
        "{warnings:?}"
    );
    assert!(
        warnings[2].contains("no test results are in it"),
        "{warnings:?}"
    );
}

#[test]
fn gates_without_tests_have_no_test_results() {
    let scratch = gated("echo all is well", "");
    iterate(&scratch, 2, "true");
    assert_eq!(events(&scratch, "tests_ran").len(), 0);
    assert_eq!(warnings(&scratch), [""; 0]);
    assert_eq!(status(&scratch)["tests"], Value::Null);
}

#[test]
fn lost_or_damaged_test_history_starts_again_with_a_warning() {
    let scratch = gated(TAP, "");
    for iteration in 1..=3 {
        scratch.write(format!("tap.{iteration}"), "1..1\nok 1 - a\n");
    }
    iterate(&scratch, 1, "true");
    let book = loops(&scratch)[0].join("tests.json");
    fs::write(&book, "damaged").unwrap();
    let go_on = |limit: &str| {
        let ran = tachikoma(&scratch).run(["run", "--max-iterations", limit]);
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    };
    go_on("2");
    fs::remove_file(&book).unwrap();
    go_on("3");
    let warnings = warnings(&scratch);
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    assert!(warnings[0].contains("starts again") && warnings[0].contains("it is damaged"));
    assert!(warnings[1].contains("starts again: its file is gone"));
    assert!(book.exists());
}

#[test]
fn an_invalid_report_pattern_is_refused_before_the_first_iteration() {
    let scratch = gated("true", "report = 'out/['");
    let ran = tachikoma(&scratch).run(run(&[], "touch ran"));
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(
        ran.stderr
            .contains("`gate.report` of `tests` is not a pattern"),
        "{}",
        ran.stderr
    );
    assert!(!scratch.path().join("ran").exists());
}

#[test]
fn tests_with_one_name_in_several_gates_are_distinguished() {
    let scratch = Scratch::new();
    let gate = |name: &str, verdict: &str| {
        format!(
            "[[gate]]\nname = '{name}'\nwhen = 'iteration'\ncommand = '''printf '1..1\\n{verdict} 1 - a\\n' '''\n"
        )
    };
    scratch.write(
        "tachikoma.toml",
        gate("unit", "ok") + &gate("e2e", "not ok"),
    );
    iterate(&scratch, 1, "true");
    let run = &events(&scratch, "tests_ran")[0];
    assert_eq!((&run["passed"], &run["failed"]), (&json!(1), &json!(1)));
    assert_eq!(run["failing"], json!(["e2e > a"]));
}
