//! Reads the text output of `cargo nextest run`: one line per test with its state in a fixed column, and a summary.

use tachikoma_core::Verdict;

use super::collector::Collector;
use super::lines::{Line, LineReader};

/// States are right-aligned to this column. Output of tests has another indentation.
const STATE_COLUMNS: usize = 12;

pub(super) fn is_format(line: &str) -> bool {
    line.starts_with(" Nextest run ID ") || started(line).is_some() || state_line(line).is_some()
}

/// State of reading the output of nextest.
#[derive(Debug, Default)]
pub(super) struct NextestReader {
    summed_up: bool,
    /// Whether the line with the number of tests (`Starting 8 tests`) was found.
    ran: bool,
}

impl LineReader for NextestReader {
    fn line(&mut self, line: Line<'_>, into: &mut Collector) {
        if let Some(summary) = line.text.strip_prefix("     Summary [") {
            self.summed_up = true;
            add_summary(summary, line.number, into);
            return;
        }
        if started(line.text).is_some() {
            self.ran = true;
            return;
        }
        let Some(state_line) = state_line(line.text) else {
            return;
        };
        let verdict = match state_line.state {
            State::Ended(verdict) => verdict,
            // Older versions do not number finished tests. There the list after the summary decides.
            State::Tried if state_line.counted || self.summed_up => Verdict::Failed,
            State::Tried | State::TriedAgain => Verdict::Flaky,
        };
        let parts = [state_line.binary, state_line.test];
        into.add(line.number, &parts, verdict);
    }

    fn end(&mut self, line: u64, into: &mut Collector) {
        if !self.summed_up {
            let text = match self.ran {
                true => "it ends before its summary",
                false => "no tests were run",
            };
            into.problem(line, text);
        }
    }
}

/// Parses a line such as `    Starting 8 tests across 2 binaries (1 test skipped)`.
fn started(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("    Starting ")?;
    rest.contains(" across ").then_some(rest)
}

/// Parses a summary such as `   0.173s] 7/8 tests run: 3 passed (1 flaky), 4 failed, 1 skipped`.
fn add_summary(summary: &str, line: u64, into: &mut Collector) {
    let Some((head, sums)) = summary
        .split_once("] ")
        .and_then(|(_, rest)| rest.split_once(" run: "))
    else {
        into.problem(line, format!("its summary does not read as one: {summary}"));
        return;
    };
    let count = head.split(' ').next().unwrap_or_default();
    if let Some((ran, all)) = count.split_once('/') {
        into.problem(
            line,
            format!("the test run was interrupted: {ran} of {all} tests ran"),
        );
    }
    let named = into.named();
    let mut failed = 0;
    for part in sums.split(", ") {
        let mut words = part.split(' ');
        let (Some(count), Some(what)) = (words.next(), words.next()) else {
            continue;
        };
        let Ok(count) = count.parse::<u64>() else {
            continue;
        };
        match what {
            "passed" => {
                into.unnamed(
                    Verdict::Passed,
                    count.saturating_sub(named.passed + named.flaky),
                );
            }
            "skipped" => into.unnamed(Verdict::Skipped, count.saturating_sub(named.skipped)),
            // All other words are kinds of failures: "failed", "timed out", "exec failed".
            _ => failed += count,
        }
    }
    // With retries and an old version some failed tests count as flaky here. The list that follows corrects it.
    if failed > named.failed + named.errored + named.flaky {
        let missing = failed - named.failed - named.errored;
        into.problem(
            line,
            format!("{missing} of {failed} failed tests are not named"),
        );
    }
}

struct StateLine<'a> {
    state: State,
    /// Whether the line has a progress counter such as `(1/8)`. Only lines of finished tests have one.
    counted: bool,
    binary: &'a str,
    test: &'a str,
}

enum State {
    Ended(Verdict),
    /// The test failed in an attempt that may be the last.
    Tried,
    /// The test passed in a later attempt.
    TriedAgain,
}

