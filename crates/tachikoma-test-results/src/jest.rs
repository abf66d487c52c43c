//! Reads the JSON reports of Jest and Vitest.

use std::fmt;

use serde::de::{Error, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer};
use tachikoma_core::Verdict;

use super::ResultsError;
use super::collector::Collector;

/// Maximum number of nested groups that become part of a test name.
const ANCESTORS_MAX: usize = 32;

/// The JSON key of the list of test files.
const TEST_RESULTS: &str = "\"testResults\"";

/// Reads a whole document, which begins at `first_line`. If the document is damaged, reads the test files before the damage.
pub(super) fn read(
    document: &[u8],
    first_line: u64,
    into: &mut Collector,
) -> Result<(), ResultsError> {
    let text = String::from_utf8_lossy(document);
    let text = text.trim_start_matches('\u{feff}');
    // Other output may follow the document.
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Document>();
    let error = match documents.next() {
        Some(Ok(document)) => {
            for file in document.test_results {
                file.add(first_line, into);
            }
            if document.was_interrupted == Some(true) {
                into.problem(first_line, "the test run was interrupted");
            }
            return Ok(());
        }
        Some(Err(error)) => error,
        None => serde_json::Error::custom("there is no document"),
    };
    let line = first_line + error.line().saturating_sub(1) as u64;
    add_whole_files(text, line, into);
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    if error.is_eof() {
        into.problem(line, "the output is incomplete");
    } else if into.is_empty() {
        let reason = reason.to_owned();
        return Err(ResultsError::NotJest { line, reason });
    } else {
        into.problem(line, format!("it cannot be read any further: {reason}"));
    }
    Ok(())
}

/// Adds the test files that are complete in a damaged document.
fn add_whole_files(text: &str, line: u64, into: &mut Collector) {
    let list = text.split_once(TEST_RESULTS).and_then(|(_, rest)| {
        let list = rest.trim_start().strip_prefix(':')?;
        list.trim_start().strip_prefix('[')
    });
    let mut rest = list.unwrap_or_default();
    loop {
        let mut files = serde_json::Deserializer::from_str(rest).into_iter::<File>();
        let Some(Ok(file)) = files.next() else {
            return;
        };
        file.add(line, into);
        let after = rest.get(files.byte_offset()..).unwrap_or_default();
        match after.trim_start().strip_prefix(',') {
            Some(next) => rest = next,
            None => return,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    test_results: Vec<File>,
    was_interrupted: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    name: Text,
    #[serde(default)]
    status: Option<Status>,
    #[serde(default)]
    assertion_results: Vec<Assertion>,
}

impl File {
    fn add(&self, line: u64, into: &mut Collector) {
        let mut explained = false;
        for assertion in &self.assertion_results {
            let Some(verdict) = assertion.verdict() else {
                into.problem(line, format!("{}: unknown status of a test", self.name.0));
                continue;
            };
            explained |= verdict.is_failure();
            let groups = assertion.ancestor_titles.iter().flatten();
            let parts: Vec<&str> = std::iter::once(&self.name)
                .chain(groups.take(ANCESTORS_MAX))
                .chain(&assertion.title)
                .map(|Text(part)| part.as_str())
                .collect();
            into.add(line, &parts, verdict);
        }
        // The test file failed without a failed test: it could not be loaded, or its setup failed.
        if matches!(self.status, Some(Status::Failed)) && !explained {
            into.add(line, &[&self.name.0], Verdict::Errored);
        }
    }
}

/// A string that may contain half a surrogate pair, which Jest writes and `String` does not allow.
#[derive(Default)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Passed,
    Failed,
    #[serde(alias = "skipped", alias = "todo", alias = "disabled")]
    Pending,
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Assertion {
    #[serde(default)]
    ancestor_titles: Option<Vec<Text>>,
    #[serde(default)]
    title: Option<Text>,
    status: Status,
    /// Number of attempts (Jest only).
    #[serde(default)]
    invocations: Option<f64>,
    /// Messages of earlier attempts (Vitest only).
    #[serde(default)]
    failure_messages: Option<Vec<IgnoredAny>>,
}

impl Assertion {
    fn verdict(&self) -> Option<Verdict> {
        let messages = self.failure_messages.as_ref();
        let tried_again = self.invocations.is_some_and(|times| times > 1.0)
            || messages.is_some_and(|messages| !messages.is_empty());
        match self.status {
            Status::Passed if tried_again => Some(Verdict::Flaky),
            Status::Passed => Some(Verdict::Passed),
            Status::Failed => Some(Verdict::Failed),
            Status::Pending => Some(Verdict::Skipped),
            Status::Unknown => None,
        }
    }
}
