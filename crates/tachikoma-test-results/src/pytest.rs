//! Reads the text output of pytest: lines with `-v`, the short summary (all tests with `-rA`, otherwise the failures), and the
//! totals at the end.
//!
//! Section titles (`=== FAILURES ===`) separate the quoted output of tests. All titles of one run have the same width, so a quoted
//! title with another width is ignored.

use tachikoma_core::Verdict;

use super::Counts;
use super::collector::Collector;
use super::lines::{Line, LineReader};

const BEGIN: &str = "test session starts";
const SUMMARY: &str = "short test summary info";

/// Sections in which tests and their output are quoted.
const QUOTING: [&str; 6] = [
    "FAILURES",
    "ERRORS",
    "PASSES",
    "XPASSES",
    "XFAILURES",
    "warnings summary",
];

pub(super) fn is_format(line: &str) -> bool {
    let known = |title: &str| {
        title == BEGIN || title == SUMMARY || QUOTING.contains(&title) || sums(title).is_some()
    };
    rule(line, '=').is_some_and(known) || sums(line).is_some()
}

#[derive(Debug, Default)]
pub(super) struct PytestReader {
    /// Width of the section titles of this run; `None` before the first one.
    width: Option<usize>,
    section: PytestSection,
    /// Number of quoted pytest runs in the output that have not ended.
    nested: u32,
    /// Name of a test that has no result yet; `None` if there is none.
    pending: Option<String>,
    /// Whether tests run in several workers. Then a new line does not end the test of the line before it.
    workers: bool,
    /// The counts when this run began, which may include earlier runs.
    before: Counts,
    /// Number of tests that passed but failed in teardown. The totals count them twice: as passed and as errors.
    torn: u64,
    summed_up: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PytestSection {
    #[default]
    Progress,
    Quoted,
    Summary,
}

impl LineReader for PytestReader {
    fn line(&mut self, line: Line<'_>, into: &mut Collector) {
        if let Some(title) = self.rule(line.text, '=') {
            self.section_started(title, line.number, into);
            self.width.get_or_insert(line.text.chars().count());
            return;
        }
        if self.section == PytestSection::Quoted {
            return;
        }
        if let Some(reason) = self.rule(line.text, '!') {
            into.problem(
                line.number,
                format!("the test run was interrupted: {reason}"),
            );
            return;
        }
        // With `-q` the totals line has no `===` around it.
        if let Some(sums) = sums(line.text) {
            self.add_summary(sums, line.number, into);
            return;
        }
        match self.section {
            PytestSection::Progress => self.progress(line, into),
            PytestSection::Summary => {
                if let Some((name, verdict)) = summary_line(line.text) {
                    self.add(name, verdict, line.number, into);
                }
            }
            PytestSection::Quoted => {}
        }
    }

    fn end(&mut self, line: u64, into: &mut Collector) {
        if self.summed_up {
            return;
        }
        if let Some(name) = self.pending.take().filter(|_| !self.workers) {
            self.add(&name, Verdict::Errored, line, into);
        }
        into.problem(line, "it ends before its sums");
    }
}

impl PytestReader {
    fn rule<'a>(&self, line: &'a str, of: char) -> Option<&'a str> {
        let title = rule(line, of)?;
        let width = line.chars().count();
        // A title that is too long for the width has one character at each end.
        let fits = |own: usize| width == own || (width > own && line.get(1..2) == Some(" "));
        let begins = title == BEGIN && self.section != PytestSection::Quoted;
        (begins || self.width.is_none_or(fits)).then_some(title)
    }

    fn section_started(&mut self, title: &str, line: u64, into: &mut Collector) {
        let sums = sums(title);
        if self.section == PytestSection::Quoted && title == BEGIN {
            self.nested += 1;
        } else if self.nested > 0 {
            self.nested -= u32::from(sums.is_some());
        } else if title == BEGIN {
            // The line before this one may belong to another run with another width.
            *self = Self {
                before: into.named(),
                ..Self::default()
            };
        } else if title == SUMMARY {
            self.section = PytestSection::Summary;
        } else if let Some(sums) = sums {
            self.add_summary(sums, line, into);
        } else if QUOTING.contains(&title) || title.starts_with("slowest ") {
            self.section = PytestSection::Quoted;
        }
    }

    fn progress(&mut self, line: Line<'_>, into: &mut Collector) {
        if let Some((name, verdict)) = of_worker(line.text) {
            self.workers = true;
            self.add(name, verdict, line.number, into);
        } else if let Some((name, rest)) = named(line.text) {
            self.pending = None;
            match verdict(rest) {
                Some(verdict) => self.add(name, verdict, line.number, into),
                None => self.pending = Some(first_word(line.text).to_owned()),
            }
        } else if let Some(verdict) = verdict(line.text)
            && let Some(name) = self.pending.take()
        {
            self.add(&name, verdict, line.number, into);
        }
    }

    fn add(&mut self, name: &str, verdict: Verdict, line: u64, into: &mut Collector) {
        let passed = Some(Verdict::Passed);
        if verdict == Verdict::Errored && into.verdict(&[name]) == passed {
            self.torn += 1;
        }
        into.add(line, &[name], verdict);
    }

    fn add_summary(&mut self, sums: PytestTotals, line: u64, into: &mut Collector) {
        let (all, before) = (into.named(), self.before);
        let passed =
            all.passed + all.flaky - before.passed.min(all.passed) - before.flaky.min(all.flaky);
        let skipped = all.skipped.saturating_sub(before.skipped);
        into.unnamed(
            Verdict::Passed,
            sums.passed.saturating_sub(passed + self.torn),
        );
        into.unnamed(Verdict::Skipped, sums.skipped.saturating_sub(skipped));
        let failed = all.failed.saturating_sub(before.failed);
        let errored = all.errored.saturating_sub(before.errored);
        if sums.failed + sums.errors > failed + errored {
            let (missing, all) = (
                sums.failed + sums.errors - failed - errored,
                sums.failed + sums.errors,
            );
            into.problem(
                line,
                format!("{missing} of {all} failed tests are not named"),
            );
        }
        *self = Self {
            width: self.width,
            before: into.named(),
            summed_up: true,
            ..Self::default()
        };
    }
}

