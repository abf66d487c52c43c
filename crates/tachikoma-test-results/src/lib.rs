//! What a run of tests came to, test by test, read from what the runner of the tests wrote.
//!
//! [`read`] takes any bytes and never more memory than its bounds say ([`TESTS_MAX`], [`NAME_BYTES_MAX`],
//! [`LINE_BYTES_MAX`]); what it could not read it says ([`Results::problems`]). One file for each format.

mod collector;
mod detect;
mod error;
mod go;
mod jest;
mod json;
mod junit;
mod libtest;
mod lines;
mod nextest;
mod pytest;
mod report_pattern;
mod source;
mod tap;
mod xml;

use std::io::Read;
use std::path::Path;

use tachikoma_core::Verdict;
use tachikoma_fs::regular;

pub use collector::{NAME_BYTES_MAX, NAMES_BYTES_MAX, PROBLEMS_MAX, TESTS_MAX};
pub use error::ResultsError;
pub use lines::LINE_BYTES_MAX;
pub use report_pattern::ReportPattern;
pub use source::INPUT_BYTES_MAX;

use collector::Collector;
use source::Source;

/// How a runner of tests writes down what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JUnit's XML, as pytest, nextest, Vitest, node, Maven and most others write it.
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
    /// The Test Anything Protocol, 12 to 14, also without its first line.
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
    /// Its name with what it is in, from the outside in: `file > group > test`.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
}

/// How many tests ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that passed.
    pub passed: u64,
    /// Those that failed and passed.
    pub flaky: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that could not be run.
    pub errored: u64,
    /// Those that were skipped.
    pub skipped: u64,
}

impl Counts {
    /// All of them.
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

/// Something that is missing from the results, or may be wrong in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line at which it was seen, counted from 1.
    pub line: u64,
    /// What it is.
    pub text: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

/// What a run of tests came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// How it was written down.
    pub format: Format,
    /// Tests whose names are known, one entry for each name, in the order in which they were met. At most [`TESTS_MAX`].
    pub tests: Vec<TestResult>,
    /// All tests, with those that the runner counted without naming them.
    pub counts: Counts,
    /// Tests that the runner counted without naming them, as `cargo test -q` and pytest do.
    pub unnamed: u64,
    /// What could not be read, at most [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub problems_left_out: u64,
}

impl Results {
    /// Whether nothing is missing, as far as can be told.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }

    /// Makes names shorter that begin with the path of `root`: Jest and Vitest write whole paths.
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

/// Reads results from `reader`, in the format that is given, or the one that they seem to have.
///
/// What a runner writes to both of its outputs should come in the order in which it was written: for `cargo test` the names of
/// the binaries are on one and their tests on the other.
///
/// # Errors
/// It cannot be read, there is nothing in it, it has none of the formats, or not the one that is given. What is only damaged, or cut
/// off, is no error but a problem of the results.
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
        Format::Junit => junit::read(&mut source, &mut into)?,
        Format::Jest => jest::read(&mut source, &mut into)?,
        Format::Libtest => lines::read(&mut source, libtest::Reader::default(), &mut into)?,
        Format::Nextest => lines::read(&mut source, nextest::Reader::default(), &mut into)?,
        Format::Pytest => lines::read(&mut source, pytest::Reader::default(), &mut into)?,
        Format::Go => lines::read(&mut source, go::Reader::default(), &mut into)?,
        Format::Tap => lines::read(&mut source, tap::Reader::default(), &mut into)?,
    }
    if source.is_beyond() {
        let line = source.line_number();
        into.problem(
            line,
            format!("only the first {INPUT_BYTES_MAX} bytes were read"),
        );
    }
    Ok(into.finish())
}

/// Reads results from a file.
///
/// # Errors
/// It is no regular file, it cannot be opened, or what [`read`] says, with the file's name.
pub fn read_file(path: &Path, hint: Option<Format>) -> Result<Results, ResultsError> {
    let named = |source| ResultsError::File {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let file = regular::open(path).map_err(|error| named(error.into()))?;
    read(file, hint).map_err(named)
}
