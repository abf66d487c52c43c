//! Collects the results of one test run: one entry for each test name, within limits, and the problems.

use std::collections::HashMap;

use tachikoma_core::{TestId, Verdict};

use super::{Counts, Format, Problem, Results, TestResult};

/// Maximum number of tests that are stored by name. The largest projects have a tenth of that in one run.
pub const TESTS_MAX: usize = 200_000;

/// Part of [`TESTS_MAX`] that is reserved for tests that did not pass, because users look for those.
const FREE_FOR_FAILURES: usize = 50_000;

/// Maximum length of one name in bytes. A longer name is truncated and ends with a hash of the whole name, so that names stay unique.
pub const NAME_BYTES_MAX: usize = 512;

/// Maximum length of all names together in bytes.
pub const NAMES_BYTES_MAX: usize = 32 << 20;

/// Part of [`NAMES_BYTES_MAX`] that is reserved for tests that did not pass.
const BYTES_FREE_FOR_FAILURES: usize = 8 << 20;

/// Maximum number of problems. Further ones are only counted.
pub const PROBLEMS_MAX: usize = 20;

/// Maximum length of a quotation in a problem, in bytes.
const PROBLEM_BYTES_MAX: usize = 300;

/// Collects the results of one run.
#[derive(Debug)]
pub(super) struct Collector {
    results: Results,
    index: HashMap<TestId, usize>,
    names_bytes: usize,
    /// Number of tests that were left out because of the limits.
    left_out: Counts,
    /// Number of tests that the runner counted without a name.
    unnamed: Counts,
    left_out_at: Option<u64>,
}

impl Collector {
    pub fn new(format: Format) -> Self {
        let results = Results {
            format,
            tests: Vec::new(),
            counts: Counts::default(),
            unnamed: 0,
            problems: Vec::new(),
            problems_left_out: 0,
        };
        Self {
            results,
            index: HashMap::new(),
            names_bytes: 0,
            left_out: Counts::default(),
            unnamed: Counts::default(),
            left_out_at: None,
        }
    }

    pub const fn format(&self) -> Format {
        self.results.format
    }

    /// Adds the result of one test. `parts` are the parts of its name, from the outside in. Of two results with the same name the worse
    /// one is used.
    pub fn add(&mut self, line: u64, parts: &[&str], verdict: Verdict) {
        let name = join(parts);
        let id = TestId::of(&name);
        if let Some(test) = self
            .index
            .get(&id)
            .and_then(|at| self.results.tests.get_mut(*at))
        {
            test.verdict = test.verdict.max(verdict);
            return;
        }
        let (tests, bytes) = match verdict.is_failure() {
            true => (TESTS_MAX, NAMES_BYTES_MAX),
            false => (
                TESTS_MAX - FREE_FOR_FAILURES,
                NAMES_BYTES_MAX - BYTES_FREE_FOR_FAILURES,
            ),
        };
        if self.results.tests.len() >= tests || self.names_bytes + name.len() > bytes {
            *self.left_out.of(verdict) += 1;
            self.left_out_at.get_or_insert(line);
            return;
        }
        self.names_bytes += name.len();
        self.index.insert(id, self.results.tests.len());
        self.results.tests.push(TestResult { name, verdict });
    }

    /// Returns the result of a test so far; `None` if it has none.
    pub fn verdict(&self, parts: &[&str]) -> Option<Verdict> {
        let at = self.index.get(&TestId::of(&join(parts)))?;
        self.results.tests.get(*at).map(|test| test.verdict)
    }

    /// Adds tests that were counted but not named.
    pub fn unnamed(&mut self, verdict: Verdict, count: u64) {
        let sum = self.unnamed.of(verdict);
        *sum = sum.saturating_add(count);
    }

    /// Returns the number of tests with names, including those that were left out.
    pub fn named(&self) -> Counts {
        let mut counts = self.left_out;
        for test in &self.results.tests {
            *counts.of(test.verdict) += 1;
        }
        counts
    }

    /// Returns whether there is no result yet.
    pub const fn is_empty(&self) -> bool {
        self.results.tests.is_empty()
    }

    /// Adds a problem: results are missing or may be wrong.
    pub fn problem(&mut self, line: u64, text: impl Into<String>) {
        if self.results.problems.len() >= PROBLEMS_MAX {
            self.results.problems_left_out += 1;
            return;
        }
        let text = clean(&text.into(), PROBLEM_BYTES_MAX);
        self.results.problems.push(Problem { line, text });
    }

    pub fn finish(mut self) -> Results {
        let mut counts = self.named();
        for verdict in Verdict::ALL {
            let sum = counts.of(verdict);
            *sum = sum.saturating_add(*self.unnamed.of(verdict));
        }
        if let Some(line) = self.left_out_at {
            let count = self.left_out.total();
            let text =
                format!("{count} tests were counted without their names: there are too many");
            // If the list is full, this problem replaces the last one, because it is more important.
            self.results.problems.truncate(PROBLEMS_MAX - 1);
            self.problem(line, text);
        }
        self.results.counts = counts;
        self.results.unnamed = self.unnamed.total();
        self.results
    }
}

