//! Reads `go test -json`: one event per line.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use tachikoma_core::{TestId, Verdict};

use super::collector::{Collector, TESTS_MAX};
use super::lines::{Line, LineReader};

pub(super) fn is_format(line: &str) -> bool {
    (line.starts_with('{') && line.contains("\"Action\":\"")) || not_built(line).is_some()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event<'a> {
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(borrow, default)]
    package: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    test: Option<Cow<'a, str>>,
}

#[derive(Debug, Default)]
pub(super) struct GoReader {
    /// Tests that have begun and not ended, with their packages. Older versions of Go report lines that a test printed as
    /// results, so results of tests that did not begin are ignored.
    running: HashMap<TestId, TestId>,
    /// Packages that have begun and not ended.
    open: HashSet<TestId>,
    /// Packages with at least one failed test.
    failed: HashSet<TestId>,
    ended: bool,
}

impl LineReader for GoReader {
    fn line(&mut self, line: Line<'_>, into: &mut Collector) {
        if let Some(package) = not_built(line.text) {
            into.add(line.number, &[package], Verdict::Errored);
        }
        if !line.text.starts_with('{') {
            return;
        }
        // Output events are skipped: they are not needed, and only they have a long field.
        if line.text.contains("\"Action\":\"output\"")
            || (line.cut && line.text.contains("\"Output\":"))
        {
            return;
        }
        match serde_json::from_str::<Event<'_>>(line.text) {
            Ok(event) => self.event(&event, line.number, into),
            Err(error) => into.problem(line.number, format!("no event of go test: {error}")),
        }
    }

    fn end(&mut self, line: u64, into: &mut Collector) {
        let (tests, packages) = (self.running.len(), self.open.len());
        if tests + packages > 0 {
            into.problem(
                line,
                format!(
                    "the output is incomplete: {packages} packages and {tests} tests have not ended"
                ),
            );
        } else if !self.ended && into.is_empty() {
            into.problem(line, "no tests were run");
        }
    }
}

impl GoReader {
    fn event(&mut self, event: &Event<'_>, line: u64, into: &mut Collector) {
        let Some(package) = event.package.as_deref() else {
            return;
        };
        let package_id = TestId::of(package);
        let verdict = match &*event.action {
            "pass" | "bench" => Verdict::Passed,
            "fail" => Verdict::Failed,
            "skip" => Verdict::Skipped,
            "run" => {
                if let Some(test) = &event.test
                    && self.running.len() < TESTS_MAX
                {
                    self.running.insert(id(package, test), package_id);
                }
                self.begin(package_id);
                return;
            }
            "start" => {
                self.begin(package_id);
                return;
            }
            // The actions pause, cont and output, and actions of later versions of Go, are ignored.
            _ => return,
        };
        match &event.test {
            Some(test) => {
                let known = self.running.remove(&id(package, test)).is_some();
                if known || self.running.len() >= TESTS_MAX {
                    if verdict.is_failure() && self.failed.len() < TESTS_MAX {
                        self.failed.insert(package_id);
                    }
                    into.add(line, &[package, test], verdict);
                }
            }
            None => self.package_ended(package, verdict, line, into),
        }
    }

    fn begin(&mut self, package: TestId) {
        if self.open.len() < TESTS_MAX {
            self.open.insert(package);
        }
    }

    fn package_ended(&mut self, package: &str, verdict: Verdict, line: u64, into: &mut Collector) {
        self.ended = true;
        let package_id = TestId::of(package);
        self.open.remove(&package_id);
        let before = self.running.len();
        self.running.retain(|_, of| *of != package_id);
        let cut = before - self.running.len();
        if cut > 0 {
            into.problem(
                line,
                format!("{cut} tests of {package} started but did not finish"),
            );
        }
        // The package failed without a failed test: it does not compile, or crashed outside of a test.
        if verdict.is_failure() && !self.failed.remove(&package_id) {
            into.add(line, &[package], Verdict::Errored);
        }
    }
}

fn id(package: &str, test: &str) -> TestId {
    // The separator is a newline, because neither name contains one.
    TestId::of(&format!("{package}\n{test}"))
}

/// Returns the package that could not be built. Go before 1.24 reports it as a plain line and not as an event.
fn not_built(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("FAIL\t")?;
    let failed = [" [build failed]", " [setup failed]"];
    failed.iter().find_map(|end| rest.strip_suffix(end))
}
