//! Recorded output of real test runners. The recordings are unchanged. Each is named after the version of its
//! runner and the scenario. The snapshots contain the results that are read from it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::chain;
use tachikoma_core::Verdict;
use tachikoma_test_results::{self as results, Counts, Format, Results, ResultsError};

pub(crate) fn recordings(runner: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results");
    let mut files: Vec<PathBuf> = fs::read_dir(dir.join(runner))
        .expect("the directory of recordings exists")
        .map(|entry| entry.expect("a recording").path())
        .collect();
    files.sort();
    let named = |file: &PathBuf| {
        file.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    files
        .iter()
        .map(|file| (named(file), fs::read(file).expect("a recording")))
        .collect()
}

pub(crate) const RUNNERS: [&str; 8] = [
    "libtest", "nextest", "pytest", "go", "jest", "vitest", "tap", "junit",
];

fn told(results: &Result<Results, ResultsError>) -> String {
    let results = match results {
        Ok(results) => results,
        Err(error) => return format!("  error: {}\n", chain(error)),
    };
    let Counts {
        passed,
        flaky,
        failed,
        errored,
        skipped,
    } = results.counts;
    let mut text = format!(
        "  {}: {passed} passed, {flaky} flaky, {failed} failed, {errored} errored, {skipped} skipped; {} unnamed\n",
        results.format, results.unnamed
    );
    for problem in &results.problems {
        writeln!(text, "  ! {problem}").expect("a string");
    }
    for test in &results.tests {
        writeln!(text, "  {:<8} {}", test.verdict.to_string(), test.name).expect("a string");
    }
    text
}

/// Reads every recording of a runner, in the detected format.
fn read_all(runner: &str) -> String {
    let mut text = String::new();
    for (name, bytes) in recordings(runner) {
        let read = results::read(&bytes[..], None);
        write!(text, "{name}\n{}\n", told(&read)).expect("a string");
    }
    text
}

#[test]
fn recordings_of_cargo_test_are_read() {
    insta::assert_snapshot!(read_all("libtest"));
}

#[test]
fn recordings_of_cargo_nextest_are_read() {
    insta::assert_snapshot!(read_all("nextest"));
}

#[test]
fn recordings_of_pytest_are_read() {
    insta::assert_snapshot!(read_all("pytest"));
}

#[test]
fn recordings_of_go_test_are_read() {
    insta::assert_snapshot!(read_all("go"));
}

#[test]
fn recordings_of_jest_are_read() {
    insta::assert_snapshot!(read_all("jest"));
}

#[test]
fn recordings_of_vitest_are_read() {
    insta::assert_snapshot!(read_all("vitest"));
}

#[test]
fn recordings_of_tap_are_read() {
    insta::assert_snapshot!(read_all("tap"));
}

#[test]
fn recordings_of_junit_are_read() {
    insta::assert_snapshot!(read_all("junit"));
}

fn read(text: &str) -> Results {
    results::read(text.as_bytes(), None).expect("results")
}

#[test]
fn results_do_not_depend_on_colors_and_line_endings() {
    for runner in RUNNERS {
        for (name, bytes) in recordings(runner) {
            let Ok(plain) = results::read(&bytes[..], None) else {
                continue;
            };
            let windows: Vec<u8> = bytes
                .split(|byte| *byte == b'\n')
                .collect::<Vec<_>>()
                .join(&b"\r\n"[..]);
            let same = results::read(&windows[..], None).expect(&name);
            assert_eq!(same, plain, "{name}");
        }
    }
    let of = |runner: &str, what: &str| {
        let all = recordings(runner);
        let found = all.iter().find(|(name, _)| name.ends_with(what));
        let mut results = results::read(&found.expect(what).1[..], None).expect(what);
        results
            .tests
            .sort_by(|left, right| left.name.cmp(&right.name));
        results.tests
    };
    for runner in ["libtest", "nextest"] {
        assert_eq!(
            of(runner, "colours.txt"),
            of(runner, "mixed.txt"),
            "{runner}"
        );
    }
    assert_eq!(of("pytest", "colours.txt"), of("pytest", "verbose.txt"));
}

#[test]
fn text_output_and_report_of_a_runner_give_the_same_results() {
    let of = |runner: &str, name: &str| {
        let all = recordings(runner);
        let found = all.iter().find(|(found, _)| found == name).expect(name);
        results::read(&found.1[..], None).expect(name)
    };
    let mut text: Vec<_> = of("nextest", "0.9.143-retries.txt").tests;
    let mut report: Vec<_> = of("junit", "nextest-0.9.143-retries.xml").tests;
    text.sort_by(|left, right| left.name.cmp(&right.name));
    report.sort_by(|left, right| left.name.cmp(&right.name));
    assert_eq!(text, report);
    let text = of("pytest", "9.2.0-verbose.txt").counts;
    let report = of("junit", "pytest-9.2.0-mixed.xml").counts;
    assert_eq!(text, report);
}

#[test]
fn invalid_utf8_in_test_names_is_replaced() {
    let bad = b"TAP version 13\nok 1 - caf\xe9\nnot ok 2 - \xff\xfe\n1..2\n";
    let results = results::read(&bad[..], None).unwrap();
    assert_eq!(
        told(&Ok(results)),
        "  TAP: 1 passed, 0 flaky, 1 failed, 0 errored, 0 skipped; 0 unnamed\n  passed   caf\u{fffd}\n  failed   \u{fffd}\u{fffd}\n"
    );
    let bad = b"<testsuite><testcase name='caf\xe9'/></testsuite>";
    assert_eq!(
        results::read(&bad[..], None).unwrap().tests[0].name,
        "caf\u{fffd}"
    );
    let bad = b"{\"testResults\":[{\"name\":\"a\",\"assertionResults\":[{\"title\":\"caf\xe9\\ud800\",\"status\":\"passed\"}]}]}";
    let name = results::read(&bad[..], None).unwrap().tests[0].name.clone();
    assert!(name.starts_with("a > caf\u{fffd}"), "{name}");
}

#[test]
fn documents_without_test_results_are_rejected_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, bytes: &[u8], hint: Format| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let error = results::read_file(&path, Some(hint)).expect_err(name);
        chain(&error).replace(&*dir.path().to_string_lossy(), "DIR")
    };
    let junit = |name: &str, text: &str| refused(name, text.as_bytes(), Format::Junit);
    let begin = "cannot read test results from DIR/junit.xml: ";
    for (text, expected) in [
        ("", "it is empty; did the tests run?"),
        (
            "\n  all good\n",
            "it is not XML: line 2, column 3: text where a tag should be",
        ),
        (
            "<html><body/></html>",
            "it is not JUnit XML: line 1: it begins with <html>, not with <testsuites> or <testsuite>",
        ),
        (
            "<?xml version='1.0'?>\n",
            "it is not XML: line 2, column 1: there is no element in it",
        ),
        (
            "<testsuites>\n </testsuite>",
            "it is not XML: line 2, column 2: </testsuite> closes <testsuites>",
        ),
        (
            "<testsuite name=x>",
            "it is not XML: line 1, column 1: position 15: attribute value must be enclosed in `\"` or `'`",
        ),
        (
            "<testsuite name",
            "it is not XML: line 1, column 1: the output is incomplete: it ends in its first tag",
        ),
        (
            "<\0t\0",
            "it is not XML: line 1, column 1: it is UTF-16, and only UTF-8 is read",
        ),
    ] {
        assert_eq!(
            junit("junit.xml", text),
            format!("{begin}{expected}"),
            "{text}"
        );
    }
    assert_eq!(
        refused("jest.json", b"{\n\"a\": oh}", Format::Jest),
        "cannot read test results from DIR/jest.json: it is not JSON of Jest or Vitest: line 2: expected value"
    );
    assert_eq!(
        refused("jest.json", b"{}", Format::Jest),
        "cannot read test results from DIR/jest.json: it is not JSON of Jest or Vitest: line 1: missing field `testResults`"
    );
    let error = results::read_file(&dir.path().join("none.xml"), None).unwrap_err();
    assert!(
        chain(&error).ends_with("No such file or directory (os error 2)"),
        "{}",
        chain(&error)
    );
    let error = results::read_file(dir.path(), None).unwrap_err();
    assert!(
        chain(&error).ends_with("it is not a regular file"),
        "{}",
        chain(&error)
    );
    let error = results::read(&b"make: nothing to be done\n"[..], None).unwrap_err();
    assert!(
        chain(&error).starts_with("no test results are in it: "),
        "{}",
        chain(&error)
    );
}

