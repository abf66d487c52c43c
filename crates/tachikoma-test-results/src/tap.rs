//! Reads the Test Anything Protocol (TAP), versions 12 to 14: with and without its first line, with the three forms of subtests (named before by a
//! comment, named after by their parent, in braces), and as `prove -v` prints it.
//!
//! A test with subtests is not counted itself, unless it failed and none of its subtests did.

use tachikoma_core::Verdict;

use super::collector::{Collector, NAMES_BYTES_MAX};
use super::lines::{Line, LineReader};

/// Indentation of a subtest in spaces.
const INDENT: usize = 4;

/// Maximum depth of subtests. Deeper subtests are treated as part of the last level.
const LEVELS_MAX: usize = 16;

/// Maximum size in bytes of subtest results that wait for the name of their parent. Further results are stored without the parent's name.
const WAITING_BYTES_MAX: usize = NAMES_BYTES_MAX;

/// Estimated memory of one result in bytes, without its name.
const RESULT_BYTES: usize = 32;

pub(super) fn is_format(line: &str) -> bool {
    let file = matches!(prove_line(line), Some((_, "")));
    file || line.starts_with("TAP version ") || plan(line).is_some() || point(line).is_some()
}

#[derive(Debug, Default)]
pub(super) struct TapReader {
    /// Name of the test file, as `prove` prints it; empty if unknown.
    file: String,
    levels: Vec<Level>,
    /// Size in bytes of subtest results that wait for the end of their parents.
    waiting: usize,
    /// Indentation of the open YAML block; `None` outside of a block.
    yaml: Option<usize>,
    began: bool,
}

#[derive(Debug, Default)]
struct Level {
    line: u64,
    plan: Option<u64>,
    seen: u64,
    /// Name of the next subtest, from the last comment.
    announced: String,
    /// Results of subtests, with names that do not include their parents yet.
    results: Vec<(String, Verdict)>,
    /// The test that opened the subtest with a brace; `None` for other forms.
    opened_by: Option<(String, Verdict)>,
}

impl LineReader for TapReader {
    fn line(&mut self, line: Line<'_>, into: &mut Collector) {
        let text = line.text.trim_start_matches(' ');
        let indent = line.text.len() - text.len();
        if let Some(yaml) = self.yaml {
            let over = text == "..." && indent <= yaml;
            // A test or plan outside of the block ends it, because an unclosed block must not hide the rest.
            let outside = indent < yaml && (point(text).is_some() || plan(text).is_some());
            if over || outside {
                self.yaml = None;
            }
            if !outside {
                return;
            }
        }
        let level = (indent / INDENT).min(LEVELS_MAX - 1);
        if text == "---" {
            self.yaml = Some(indent);
        } else if text == "}" {
            self.close_braces(level, line.number, into);
        } else if let Some(name) = text.strip_prefix("# Subtest: ") {
            self.level(level, line.number).announced = unescaped(name);
        } else if let Some(found) = point(text) {
            self.point(level, &found, line.number, into);
        } else if let Some(count) = plan(text) {
            self.plan(level, count, line.number, into);
        } else if text.starts_with("Bail out!") {
            self.began = true;
            into.problem(line.number, format!("the test run was interrupted: {text}"));
        } else if indent == 0 {
            self.other(text, line.number, into);
        }
    }

    fn end(&mut self, line: u64, into: &mut Collector) {
        self.stream_ended(line, into);
        if !self.began {
            into.problem(line, "no tests were run");
        }
    }
}

