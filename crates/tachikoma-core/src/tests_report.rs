//! Summary of a test run, for the journal and for the agent's next prompt.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::{Standing, TestsSeen, Verdict, is_zero};

/// Maximum number of names of each kind in a report.
pub const NAMED_MAX: usize = 20;

/// Summary of one run of the tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TestsReport {
    /// The iteration after which the tests ran; 0 before the first iteration.
    pub iteration: u32,
    /// Number of tests that passed, including those that passed only after a retry.
    pub passed: u32,
    /// Number of tests that failed or could not be run.
    pub failed: u32,
    /// Number of tests that were not run.
    pub skipped: u32,
    /// Number of tests that passed and did not pass before.
    #[serde(skip_serializing_if = "is_zero")]
    pub newly_passing: u32,
    /// Names of failing tests, at most [`NAMED_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<String>,
    /// Names of failing tests that passed in their previous run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub newly_failing: Vec<String>,
    /// Names of tests that failed in their previous run and pass now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fixed: Vec<String>,
    /// Names of flaky tests: they pass and fail without a change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flaky: Vec<String>,
    /// Names of tests that passed, at most [`NAMED_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passing: Vec<String>,
}

impl TestsReport {
    /// Returns whether the results differ from those of the report `before`.
    #[must_use]
    pub fn is_news(&self, before: Option<&Self>) -> bool {
        let counts = |report: &Self| (report.passed, report.failed, report.skipped);
        let same = before.is_some_and(|before| counts(before) == counts(self));
        !same || self.newly_passing > 0 || !self.newly_failing.is_empty()
    }
}

/// Number of tests by outcome, including unnamed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestCounts {
    /// Number of tests that passed.
    pub passed: u32,
    /// Number of tests that failed or could not be run.
    pub failed: u32,
    /// Number of tests that were not run.
    pub skipped: u32,
}

impl TestsReport {
    /// Adds a run to the test history, and returns its summary. `changed` is whether the tested code changed since the last run.
    #[must_use]
    pub fn of(
        iteration: u32,
        books: &mut TestsSeen,
        changed: bool,
        counts: TestCounts,
        results: &[(&str, Verdict)],
    ) -> Self {
        let run = books.compare(changed, results.iter().copied());
        let newly_passing = books.newly_passing(&run);
        let mended = books.failing();
        books.apply(&run);
        // Tests that did not run are not part of this report.
        let named = |standing| {
            names(
                books
                    .names_of_run(standing)
                    .into_iter()
                    .map(|(_, name)| name),
            )
        };
        let fixed = books.names_of_run(Standing::RecentlyFixed).into_iter();
        let fixed = fixed.filter(|(id, _)| mended.contains(id));
        let ended = |wanted: fn(Verdict) -> bool| {
            let ended = results.iter().filter(move |(_, verdict)| wanted(*verdict));
            names(ended.map(|(name, _)| *name))
        };
        Self {
            iteration,
            passed: counts.passed,
            failed: counts.failed,
            skipped: counts.skipped,
            newly_passing: u32::try_from(newly_passing).unwrap_or(u32::MAX),
            failing: ended(Verdict::is_failure),
            newly_failing: named(Standing::NewlyFailing),
            fixed: names(fixed.map(|(_, name)| name)),
            flaky: named(Standing::Flaky),
            passing: ended(|verdict| matches!(verdict, Verdict::Passed | Verdict::Flaky)),
        }
    }

    /// Appends the failing tests, for a prompt. Appends nothing if no test fails.
    pub(crate) fn write_failing(&self, text: &mut String) {
        if self.failed == 0 {
            return;
        }
        let _ = writeln!(
            text,
            "\n## Failing tests ({} of {}, after iteration {})\n",
            self.failed,
            self.passed.saturating_add(self.failed),
            self.iteration
        );
        for name in &self.failing {
            let how = if self.newly_failing.contains(name) {
                " (passed before)"
            } else if self.flaky.contains(name) {
                " (passes and fails as it likes)"
            } else {
                ""
            };
            let _ = writeln!(text, "- {name}{how}");
        }
        let more = (self.failed as usize).saturating_sub(self.failing.len());
        if more > 0 {
            let _ = writeln!(text, "- and {more} more");
        }
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    const BYTES_MAX: usize = crate::tests_seen::NAME_BYTES_KEPT;
    let cut = |name: &str| {
        let end = name.floor_char_boundary(BYTES_MAX);
        name.get(..end).unwrap_or_default().to_owned()
    };
    names.take(NAMED_MAX).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(results: &[(&str, Verdict)]) -> TestCounts {
        let count = |wanted: fn(Verdict) -> bool| {
            let wanted = results.iter().filter(|(_, verdict)| wanted(*verdict));
            u32::try_from(wanted.count()).unwrap()
        };
        TestCounts {
            passed: count(|verdict| verdict == Verdict::Passed),
            failed: count(Verdict::is_failure),
            skipped: count(|verdict| verdict == Verdict::Skipped),
        }
    }

    fn run(books: &mut TestsSeen, results: &[(&str, Verdict)]) -> TestsReport {
        TestsReport::of(4, books, true, counts(results), results)
    }

    #[test]
    fn report_lists_newly_passing_failing_and_fixed_tests() {
        use Verdict::{Errored, Failed, Passed, Skipped};
        let mut books = TestsSeen::default();
        let first = run(
            &mut books,
            &[("a", Passed), ("b", Failed), ("c", Errored), ("d", Skipped)],
        );
        assert_eq!((first.passed, first.failed, first.skipped), (1, 2, 1));
        assert_eq!(first.newly_passing, 0, "the first run is the baseline");
        assert_eq!((first.failing.len(), first.newly_failing.len()), (2, 0));
        let second = run(
            &mut books,
            &[("a", Failed), ("b", Passed), ("c", Errored), ("e", Passed)],
        );
        assert_eq!(second.newly_passing, 2, "b is fixed, and e is new");
        assert_eq!(second.newly_failing, ["a"]);
        assert_eq!(second.fixed, ["b"]);
        let third = run(&mut books, &[("a", Passed), ("b", Passed), ("e", Passed)]);
        assert_eq!(
            third.fixed,
            ["a"],
            "only a is newly fixed, b was fixed in the run before"
        );
        let fourth = run(&mut books, &[("c", Passed)]);
        assert_eq!(
            fourth.fixed,
            ["c"],
            "c is fixed, although it did not run in the previous run"
        );
        let fifth = run(&mut books, &[("e", Failed), ("f", Passed)]);
        assert_eq!(fifth.newly_failing, ["e"]);
        let sixth = run(&mut books, &[("f", Passed)]);
        assert_eq!(sixth.newly_failing, [""; 0], "e did not run");
        let mut text = String::new();
        second.write_failing(&mut text);
        assert_eq!(
            text,
            "\n## Failing tests (2 of 4, after iteration 4)\n\n- a (passed before)\n- c\n"
        );
    }

    #[test]
    fn report_bounds_test_names_and_counts_the_rest() {
        let names: Vec<String> = (0..300)
            .map(|n| format!("{n} {}", "ü".repeat(400)))
            .collect();
        let results: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), Verdict::Failed))
            .collect();
        let report = run(&mut TestsSeen::default(), &results);
        assert_eq!(report.failing.len(), NAMED_MAX);
        assert!(report.failing.iter().all(|name| name.len() <= 200));
        let mut text = String::new();
        report.write_failing(&mut text);
        assert!(text.ends_with("- and 280 more\n"), "{text}");
    }
}