/// Parses a line such as `        FAIL [   0.007s] (1/8) fixture::it tests::flickers`.
fn state_line(line: &str) -> Option<StateLine<'_>> {
    let (state, rest) = line.split_once(" [")?;
    if state.chars().count() != STATE_COLUMNS {
        return None;
    }
    let state = state_of(state.trim_start())?;
    let (_, rest) = rest.split_once("] ")?;
    let rest = rest.trim_start();
    let (counted, rest) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (counter, rest) = rest.split_once(") ")?;
            (counter.contains('/'), rest.trim_start())
        }
        None => (false, rest),
    };
    let (binary, test) = rest.split_once(' ')?;
    Some(StateLine {
        state,
        counted,
        binary,
        test,
    })
}

fn state_of(text: &str) -> Option<State> {
    if let Some(rest) = text.strip_prefix("TRY ") {
        let (_, state) = rest.split_once(' ')?;
        return match ended(state)? {
            Verdict::Passed => Some(State::TriedAgain),
            Verdict::Skipped | Verdict::Flaky => None,
            Verdict::Failed | Verdict::Errored => Some(State::Tried),
        };
    }
    if text.starts_with("FLAKY ") {
        return Some(State::Ended(Verdict::Flaky));
    }
    if text.starts_with("FLKY-FL ") {
        return Some(State::Ended(Verdict::Failed));
    }
    ended(text).map(State::Ended)
}

fn ended(state: &str) -> Option<Verdict> {
    match state {
        // A test that leaves a process running passes, unless it is configured to fail.
        "PASS" | "LEAK" | "PASS + LEAK" | "TMPASS" => Some(Verdict::Passed),
        "SKIP" => Some(Verdict::Skipped),
        "FAIL" | "TIMEOUT" | "TMT" | "ABORT" | "LEAK-FAIL" | "LKFAIL" | "FAIL + LEAK" | "FL+LK" => {
            Some(Verdict::Failed)
        }
        "XFAIL" => Some(Verdict::Errored),
        _ => state.starts_with("SIG").then_some(Verdict::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_only_in_its_column() {
        let seen = |line| {
            state_line(line).map(|found| match found.state {
                State::Ended(verdict) => format!("{verdict}: {} {}", found.binary, found.test),
                State::Tried => format!("tried {}: {} {}", found.counted, found.binary, found.test),
                State::TriedAgain => format!("again: {} {}", found.binary, found.test),
            })
        };
        for (line, expected) in [
            (
                "        PASS [   0.076s] (2/8) fixture tests::a",
                Some("passed: fixture tests::a"),
            ),
            (
                "        PASS [   0.076s] fixture tests::a",
                Some("passed: fixture tests::a"),
            ),
            (
                "     SIGABRT [   0.007s] (6/9) fixture::it tests::dies",
                Some("failed: fixture::it tests::dies"),
            ),
            (
                "        SKIP [         ] (───) fixture tests::ignored",
                Some("skipped: fixture tests::ignored"),
            ),
            (
                "  TRY 1 FAIL [   0.008s] (───) fixture tests::a",
                Some("tried false: fixture tests::a"),
            ),
            (
                "  TRY 3 FAIL [   0.007s] (1/8) fixture tests::a",
                Some("tried true: fixture tests::a"),
            ),
            (
                "  TRY 2 PASS [   0.005s] (8/8) fixture::it t",
                Some("again: fixture::it t"),
            ),
            (
                "   FLAKY 2/3 [   0.005s] (8/8) fixture::it t",
                Some("flaky: fixture::it t"),
            ),
            ("        SLOW [> 60.000s] (───) fixture t", None),
            ("    PASS [   0.076s] (2/8) quoted by a test", None),
            ("        PASS", None),
            ("        PASS [", None),
        ] {
            assert_eq!(seen(line).as_deref(), expected, "{line}");
        }
    }
}