impl TapReader {
    fn level(&mut self, level: usize, line: u64) -> &mut Level {
        self.began = true;
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, || Level {
                line,
                ..Level::default()
            });
        }
        // The list is not empty, because it was just extended.
        let last = self.levels.len() - 1;
        &mut self.levels[level.min(last)]
    }

    fn point(&mut self, level: usize, found: &Point<'_>, line: u64, into: &mut Collector) {
        let children = self.close_above(level, line, into);
        let here = self.level(level, line);
        here.seen += 1;
        let name = match unescaped(found.name) {
            name if name.is_empty() => format!("test {}", here.seen),
            name => name,
        };
        here.announced.clear();
        if found.opens {
            self.level(level + 1, line).opened_by = Some((name, found.verdict));
            return;
        }
        self.group(level, name, found.verdict, children, line, into);
    }

    /// Ends a test and adds the results of its subtests.
    fn group(
        &mut self,
        level: usize,
        name: String,
        verdict: Verdict,
        children: Vec<(String, Verdict)>,
        line: u64,
        into: &mut Collector,
    ) {
        let explained = children.iter().any(|(_, verdict)| verdict.is_failure());
        let alone = children.is_empty();
        for (child, verdict) in children {
            self.result(level, format!("{name} > {child}"), verdict, line, into);
        }
        if alone || (verdict.is_failure() && !explained) {
            self.result(level, name, verdict, line, into);
        }
    }

    fn result(
        &mut self,
        level: usize,
        name: String,
        verdict: Verdict,
        line: u64,
        into: &mut Collector,
    ) {
        let bytes = name.len() + RESULT_BYTES;
        if level == 0 || self.waiting + bytes > WAITING_BYTES_MAX {
            into.add(line, &[&self.file, &name], verdict);
        } else {
            self.waiting += bytes;
            self.level(level, line).results.push((name, verdict));
        }
    }

    fn plan(&mut self, level: usize, count: u64, line: u64, into: &mut Collector) {
        // A stream has one plan, so a second plan at the top level begins another stream.
        let another = level == 0
            && self
                .levels
                .first()
                .is_some_and(|level| level.plan.is_some());
        if another {
            self.stream_ended(line, into);
        }
        self.level(level, line).plan = Some(count);
    }

    /// Closes the deeper levels and returns the results for the next test of this level.
    fn close_above(
        &mut self,
        level: usize,
        line: u64,
        into: &mut Collector,
    ) -> Vec<(String, Verdict)> {
        while self.levels.len() > level + 2 {
            self.close_last(line, into);
        }
        if self.levels.len() < level + 2 {
            return Vec::new();
        }
        let Some(children) = self.levels.pop() else {
            return Vec::new();
        };
        children.check_plan(into);
        self.stop_waiting_for_plan(&children);
        match children.opened_by {
            // The closing brace of the subtest is missing.
            Some((name, verdict)) => {
                self.group(level, name, verdict, children.results, line, into);
                Vec::new()
            }
            None => children.results,
        }
    }

    fn stop_waiting_for_plan(&mut self, level: &Level) {
        let bytes = level
            .results
            .iter()
            .map(|(name, _)| name.len() + RESULT_BYTES);
        self.waiting = self.waiting.saturating_sub(bytes.sum());
    }

    /// Closes the deepest level without a parent. The comment before it may contain its name.
    fn close_last(&mut self, line: u64, into: &mut Collector) {
        let Some(last) = self.levels.pop() else {
            return;
        };
        last.check_plan(into);
        let Some(parent) = self.levels.len().checked_sub(1) else {
            return;
        };
        self.stop_waiting_for_plan(&last);
        let name = match last.opened_by {
            Some((name, _)) => name,
            None => std::mem::take(&mut self.level(parent, line).announced),
        };
        for (child, verdict) in last.results {
            let child = match name.is_empty() {
                true => child,
                false => format!("{name} > {child}"),
            };
            self.result(parent, child, verdict, line, into);
        }
    }

    fn close_braces(&mut self, level: usize, line: u64, into: &mut Collector) {
        while self.levels.len() > level + 2 {
            self.close_last(line, into);
        }
        let opened = self
            .levels
            .get_mut(level + 1)
            .and_then(|inside| inside.opened_by.take());
        if let Some((name, verdict)) = opened {
            let children = self.close_above(level, line, into);
            self.group(level, name, verdict, children, line, into);
        }
    }

    /// Handles a line that is not TAP. `prove -v` prints the name of the test file before its results.
    fn other(&mut self, text: &str, line: u64, into: &mut Collector) {
        if text.starts_with("TAP version ") {
            self.stream_ended(line, into);
            self.level(0, line);
        } else if let Some((file, rest)) = prove_line(text) {
            let skipped = rest.starts_with("skipped");
            if rest.is_empty() || skipped {
                self.stream_ended(line, into);
                file.clone_into(&mut self.file);
            }
            if skipped {
                into.add(line, &[file], Verdict::Skipped);
            }
        } else if let Some(reason) = text.strip_prefix("Bailout called.") {
            into.problem(
                line,
                format!("the test run was interrupted: {}", reason.trim()),
            );
        }
    }

    fn stream_ended(&mut self, line: u64, into: &mut Collector) {
        while !self.levels.is_empty() {
            if self.levels.len() > 1 {
                let text = "a group of tests has not ended";
                into.problem(line, text);
            }
            self.close_last(line, into);
        }
        self.waiting = 0;
        self.yaml = None;
    }
}

