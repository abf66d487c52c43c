//! Parses the output of test runners into a report. This crate starts no process and writes no file.
//!
//! [`read`] accepts any bytes and uses limited memory ([`TESTS_MAX`], [`NAME_BYTES_MAX`], [`LINE_BYTES_MAX`], [`DOCUMENT_BYTES_MAX`]).
//! It reports what it could not read as [`Results::problems`]. Each format has its own file.

mod collector;
mod detect;
mod error;
mod go;
mod jest;
mod junit;
mod libtest;
mod lines;
mod nextest;
mod pytest;
mod report_pattern;
mod source;
mod tap;

use std::io::Read;
use std::path::Path;

use tachikoma_core::Verdict;
use tachikoma_fs::safe_read;

pub use collector::{NAME_BYTES_MAX, NAMES_BYTES_MAX, PROBLEMS_MAX, TESTS_MAX};
pub use error::ResultsError;
pub use lines::LINE_BYTES_MAX;
pub use report_pattern::ReportPattern;
pub use source::INPUT_BYTES_MAX;

use collector::Collector;
use junit::Place;
use source::Source;

/// Maximum size of a JUnit or Jest document, ten times the largest known one. It is held in memory.
pub const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// The output format of a test runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JUnit XML, as pytest, nextest, Vitest, node, Maven and most others write it.
    Junit,
    /// The text of `cargo test`.
    Libtest,
    /// The text of `cargo nextest run`.
    Nextest,
    /// The text of pytest: its summary, and its lines with `-v` or `-rA`.
    Pytest,
    /// `go test -json`.
    Go,
    /// `jest --json`, `vitest run --reporter=json`.
    Jest,
    /// The Test Anything Protocol (TAP), versions 12 to 14, with or without the version line.
    Tap,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Junit => "JUnit XML",
            Self::Libtest => "cargo test",
            Self::Nextest => "cargo nextest",
            Self::Pytest => "pytest",
            Self::Go => "go test -json",
            Self::Jest => "Jest JSON",
            Self::Tap => "TAP",
        })
    }
}

/// One test of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// Name of the test with its file and groups, from the outside in: `file > group > test`.
    pub name: String,
    /// The result of the test.
    pub verdict: Verdict,
}

/// The number of tests for each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed and passed in a later attempt.
    pub flaky: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that could not be run.
    pub errored: u64,
    /// Tests that were skipped.
    pub skipped: u64,
}

impl Counts {
    /// Returns the number of all tests.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.passed + self.flaky + self.failed + self.errored + self.skipped
    }

    const fn of(&mut self, verdict: Verdict) -> &mut u64 {
        match verdict {
            Verdict::Passed => &mut self.passed,
            Verdict::Flaky => &mut self.flaky,
            Verdict::Failed => &mut self.failed,
            Verdict::Errored => &mut self.errored,
            Verdict::Skipped => &mut self.skipped,
        }
    }
}

/// Something that is missing from the results or may be wrong in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Number of the line where the problem was found, counted from 1.
    pub line: u64,
    /// Description of the problem.
    pub text: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

/// The results of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// The format of the output.
    pub format: Format,
    /// Tests with names, one entry for each name, in the order of the output. At most [`TESTS_MAX`].
    pub tests: Vec<TestResult>,
    /// Number of all tests, including unnamed ones.
    pub counts: Counts,
    /// Number of tests that the runner counted without naming them, as `cargo test -q` and pytest do.
    pub unnamed: u64,
    /// Problems, at most [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
    /// Number of further problems that are not listed.
    pub problems_left_out: u64,
}

impl Results {
    /// Returns whether no test is missing, as far as this can be known.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }

    /// Shortens names that begin with the path of `root`: Jest and Vitest write absolute paths.
    pub fn relative_to(&mut self, root: &Path) {
        let Some(root) = root.to_str().map(|root| root.trim_end_matches('/')) else {
            return;
        };
        for test in &mut self.tests {
            let inside = test.name.strip_prefix(root);
            if let Some(inside) = inside.and_then(|inside| inside.strip_prefix('/')) {
                test.name = inside.to_owned();
            }
        }
    }
}

/// Reads test results from `reader`. `hint` is the format; `None` = detect it.
///
/// Stdout and stderr of a runner should be merged in the order in which they were written: `cargo test` writes the names of
/// the binaries to stderr and the tests to stdout.
///
/// # Errors
/// The bytes cannot be read, there are none, or they have another format. Damaged or incomplete results
/// are not an error but a problem of the results.
pub fn read(reader: impl Read, hint: Option<Format>) -> Result<Results, ResultsError> {
    let mut source = Source::new(reader);
    if source.peek()?.is_empty() {
        return Err(ResultsError::Empty);
    }
    let format = match hint {
        Some(format) => {
            if format == Format::Jest {
                detect::skip_to_document(&mut source)?;
            }
            format
        }
        None => detect::detect(&mut source)?.ok_or(ResultsError::Unknown)?,
    };
    let mut into = Collector::new(format);
    match format {
        Format::Junit | Format::Jest => read_document(&mut source, &mut into)?,
        Format::Libtest => lines::read(&mut source, libtest::LibtestReader::default(), &mut into)?,
        Format::Nextest => lines::read(&mut source, nextest::NextestReader::default(), &mut into)?,
        Format::Pytest => lines::read(&mut source, pytest::PytestReader::default(), &mut into)?,
        Format::Go => lines::read(&mut source, go::GoReader::default(), &mut into)?,
        Format::Tap => lines::read(&mut source, tap::TapReader::default(), &mut into)?,
    }
    if source.is_over_limit() {
        let line = source.line_number();
        into.problem(
            line,
            format!("only the first {INPUT_BYTES_MAX} bytes were read"),
        );
    }
    Ok(into.finish())
}

/// Reads a format that consists of one document, which is held in memory.
fn read_document(source: &mut Source<impl Read>, into: &mut Collector) -> Result<(), ResultsError> {
    let line = source.line_number();
    let mut document = Vec::new();
    source.take(DOCUMENT_BYTES_MAX).read_to_end(&mut document)?;
    let read = match into.format() {
        Format::Junit => junit::read(&document, Place { line, column: 1 }, into),
        _ => jest::read(&document, line, into),
    };
    if !source.peek()?.is_empty() {
        let text = format!("only the first {DOCUMENT_BYTES_MAX} bytes were read");
        into.problem(source.line_number(), text);
    }
    read
}

/// Reads results from a file.
///
/// # Errors
/// The file cannot be opened, it is not a regular file, or an error of [`read`], with the name of the file.
pub fn read_file(path: &Path, hint: Option<Format>) -> Result<Results, ResultsError> {
    let named = |source| ResultsError::File {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let file = safe_read::open(path).map_err(|error| named(error.into()))?;
    read(file, hint).map_err(named)
}