/// Returns the title of a section, for example of `=== FAILURES ===`.
fn rule(line: &str, of: char) -> Option<&str> {
    let title = line.strip_prefix(of)?.strip_suffix(of)?.trim_matches(of);
    let title = title.strip_prefix(' ')?.strip_suffix(' ')?;
    (!title.is_empty()).then_some(title)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PytestTotals {
    passed: u64,
    failed: u64,
    skipped: u64,
    errors: u64,
}

/// Parses totals such as `3 failed, 8 passed, 1 xfailed, 3 errors in 0.04s`.
fn sums(text: &str) -> Option<PytestTotals> {
    let (sums, time) = text.rsplit_once(" in ")?;
    let time = time.split_once(' ').map_or(time, |(seconds, _)| seconds);
    time.strip_suffix('s')?.parse::<f64>().ok()?;
    let mut found = PytestTotals::default();
    if sums == "no tests ran" {
        return Some(found);
    }
    let mut known = false;
    for part in sums.split(", ") {
        let (count, what) = part.split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        let sum = match what {
            "passed" | "xpassed" => &mut found.passed,
            "failed" => &mut found.failed,
            "skipped" | "xfailed" => &mut found.skipped,
            "error" | "errors" => &mut found.errors,
            // Other words come from plugins.
            _ => {
                known |= matches!(what, "deselected" | "warning" | "warnings" | "rerun");
                continue;
            }
        };
        known = true;
        *sum = sum.saturating_add(count);
    }
    known.then_some(found)
}

/// Parses a line such as `[gw0] [  6%] PASSED test_calc.py::test_passes `.
fn of_worker(line: &str) -> Option<(&str, Verdict)> {
    let (_, rest) = line.strip_prefix("[gw")?.split_once("] ")?;
    let rest = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once("] ")?.1,
        None => rest,
    };
    let (word, name) = rest.split_once(' ')?;
    Some((name.trim_end(), verdict_of_word(word)?))
}

/// Splits a line that begins with the name of a test into the name and the rest.
fn named(line: &str) -> Option<(&str, &str)> {
    let (file, _) = line.split_once("::")?;
    if file.is_empty() || file.contains(char::is_whitespace) {
        return None;
    }
    // Parameters in a name can contain spaces. The name ends before the first word that is a result.
    let ends = line.match_indices(' ').map(|(at, _)| at);
    let mut found = ends.filter(|at| {
        line.get(at + 1..)
            .is_some_and(|rest| verdict(rest).is_some())
    });
    match found.next() {
        Some(at) => Some((line.get(..at)?.trim_end(), line.get(at + 1..)?)),
        None => Some((first_word(line), "")),
    }
}

