//! `cargo xtask real-runners`: runs real test runners on small projects with tests of every result, and checks what is parsed from
//! their output. Recordings in `cargo test` check the same for older versions.
//!
//! Each runner has a row in [`CHECKS`] and a file with the expected results in `real_runners/expected/`. A missing runner is an error.

mod install;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tachikoma_loop_runner::chain;
use tachikoma_test_results::{self as results, Format};

use crate::product::{Live, text};
use install::Installed;

/// Time limit of a runner. The slowest one compiles a small package first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Number of output lines that are shown of a failed check.
const WORDS_LINES: usize = 15;
const WORDS_COLUMNS: usize = 160;

/// Name of the report file, if the report is not the runner's output.
const REPORT: &str = "report.xml";

/// A runner: its name, its project, its command, and its format.
struct Row(&'static str, &'static str, &'static [&'static str], Format);

/// All runners, in the order of execution. `{PYTHON}`, `{GO}` and `{JS}` are the installed programs.
const CHECKS: &[Row] = &[
    Row(
        "cargo-test",
        "rust",
        &["cargo", "test", "--no-fail-fast"],
        Format::Libtest,
    ),
    Row(
        "cargo-test-nocapture",
        "rust",
        &[
            "cargo",
            "test",
            "--no-fail-fast",
            "--",
            "--nocapture",
            "--test-threads=1",
        ],
        Format::Libtest,
    ),
    Row(
        "cargo-test-quiet",
        "rust",
        &["cargo", "test", "--no-fail-fast", "-q"],
        Format::Libtest,
    ),
    Row(
        "nextest",
        "rust",
        &[
            "cargo",
            "nextest",
            "run",
            "--no-fail-fast",
            "--retries",
            "2",
        ],
        Format::Nextest,
    ),
    Row(
        "nextest-junit",
        "rust",
        &[
            "cargo",
            "nextest",
            "run",
            "--no-fail-fast",
            "--profile",
            "report",
        ],
        Format::Junit,
    ),
    Row(
        "pytest",
        "python",
        &[
            "{PYTHON}",
            "-m",
            "pytest",
            "-v",
            "--continue-on-collection-errors",
        ],
        Format::Pytest,
    ),
    Row(
        "pytest-summary",
        "python",
        &[
            "{PYTHON}",
            "-m",
            "pytest",
            "-rA",
            "--continue-on-collection-errors",
        ],
        Format::Pytest,
    ),
    Row(
        "pytest-junit",
        "python",
        &[
            "{PYTHON}",
            "-m",
            "pytest",
            "--junitxml",
            REPORT,
            "--continue-on-collection-errors",
        ],
        Format::Junit,
    ),
    Row("go", "go", &["{GO}", "test", "-json", "./..."], Format::Go),
    Row(
        "jest",
        "js/jest",
        &["node", "{JS}/jest/bin/jest.js", "--json"],
        Format::Jest,
    ),
    Row(
        "vitest",
        "js/vitest",
        &["node", "{JS}/vitest/vitest.mjs", "run", "--reporter=json"],
        Format::Jest,
    ),
    Row(
        "vitest-tap",
        "js/vitest",
        &["node", "{JS}/vitest/vitest.mjs", "run", "--reporter=tap"],
        Format::Tap,
    ),
    Row(
        "vitest-junit",
        "js/vitest",
        &["node", "{JS}/vitest/vitest.mjs", "run", "--reporter=junit"],
        Format::Junit,
    ),
    Row(
        "node-tap",
        "js/node",
        &["node", "--test", "--test-reporter=tap"],
        Format::Tap,
    ),
    Row(
        "node-junit",
        "js/node",
        &["node", "--test", "--test-reporter=junit"],
        Format::Junit,
    ),
    Row(
        "prove",
        "tap",
        &["prove", "-v", "t/calc.t", "t/dies.t", "t/nothing.t"],
        Format::Tap,
    ),
];

/// Installs the runners, then runs the named checks, or all.
pub fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    if let Some(name) = names
        .iter()
        .find(|name| !CHECKS.iter().any(|row| row.0 == **name))
    {
        let known: Vec<_> = CHECKS.iter().map(|row| row.0).collect();
        return Err(format!(
            "no check is called {name}; there are {}",
            known.join(", ")
        ));
    }
    let here = root.join("xtask/src/real_runners");
    let installed = Installed::below(&install::home()?)?;
    let ground = tempfile::Builder::new()
        .prefix("real-runners")
        .tempdir()
        .map_err(text)?;
    copy(&here.join("fixture"), ground.path())?;
    installed.link_into(&ground.path().join("js"))?;
    let started = Instant::now();
    let wanted = |row: &&Row| names.is_empty() || names.contains(&row.0);
    let rows: Vec<&Row> = CHECKS.iter().filter(wanted).collect();
    let mut failed = Vec::new();
    for row in &rows {
        let began = Instant::now();
        let made = make(row, &installed, ground.path(), &here.join("expected"));
        let took = began.elapsed().as_secs_f64();
        match made {
            Ok(saw) => println!("ok    {:<21} {took:>5.1} s  {saw}", row.0),
            Err(why) => {
                println!("FAIL  {:<21} {took:>5.1} s  {why}", row.0);
                failed.push(row.0);
            }
        }
    }
    let (took, count) = (started.elapsed().as_secs_f64(), rows.len());
    if failed.is_empty() {
        println!("{count} checks of real runners passed in {took:.0} s");
        return Ok(());
    }
    Err(format!(
        "{} of {count} checks failed: {}",
        failed.len(),
        failed.join(", ")
    ))
}