#[test]
fn xml_entities_are_not_expanded() {
    let bomb = r#"<?xml version="1.0"?>
<!DOCTYPE a [ <!ENTITY a "x"> <!ENTITY b "&a;&a;&a;&a;"> <!ENTITY c SYSTEM "file:///etc/passwd"> ]>
<testsuite><testcase name="&b;&c; &lt;é&#233;&gt;"/><testcase name="a &lt; b &#x41;"/></testsuite>"#;
    let results = read(bomb);
    let names: Vec<&str> = results
        .tests
        .iter()
        .map(|test| test.name.as_str())
        .collect();
    assert_eq!(names, ["&b;&c; &lt;é&#233;&gt;", "a < b A"]);
}

#[test]
fn junit_variants_of_several_test_runners_are_read() {
    let results = read(
        r#"<testsuites><testsuite name="Suite">
        <testcase name="off" status="notrun" result="suppressed"/>
        <testcase name="on" status="run" result="completed" classname="Suite"/>
        <testcase name="both"><failure/><error/></testcase>
        <testcase name="again"><flakyFailure/><system-out><![CDATA[<failure>]]></system-out></testcase>
        <testcase name="thrice"><failure/><rerunFailure><failure/></rerunFailure></testcase>
        <testcase name="notes"><properties><property name="x"><error/></property></properties></testcase>
        <!-- <testcase name="commented"/> -->
        <error message="the set-up broke > all"/>
        </testsuite></testsuites>"#,
    );
    assert_eq!(
        told(&Ok(results)),
        "  JUnit XML: 2 passed, 1 flaky, 1 failed, 2 errored, 1 skipped; 0 unnamed\n\
         \x20 skipped  Suite > off\n  passed   Suite > on\n  errored  Suite > both\n  flaky    Suite > again\n\
         \x20 failed   Suite > thrice\n  passed   Suite > notes\n  errored  Suite\n"
    );
}

