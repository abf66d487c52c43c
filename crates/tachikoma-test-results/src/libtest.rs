//! Reads the text output of `cargo test`.
//!
//! The output of tests is mixed in, with `--nocapture` even between the name of a test and its result. So the list of
//! failures and the totals of each binary are authoritative. Totals are used only if they match the announced number of tests.

use tachikoma_core::Verdict;

use super::collector::{Collector, Waiting};
use super::lines::{Line, LineReader};

/// Suffixes that rustdoc and libtest add to the name of a test.
const REMARKS: [&str; 3] = [" - should panic", " - compile fail", " - compile"];

pub(super) fn is_format(line: &str) -> bool {
    announced_count(line).is_some()
        || header(line).is_some()
        || line.starts_with("test result: ")
        || not_compiled(line).is_some()
}

/// State of reading one test binary, with its tests so far.
#[derive(Debug, Default)]
pub(super) struct LibtestReader {
    /// The package of the test binary; empty if it is unknown.
    package: String,
    binary: String,
    run: Option<Run>,
    ran: bool,
}

#[derive(Debug, Default)]
struct Run {
    line: u64,
    announced: u64,
    named: LibtestTotals,
    /// Tests without a result on the line of their name, because other output follows the name.
    waiting: Waiting,
    /// Whether the last test in `waiting` may still be running.
    last_waits: bool,
    section: LibtestSection,
    /// The names in the last list after `failures:`.
    listed: Waiting,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum LibtestSection {
    #[default]
    Tests,
    /// The lists after `failures:` and `successes:`, with quoted output and names of tests.
    Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LibtestTotals {
    passed: u64,
    failed: u64,
    ignored: u64,
    measured: u64,
}

impl LibtestTotals {
    const fn total(self) -> u64 {
        self.passed
            .saturating_add(self.failed)
            .saturating_add(self.ignored)
            .saturating_add(self.measured)
    }
}

impl LineReader for LibtestReader {
    fn line(&mut self, line: Line<'_>, into: &mut Collector) {
        let quoting = self
            .run
            .as_ref()
            .is_some_and(|run| run.section == LibtestSection::Output);
        if !quoting {
            if let Some((package, binary)) = header(line.text) {
                self.died(line.number, into);
                if let Some(package) = package {
                    package.clone_into(&mut self.package);
                }
                self.binary = match binary {
                    Binary::Package(suffix) => format!("{}{suffix}", self.package),
                    Binary::Other(name) if self.package.is_empty() => name.to_owned(),
                    Binary::Other(name) => format!("{}::{name}", self.package),
                };
                return;
            }
            let waits = self.run.as_ref().is_some_and(|run| run.last_waits);
            if let Some(count) = announced_count(line.text).filter(|_| !waits) {
                self.died(line.number, into);
                self.ran = true;
                self.run = Some(Run {
                    line: line.number,
                    announced: count,
                    ..Run::default()
                });
                return;
            }
            if let Some(package) = not_compiled(line.text) {
                into.problem(line.number, format!("{package} does not compile"));
            }
        }
        let Some(run) = &mut self.run else { return };
        if let Some(sums) = sums(line.text).filter(|sums| sums.total() == run.announced) {
            run.settle(&self.binary, sums, line.number, into);
            self.run = None;
            return;
        }
        run.line(&self.binary, line, into);
    }

    fn end(&mut self, line: u64, into: &mut Collector) {
        self.died(line, into);
        if !self.ran {
            into.problem(line, "no tests were run");
        }
    }
}

impl LibtestReader {
    /// Ends the current test binary. If its totals are missing, it crashed.
    fn died(&mut self, line: u64, into: &mut Collector) {
        let Some(run) = self.run.take() else { return };
        if run.last_waits
            && let Some(name) = run.waiting.last()
        {
            into.add(line, &[&self.binary, name], Verdict::Errored);
        }
        let (told, announced) = (run.named.total(), run.announced);
        let binary = shown(&self.binary);
        let text = format!("{binary} ended without its totals, after {told} of {announced} tests");
        into.problem(run.line, text);
    }
}

impl Run {
    fn line(&mut self, binary: &str, line: Line<'_>, into: &mut Collector) {
        let text = line.text;
        match text {
            "failures:" | "successes:" => {
                self.section = LibtestSection::Output;
                self.listed = Waiting::default();
                return;
            }
            _ => {}
        }
        if self.section == LibtestSection::Output {
            if let Some(name) = text.strip_prefix("    ") {
                self.listed.push(name);
            }
            return;
        }
        if let Some(name) = text.strip_suffix(" --- FAILED") {
            self.add(binary, name, Verdict::Failed, line.number, into);
            return;
        }
        let Some((name, verdict)) = text
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        else {
            return;
        };
        match verdict_of(verdict) {
            Some(verdict) => self.add(binary, name, verdict, line.number, into),
            None => {
                self.last_waits = true;
                self.waiting.push(name);
            }
        }
    }

    fn add(&mut self, binary: &str, name: &str, verdict: Verdict, line: u64, into: &mut Collector) {
        self.last_waits = false;
        match verdict {
            Verdict::Passed | Verdict::Flaky => self.named.passed += 1,
            Verdict::Failed | Verdict::Errored => self.named.failed += 1,
            Verdict::Skipped => self.named.ignored += 1,
        }
        into.add(line, &[binary, without_annotations(name)], verdict);
    }

    /// Handles the totals line. Tests that are still pending count as passed, unless they are listed as failures.
    fn settle(&mut self, binary: &str, sums: LibtestTotals, line: u64, into: &mut Collector) {
        let listed = match self.listed.len() as u64 == sums.failed {
            true => self.listed.take(),
            false => Vec::new(),
        };
        let mut listed: Vec<&str> = listed
            .iter()
            .map(|name| without_annotations(name))
            .collect();
        listed.sort_unstable();
        for name in self.waiting.take() {
            let failed = listed.binary_search(&without_annotations(&name)).is_ok();
            let verdict = if failed {
                Verdict::Failed
            } else {
                Verdict::Passed
            };
            self.add(binary, &name, verdict, line, into);
        }
        // Benchmarks are counted as passed tests.
        let passed = sums.passed.saturating_add(sums.measured);
        into.unnamed(Verdict::Passed, passed.saturating_sub(self.named.passed));
        into.unnamed(
            Verdict::Skipped,
            sums.ignored.saturating_sub(self.named.ignored),
        );
        if self.named.failed != sums.failed || self.named.passed > passed {
            let named = self.named.passed + self.named.failed;
            let failed = self.named.failed;
            let binary = shown(binary);
            into.problem(
                line,
                format!(
                    "{binary} counts {} passed and {} failed, but {named} tests are named and {failed} as failed",
                    passed, sums.failed
                ),
            );
        }
    }
}

fn shown(binary: &str) -> &str {
    match binary {
        "" => "a test binary",
        binary => binary,
    }
}

enum Binary<'a> {
    /// The binary is named after its package. The value is a suffix for that name: ` (doc)`, ` (main)` or empty.
    Package(&'a str),
    Other(&'a str),
}

/// Returns the binary that runs next, and its package if the line names it.
fn header(line: &str) -> Option<(Option<&str>, Binary<'_>)> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some((Some(package), Binary::Package(" (doc)")));
    }
    let (path, file) = line
        .strip_prefix("Running ")?
        .strip_suffix(')')?
        .rsplit_once(" (")?;
    let file = file.rsplit(['/', '\\']).next()?;
    let file = file.strip_suffix(".exe").unwrap_or(file);
    let (name, hash) = file.rsplit_once('-')?;
    if hash.len() != 16 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some(match path.strip_prefix("unittests ") {
        Some("src/lib.rs") => (Some(name), Binary::Package("")),
        Some("src/main.rs") => (Some(name), Binary::Package(" (main)")),
        Some(_) | None => (None, Binary::Other(name)),
    })
}

fn announced_count(line: &str) -> Option<u64> {
    let (count, word) = line.strip_prefix("running ")?.split_once(' ')?;
    matches!(word, "test" | "tests").then(|| count.parse().ok())?
}

fn not_compiled(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("error: could not compile ")?;
    Some(rest.split(" due to ").next().unwrap_or(rest))
}

/// Parses a line such as `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s`.
fn sums(line: &str) -> Option<LibtestTotals> {
    let (_, sums) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut found = LibtestTotals::default();
    for part in sums.split("; ") {
        let (count, what) = part.trim().split_once(' ')?;
        let field = match what {
            "passed" => &mut found.passed,
            "failed" => &mut found.failed,
            "ignored" => &mut found.ignored,
            "measured" => &mut found.measured,
            _ => continue,
        };
        *field = count.parse().ok()?;
    }
    Some(found)
}

fn verdict_of(text: &str) -> Option<Verdict> {
    // With `--report-time`, the duration follows the result.
    let word = match text.split_once(" <") {
        Some((word, time)) if time.ends_with("s>") => word,
        Some(_) | None => text,
    };
    match word {
        "ok" => Some(Verdict::Passed),
        "FAILED" | "FAILED (time limit exceeded)" => Some(Verdict::Failed),
        "ignored" => Some(Verdict::Skipped),
        _ if word.starts_with("ignored, ") => Some(Verdict::Skipped),
        _ if word.starts_with("bench: ") => Some(Verdict::Passed),
        _ => None,
    }
}

/// Returns a name without its suffix, and without the line number of a documentation example, which changes when the file is edited.
/// Several examples of one item are merged into one test with the worst result.
fn without_annotations(name: &str) -> &str {
    let mut name = name;
    for remark in REMARKS {
        name = name.strip_suffix(remark).unwrap_or(name);
    }
    let Some((item, line)) = name.rsplit_once(" (line ") else {
        return name;
    };
    match line.strip_suffix(')') {
        Some(line) if line.parse::<u32>().is_ok() => item,
        Some(_) | None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lines_name_the_package_and_the_binary() {
        let seen = |line| {
            header(line).map(|(package, binary)| match binary {
                Binary::Package(suffix) => format!("{}{suffix}", package.unwrap_or("?")),
                Binary::Other(name) => format!("?::{name}"),
            })
        };
        for (line, expected) in [
            (
                "     Running unittests src/lib.rs (target/debug/deps/fixture-87e618eceafbea9a)",
                Some("fixture"),
            ),
            (
                "     Running unittests src/main.rs (target/debug/deps/fixture-87e618eceafbea9a)",
                Some("fixture (main)"),
            ),
            (
                "     Running unittests src/bin/x.rs (target/debug/deps/x-87e618eceafbea9a)",
                Some("?::x"),
            ),
            (
                "     Running tests/it.rs (C:\\target\\debug\\deps\\it-87e618eceafbea9a.exe)",
                Some("?::it"),
            ),
            ("   Doc-tests fixture", Some("fixture (doc)")),
            ("     Running `target/debug/fixture`", None),
            ("     Running migrations (all-of-them)", None),
            ("Running", None),
        ] {
            assert_eq!(seen(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn libtest_suffix_is_removed_from_the_test_name() {
        for (name, expected) in [
            ("tests::a", "tests::a"),
            ("tests::a - should panic", "tests::a"),
            ("src/lib.rs - add (line 5)", "src/lib.rs - add"),
            (
                "src/lib.rs - twice (line 22) - compile fail",
                "src/lib.rs - twice",
            ),
            ("src/lib.rs - odd (line x)", "src/lib.rs - odd (line x)"),
        ] {
            assert_eq!(without_annotations(name), expected);
        }
    }

    #[test]
    fn verdict_is_parsed_from_the_end_of_a_libtest_line() {
        for (text, expected) in [
            ("ok", Some(Verdict::Passed)),
            ("ok <0.003s>", Some(Verdict::Passed)),
            ("FAILED", Some(Verdict::Failed)),
            ("ignored, takes <ages>", Some(Verdict::Skipped)),
            ("bench:          10 ns/iter (+/- 1)", Some(Verdict::Passed)),
            ("okay", None),
            ("", None),
        ] {
            assert_eq!(verdict_of(text), expected, "{text}");
        }
    }
}
