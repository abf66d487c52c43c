//! Test results of gates: read from their reports or their output, and compared with earlier runs.

use std::path::{Path, PathBuf};

use tachikoma_core::{TestCounts, TestsReport, TestsSeen, Verdict};
use tachikoma_test_results::{self as results, Results, ResultsError};

use crate::settings::Gate;
use crate::store::encryption::Encryption;
use crate::store::{compressed, test_history};
use tachikoma_core::error_chain as chain;
use tachikoma_test_results::ReportPattern;

/// Test results that were read from the gates of one check so far.
#[derive(Debug, Default)]
pub(crate) struct TestsRead {
    ended: Vec<(String, Verdict)>,
    counts: TestCounts,
    /// Whether any test results were found.
    heard: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Test results for the journal record, and the test history that is written after that record.
#[derive(Debug)]
pub(crate) struct TestRun {
    pub report: TestsReport,
    pub history: TestsSeen,
}

/// Location of the test history of earlier runs, and its state.
#[derive(Clone, Debug)]
pub(crate) struct TestHistory {
    /// The directory of the loop.
    pub dir: PathBuf,
    /// Whether tests ran before in this loop.
    pub any: bool,
    /// Whether the work may have changed since the last test run.
    pub changed: bool,
    /// Encryption of the test history file.
    pub encryption: Encryption,
}

impl TestsRead {
    /// Reads the test results of a gate that started at `since`. `printed` is the file with its output. Blocks the thread.
    pub fn gate(
        &mut self,
        gate: &Gate,
        dir: &Path,
        since: i64,
        printed: Option<(&Path, &Encryption)>,
        of: usize,
    ) {
        // If several gates ran, test names get the name of their gate as a prefix, because tests of two gates may have the same name.
        let prefix = (of > 1).then_some(gate.name.as_str());
        if let Some(report) = &gate.report {
            let found = ReportPattern::new(report).and_then(|pattern| pattern.find(dir, since));
            match found {
                Ok(files) => {
                    for file in files {
                        match results::read_file(&file, None) {
                            Ok(results) => self.take(gate, results, dir, prefix),
                            Err(error) => self.warn(gate, &chain(&error)),
                        }
                    }
                }
                Err(why) => self.warn(gate, &format!("no report at {report}: {why}")),
            }
            return;
        }
        let Some(file) =
            printed.and_then(|(path, encryption)| compressed::open(path, encryption).ok())
        else {
            return;
        };
        match results::read(file.content, None) {
            Ok(results) => self.take(gate, results, dir, prefix),
            // A gate without test results is not an error, because most gates run no tests.
            Err(ResultsError::Unknown | ResultsError::Empty) => {}
            Err(error) => self.warn(gate, &chain(&error)),
        }
    }

    fn warn(&mut self, gate: &Gate, what: &str) {
        let name = &gate.name;
        let warning = format!("the tests of the gate `{name}` are not known: {what}");
        self.warnings.push(warning);
    }

    fn take(&mut self, gate: &Gate, mut results: Results, dir: &Path, prefix: Option<&str>) {
        results.relative_to(dir);
        if let Some(problem) = results.problems.first() {
            self.warnings.push(format!(
                "the tests of the gate `{}` may not be all: {problem}",
                gate.name
            ));
        }
        self.heard = true;
        let counts = &results.counts;
        let add = |sum: &mut u32, more: u64| {
            *sum = sum.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        };
        add(&mut self.counts.passed, counts.passed + counts.flaky);
        add(&mut self.counts.failed, counts.failed + counts.errored);
        add(&mut self.counts.skipped, counts.skipped);
        self.ended.extend(results.tests.into_iter().map(|test| {
            let name = match prefix {
                Some(gate) => format!("{gate} > {}", test.name),
                None => test.name,
            };
            (name, test.verdict)
        }));
    }

    /// Compares the test results with earlier runs. Returns `None` if no tests ran. Blocks the thread.
    pub fn compare(&mut self, iteration: u32, before: &TestHistory) -> Option<TestRun> {
        if !self.heard {
            return None;
        }
        let mut books = match test_history::read(&before.dir, &before.encryption) {
            Ok(Some(books)) => books,
            Ok(None) => {
                if before.any {
                    self.warnings.push(history_restarted("its file is gone"));
                }
                TestsSeen::default()
            }
            Err(why) => {
                self.warnings.push(history_restarted(&why));
                TestsSeen::default()
            }
        };
        let ended: Vec<(&str, Verdict)> = self
            .ended
            .iter()
            .map(|(name, verdict)| (name.as_str(), *verdict))
            .collect();
        let report = TestsReport::of(iteration, &mut books, before.changed, self.counts, &ended);
        Some(TestRun {
            report,
            history: books,
        })
    }
}

fn history_restarted(why: &str) -> String {
    format!("the history of earlier test runs starts again: {why}")
}