#[test]
fn a_given_format_overrides_the_detected_one() {
    let text = "TAP version 13\nrunning 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
    assert_eq!(read(text).format, Format::Tap);
    let hinted = results::read(text.as_bytes(), Some(Format::Libtest)).unwrap();
    assert_eq!((hinted.format, hinted.counts.passed), (Format::Libtest, 1));
    assert!(hinted.is_complete());
}

#[test]
fn file_names_in_test_names_can_be_made_relative_to_a_directory() {
    let mut results = read(
        r#"{"testResults":[{"name":"/srv/a/b.js","assertionResults":[{"title":"t","status":"passed"}]}]}"#,
    );
    results.relative_to(Path::new("/srv/a/"));
    assert_eq!(results.tests[0].name, "b.js > t");
    assert_eq!(results.tests[0].verdict, Verdict::Passed);
}

#[test]
fn a_junit_report_with_missing_tests_is_reported() {
    let problem = |text: &str| {
        let problems = read(text).problems;
        assert!(
            problems.len() <= 1,
            "missing tests are reported only once: {problems:?}"
        );
        problems.first().map(|problem| problem.text.clone())
    };
    let suite = |attributes: &str, cases: &str| {
        format!("<testsuites><testsuite name='s' {attributes}>{cases}</testsuite></testsuites>")
    };
    let (passed, failed) = (
        "<testcase name='a'/>",
        "<testcase name='b'><failure/></testcase>",
    );
    let both = format!("{passed}{failed}");
    for (attributes, cases, expected) in [
        ("tests='2' failures='1' errors='0'", both.as_str(), None),
        ("tests='1'", &both, None),
        ("", &both, None),
        (
            "tests='3'",
            &both,
            Some("<testsuite> says that it has 3 tests, and 2 are in it"),
        ),
        (
            "tests='2' failures='1' errors='1'",
            &both,
            Some("<testsuite> says that it has 2 failures, and 1 are in it"),
        ),
        ("tests='0'", "", Some("there is no test in it")),
    ] {
        let said = problem(&suite(attributes, cases));
        assert_eq!(said.as_deref(), expected, "{attributes}");
    }
    let around = format!(
        "<testsuites tests='4'>{}{}</testsuites>",
        suite_of(passed),
        suite_of(failed)
    );
    assert_eq!(
        problem(&around).as_deref(),
        Some("<testsuites> says that it has 4 tests, and 2 are in it")
    );
}

fn suite_of(case: &str) -> String {
    format!("<testsuite name='s' tests='1'>{case}</testsuite>")
}