impl Level {
    fn check_plan(&self, into: &mut Collector) {
        match self.plan {
            Some(plan) if plan > self.seen => {
                let text = format!("{plan} tests were planned and {} were seen", self.seen);
                into.problem(self.line, text);
            }
            // This is not checked further: Vitest counts failed groups as tests, and a stream without a plan may be incomplete.
            Some(_) => {}
            None => into.problem(
                self.line,
                "the plan is missing, so tests may be missing too",
            ),
        }
    }
}

struct Point<'a> {
    verdict: Verdict,
    name: &'a str,
    /// Whether the subtests of the test follow in braces.
    opens: bool,
}

/// Parses a result such as `not ok 2 - inside another # TODO not yet`.
fn point(text: &str) -> Option<Point<'_>> {
    let (ok, rest) = match text.strip_prefix("not ok") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix("ok")?),
    };
    if !(rest.is_empty() || rest.starts_with(' ')) {
        return None;
    }
    let rest = rest.trim_start();
    let digits = rest.len()
        - rest
            .trim_start_matches(|digit: char| digit.is_ascii_digit())
            .len();
    let (_, rest) = rest.split_at(digits);
    // A line of prose can also begin with "ok".
    if digits == 0 && !(rest.is_empty() || rest.starts_with("- ") || rest.starts_with('#')) {
        return None;
    }
    let (rest, opens) = match rest.strip_suffix('{') {
        Some(rest) if rest.is_empty() || rest.ends_with(' ') => (rest, true),
        Some(_) | None => (rest, false),
    };
    let (name, directive) = directive(rest);
    let verdict = match (directive, ok) {
        // The result of a test with a `SKIP` or `TODO` directive is ignored.
        (true, _) => Verdict::Skipped,
        (false, true) => Verdict::Passed,
        (false, false) => Verdict::Failed,
    };
    let name = name.trim();
    let name = name.strip_prefix('-').map_or(name, str::trim_start);
    Some(Point {
        verdict,
        name,
        opens,
    })
}

/// Returns the name of a test, and whether the test has a `SKIP` or `TODO` directive.
fn directive(rest: &str) -> (&str, bool) {
    let marks = rest.match_indices('#').filter(|(at, _)| {
        let before = rest.get(..*at).unwrap_or_default();
        before.is_empty() || before.ends_with(' ')
    });
    for (at, _) in marks {
        let (name, after) = rest.split_at(at);
        let word = after
            .trim_start_matches('#')
            .trim_start()
            .to_ascii_lowercase();
        if word.starts_with("skip") || word.starts_with("todo") {
            return (name, true);
        }
        if word.starts_with("time=") {
            return (name, false);
        }
    }
    (rest, false)
}

/// Parses the name of a test file that `prove` prints (`t/calc.t ..... `). Returns the file and the text after it.
fn prove_line(text: &str) -> Option<(&str, &str)> {
    let (file, rest) = text.split_once(" ..")?;
    let named = !file.contains(char::is_whitespace) && file.contains('.');
    named.then(|| (file, rest.trim_start_matches('.').trim()))
}

fn plan(text: &str) -> Option<u64> {
    let rest = text.strip_prefix("1..")?;
    let count = rest.split([' ', '#']).next()?;
    count.parse().ok()
}

fn unescaped(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let mut characters = name.trim().chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('\\', Some('#' | '\\')) => plain.extend(characters.next()),
            _ => plain.push(character),
        }
    }
    plain
}