/// Names of tests without a result so far. Names beyond a size limit are dropped.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    names: Vec<String>,
    bytes: usize,
}

/// Maximum total size of pending names in bytes.
const WAITING_BYTES_MAX: usize = 4 << 20;

impl Waiting {
    pub fn push(&mut self, name: &str) {
        let bytes = self.bytes + name.len() + size_of::<String>();
        if bytes <= WAITING_BYTES_MAX {
            self.bytes = bytes;
            self.names.push(name.to_owned());
        }
    }

    pub fn take(&mut self) -> Vec<String> {
        self.bytes = 0;
        std::mem::take(&mut self.names)
    }

    pub fn last(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }

    pub const fn len(&self) -> usize {
        self.names.len()
    }
}

/// Joins the parts of a name. A part that repeats the part before it is left out.
fn join(parts: &[&str]) -> String {
    let mut name = String::new();
    let mut before = "";
    for part in parts.iter().map(|part| part.trim()) {
        if part.is_empty() || part == before {
            continue;
        }
        if !name.is_empty() {
            name.push_str(" > ");
        }
        name.push_str(part);
        before = part;
    }
    if name.is_empty() {
        name.push_str("(without a name)");
    }
    clean(&name, NAME_BYTES_MAX)
}

/// Makes a text safe to show and to record: removes control and bidirectional characters, and limits its length.
fn clean(text: &str, bytes_max: usize) -> String {
    let obeyed = |character: char| {
        character.is_control()
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let mut clean: String = match !plain && text.contains(obeyed) {
        true => {
            let text = anstream::adapter::strip_str(text).to_string();
            text.replace(obeyed, " ")
        }
        false => text.to_owned(),
    };
    if clean.len() > bytes_max {
        let id = TestId::of(&clean);
        let mark = format!("...{id}");
        clean.truncate(clean.floor_char_boundary(bytes_max - mark.len()));
        clean.push_str(&mark);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector() -> Collector {
        Collector::new(Format::Tap)
    }

    #[test]
    fn names_are_joined_cleaned_and_bounded() {
        for (parts, name) in [
            (&["a", "b"][..], "a > b"),
            (&["a", "a", "b", ""], "a > b"),
            (&[" a ", "", "a"], "a"),
            (&[], "(without a name)"),
            (&["\u{1b}[31mred\u{1b}[0m\nline\u{202e}x"], "red line x"),
        ] {
            assert_eq!(join(parts), name);
        }
        let (long, other) = ("é".repeat(1000), format!("{}x", "é".repeat(999)));
        let (long, other) = (join(&[&long]), join(&[&other]));
        assert!(
            long.len() <= NAME_BYTES_MAX && long.len() > NAME_BYTES_MAX - 3,
            "{}",
            long.len()
        );
        assert_ne!(long, other, "long names with different ends stay different");
    }

    #[test]
    fn worse_of_two_results_with_the_same_name_is_used() {
        let mut into = collector();
        into.add(1, &["a"], Verdict::Failed);
        into.add(2, &["a"], Verdict::Passed);
        into.add(3, &["b"], Verdict::Skipped);
        into.add(4, &["b"], Verdict::Passed);
        into.unnamed(Verdict::Passed, 3);
        let results = into.finish();
        assert_eq!(
            results.counts,
            Counts {
                passed: 4,
                failed: 1,
                ..Counts::default()
            }
        );
        assert_eq!((results.unnamed, results.tests.len()), (3, 2));
        assert!(results.is_complete());
    }

    #[test]
    fn too_many_tests_are_counted_and_slots_are_reserved_for_failures() {
        let mut into = collector();
        for number in 0..240_000_u64 {
            let verdict = match number < 180_000 {
                true => Verdict::Passed,
                false => Verdict::Failed,
            };
            into.add(number + 1, &[&number.to_string()], verdict);
        }
        let results = into.finish();
        assert_eq!(
            (results.counts.passed, results.counts.failed),
            (180_000, 60_000)
        );
        assert_eq!(results.tests.len(), TESTS_MAX);
        let failed = |test: &&TestResult| test.verdict == Verdict::Failed;
        assert_eq!(
            results.tests.iter().filter(failed).count(),
            FREE_FOR_FAILURES
        );
        assert_eq!(
            results.problems[0].to_string(),
            "line 150001: 40000 tests were counted without their names: there are too many"
        );
    }

    #[test]
    fn long_names_and_problems_are_limited_separately() {
        let mut into = collector();
        let long = "x".repeat(600);
        for number in 0..60_000 {
            into.add(1, &[&number.to_string(), &long], Verdict::Passed);
            into.problem(number, long.as_str());
        }
        let results = into.finish();
        let bytes: usize = results.tests.iter().map(|test| test.name.len()).sum();
        assert!(bytes <= NAMES_BYTES_MAX, "{bytes}");
        assert_eq!(results.counts.passed, 60_000);
        assert_eq!(results.problems.len(), PROBLEMS_MAX);
        assert_eq!(results.problems_left_out, 60_000 - PROBLEMS_MAX as u64);
        assert!(
            results
                .problems
                .iter()
                .all(|problem| problem.text.len() <= PROBLEM_BYTES_MAX)
        );
    }
}