/// Returns the name of a test at the start of a line with other text.
fn first_word(line: &str) -> &str {
    let space = line.find(' ').unwrap_or(line.len());
    let end = match line.find('[').filter(|bracket| *bracket < space) {
        Some(_) => line.find("] ").map_or(line.len(), |end| end + 1),
        None => space,
    };
    line.get(..end).unwrap_or(line)
}

/// Parses a result such as `SKIPPED (not today)     [ 33%]`.
fn verdict(text: &str) -> Option<Verdict> {
    let end = text.find(' ').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let rest = rest.trim_start();
    let ends = rest.is_empty() || rest.starts_with('(') || rest.starts_with('[');
    verdict_of_word(word).filter(|_| ends)
}

fn verdict_of_word(word: &str) -> Option<Verdict> {
    match word {
        "PASSED" | "XPASS" => Some(Verdict::Passed),
        "FAILED" => Some(Verdict::Failed),
        "ERROR" => Some(Verdict::Errored),
        "SKIPPED" | "XFAIL" => Some(Verdict::Skipped),
        // The test failed and is repeated. If it passes then, it is flaky.
        "RERUN" => Some(Verdict::Flaky),
        _ => None,
    }
}

/// Parses a line of the summary such as `FAILED test_calc.py::test_many[c - d-2] - AssertionError: assert ...`.
fn summary_line(line: &str) -> Option<(&str, Verdict)> {
    let (word, rest) = line.split_once(' ')?;
    let verdict = verdict_of_word(word)?;
    // The summary shows skipped tests as a count and a location, without their names.
    if rest.starts_with('[') {
        return None;
    }
    let dash = rest.find(" - ").unwrap_or(rest.len());
    let end = match rest.find('[').filter(|bracket| *bracket < dash) {
        Some(_) => rest.find("] - ").map_or(rest.len(), |end| end + 1),
        None => dash,
    };
    Some((rest.get(..end)?.trim_end(), verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_distinguished_from_other_lines() {
        let sum = |passed, failed, skipped, errors| {
            Some(PytestTotals {
                passed,
                failed,
                skipped,
                errors,
            })
        };
        for (text, expected) in [
            (
                "3 failed, 8 passed, 1 skipped, 1 xfailed, 1 xpassed, 3 errors in 0.04s",
                sum(9, 3, 2, 3),
            ),
            ("1 passed in 100.04s (0:01:40)", sum(1, 0, 0, 0)),
            ("1 failed, 1 passed, 3 rerun in 0.03s", sum(1, 1, 0, 0)),
            ("15 deselected in 0.01s", sum(0, 0, 0, 0)),
            ("no tests ran in 0.01s", sum(0, 0, 0, 0)),
            ("12 monkeys in 0.01s", None),
            ("1 passed in no time", None),
            ("passed in 0.01s", None),
        ] {
            assert_eq!(sums(text), expected, "{text}");
        }
    }

    #[test]
    fn pytest_test_name_ends_before_the_result() {
        for (line, name, expected) in [
            (
                "t.py::test_a PASSED        [  6%]",
                "t.py::test_a",
                Some(Verdict::Passed),
            ),
            (
                "t.py::test_a[a b-1] FAILED [ 60%]",
                "t.py::test_a[a b-1]",
                Some(Verdict::Failed),
            ),
            (
                "t.py::test_a SKIPPED (PASSED elsewhere) [ 1%]",
                "t.py::test_a",
                Some(Verdict::Skipped),
            ),
            ("t.py::test_a PASSED", "t.py::test_a", Some(Verdict::Passed)),
            ("t.py::test_a said PASSED something", "t.py::test_a", None),
            ("t.py::test_a[x y] and more", "t.py::test_a[x y]", None),
        ] {
            let (found, rest) = named(line).expect(line);
            assert_eq!((found, verdict(rest)), (name, expected), "{line}");
        }
        assert_eq!(named("see std::vec PASSED"), None);
        for (line, name, expected) in [
            ("FAILED t.py::a - assert x - y", "t.py::a", Verdict::Failed),
            (
                "FAILED t.py::a[c - d] - assert x",
                "t.py::a[c - d]",
                Verdict::Failed,
            ),
            ("PASSED t.py::a[c - d]", "t.py::a[c - d]", Verdict::Passed),
            ("ERROR t.py", "t.py", Verdict::Errored),
            (
                "FAILED t.py::a - assert [1] - [2]",
                "t.py::a",
                Verdict::Failed,
            ),
        ] {
            assert_eq!(summary_line(line), Some((name, expected)), "{line}");
        }
        assert_eq!(summary_line("SKIPPED [1] t.py:36: not today"), None);
    }
}