fn make(
    row: &Row,
    installed: &Installed,
    ground: &Path,
    expected: &Path,
) -> Result<String, String> {
    let Row(name, project, words, format) = row;
    let dir = ground.join(project);
    let output = ground.join(format!("{name}.out"));
    let mut words = words.iter().map(|word| installed.fill_in(word));
    let program = words.next().ok_or("a check without a program")?;
    let both = File::create(&output).map_err(text)?;
    let mut command = Command::new(&program);
    command
        .args(words)
        .current_dir(&dir)
        .stdin(Stdio::null())
        // Stdout and stderr go to one file, in the order of writing. For a document, only stdout is used.
        .stdout(both.try_clone().map_err(text)?)
        .stderr(match format {
            Format::Junit | Format::Jest => Stdio::null(),
            Format::Libtest | Format::Nextest | Format::Pytest | Format::Go | Format::Tap => {
                both.into()
            }
        });
    install::set_environment(&mut command, ground, &installed.cache);
    let ended = Live::start(&mut command)?.wait(PATIENCE);
    ended.map_err(|_| format!("{program} did not end within {PATIENCE:?}"))?;
    let report = dir.join(REPORT);
    let from = if report.exists() { &report } else { &output };
    let compared = compare(from, *format, &dir, &expected.join(format!("{name}.txt")));
    let _ = fs::remove_file(&report);
    compared.map_err(|why| {
        let said = fs::read(&output).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let mut last: Vec<String> = said
            .lines()
            .rev()
            .take(WORDS_LINES)
            .map(shortened)
            .collect();
        last.reverse();
        format!("{why}\nthe runner's last words:\n{}", last.join("\n"))
    })
}

fn shortened(line: &str) -> String {
    line.chars().take(WORDS_COLUMNS).collect()
}

/// Parses the output twice, with the format given and with it detected, and compares it with the expected results.
fn compare(file: &Path, format: Format, dir: &Path, expected: &Path) -> Result<String, String> {
    let read = |hint| results::read_file(file, hint).map_err(|error| chain(&error));
    let mut found = read(None)?;
    if read(Some(format))? != found {
        return Err(format!(
            "it looks like {} and not like {format}",
            found.format
        ));
    }
    found.relative_to(dir);
    let mut lines: Vec<String> = found
        .tests
        .iter()
        .map(|test| format!("{:<8} {}\n", test.verdict.to_string(), test.name))
        .collect();
    lines.sort();
    lines.extend(
        found
            .problems
            .iter()
            .map(|problem| format!("problem  {}\n", problem.text)),
    );
    lines.push(format!("unnamed  {}\n", found.unnamed));
    let (is, wanted) = (lines.concat(), fs::read_to_string(expected));
    let wanted = wanted
        .map_err(|error| format!("read {}: {error}; this was read:\n{is}", expected.display()))?;
    if is == wanted {
        let counts = found.counts;
        return Ok(format!(
            "{} tests, {} of them failed",
            counts.total(),
            counts.failed + counts.errored
        ));
    }
    let missing = wanted
        .lines()
        .filter(|line| !is.lines().any(|other| other == *line));
    let extra = is
        .lines()
        .filter(|line| !wanted.lines().any(|other| other == *line));
    let lines: Vec<String> = missing
        .map(|line| format!("- {line}"))
        .chain(extra.map(|line| format!("+ {line}")))
        .collect();
    Err(format!(
        "not what {} has:\n{}",
        expected.display(),
        lines.join("\n")
    ))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(text)?;
    for entry in fs::read_dir(from).map_err(|error| format!("read {}: {error}", from.display()))? {
        let from: PathBuf = entry.map_err(text)?.path();
        let to = to.join(from.file_name().unwrap_or_default());
        match from.is_dir() {
            true => copy(&from, &to)?,
            false => drop(fs::copy(&from, &to).map_err(text)?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn checks_and_expected_results_match() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/real_runners");
        let files: BTreeSet<String> = fs::read_dir(here.join("expected"))
            .expect("expectations")
            .map(|entry| {
                entry
                    .expect("a file")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        let checks: BTreeSet<String> = CHECKS.iter().map(|row| format!("{}.txt", row.0)).collect();
        assert_eq!(files, checks);
        for row in CHECKS {
            assert!(here.join("fixture").join(row.1).is_dir(), "{}", row.1);
        }
    }

    #[test]
    fn a_difference_is_named() {
        let scratch = tachikoma_testkit::Scratch::new();
        let file = scratch.write("out", "1..2\nok 1 - a\nnot ok 2 - b\n");
        let expected = scratch.write("expected", "passed   a\npassed   b\nunnamed  0\n");
        let error =
            compare(&file, Format::Tap, &scratch.path(), &expected).expect_err("it differs");
        assert!(
            error.ends_with("has:\n- passed   b\n+ failed   b"),
            "{error}"
        );
        let expected = scratch.write("expected", "failed   b\npassed   a\nunnamed  0\n");
        let saw = compare(&file, Format::Tap, &scratch.path(), &expected);
        assert_eq!(saw, Ok("2 tests, 1 of them failed".into()));
    }
}
