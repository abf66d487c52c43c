//! Reads JUnit XML, in the dialects of pytest, nextest, Vitest, node, Jest, Maven, Gradle and googletest: nested suites with
//! test cases. A test case passed unless a child element or its `status` attribute says otherwise.

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::errors::Error as XmlError;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use tachikoma_core::Verdict;

use super::ResultsError;
use super::collector::Collector;

/// Maximum depth of nested elements. Real reports have only a few levels.
const DEPTH_MAX: usize = 64;

/// Reads a whole document, which begins at `place`.
pub(super) fn read(
    document: &[u8],
    mut place: Place,
    into: &mut Collector,
) -> Result<(), ResultsError> {
    let utf16 = [&b"\xff\xfe"[..], b"\xfe\xff", b"<\0"];
    if utf16.iter().any(|start| document.starts_with(start)) {
        return Err(not_xml(place, "it is UTF-16, and only UTF-8 is read"));
    }
    let text = String::from_utf8_lossy(document);
    let text = text.trim_start_matches('\u{feff}');
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    // End tags are not checked by the XML library, because a truncated report is read up to its end.
    config.check_end_names = false;
    config.allow_unmatched_ends = true;
    config.allow_dangling_amp = true;
    let mut report = Report::default();
    let mut passed = 0;
    loop {
        let event = reader.read_event();
        let next = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let wrong = match event {
            Ok(Event::Start(start)) => report.start(&start, place, into).err(),
            Ok(Event::Empty(start)) => {
                let wrong = report.start(&start, place, into).err();
                if wrong.is_none() {
                    report.end(place, into);
                }
                wrong
            }
            Ok(Event::End(end)) => report.end_tag(end.name().as_ref(), place, into).err(),
            Ok(Event::Text(text)) if report.open.is_empty() => {
                let blank = text.trim_start();
                place.pass(&text[..text.len() - blank.len()]);
                passed = next - blank.len();
                (!blank.is_empty()).then(|| Wrong::Xml("text where a tag should be".into()))
            }
            Ok(Event::Eof) if report.began && report.open.is_empty() => {
                if into.is_empty() {
                    into.problem(place.line, "there is no test in it".to_owned());
                }
                return Ok(());
            }
            Ok(Event::Eof) | Err(XmlError::Syntax(_)) if report.began => {
                let inside = report.open.last().map_or("", |element| &element.name);
                into.problem(
                    place.line,
                    format!("the output is incomplete: it ends inside of <{inside}>"),
                );
                return Ok(());
            }
            Ok(Event::Eof) => Some(Wrong::Xml("there is no element in it".into())),
            Err(XmlError::Syntax(_)) => Some(Wrong::Xml(
                "the output is incomplete: it ends in its first tag".into(),
            )),
            Err(error) => Some(Wrong::Xml(error.to_string())),
            Ok(_) => None,
        };
        match wrong {
            None => {}
            Some(Wrong::Root(root)) if into.is_empty() => {
                let line = place.line;
                return Err(ResultsError::NotJunit { line, root });
            }
            Some(Wrong::Xml(reason)) if into.is_empty() && report.open.len() < 2 => {
                return Err(not_xml(place, &reason));
            }
            Some(Wrong::Root(reason) | Wrong::Xml(reason)) => {
                into.problem(
                    place.line,
                    format!("it cannot be read any further: {reason}"),
                );
                return Ok(());
            }
        }
        place.pass(text.get(passed..next).unwrap_or_default());
        passed = next;
    }
}

fn not_xml(place: Place, reason: &str) -> ResultsError {
    let Place { line, column } = place;
    ResultsError::NotXml {
        line,
        column,
        reason: reason.to_owned(),
    }
}

/// A position in the document. Line and column are counted from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub line: u64,
    pub column: u64,
}

impl Place {
    fn pass(&mut self, text: &str) {
        let lines = text.bytes().filter(|byte| *byte == b'\n').count();
        self.line += lines as u64;
        self.column = match text.rfind('\n') {
            Some(last) => (text.len() - last) as u64,
            None => self.column + text.len() as u64,
        };
    }
}

enum Wrong {
    /// The root element is neither `testsuites` nor `testsuite`. The value is its name.
    Root(String),
    Xml(String),
}

/// State of reading the report.
#[derive(Default)]
struct Report {
    open: Vec<Element>,
    case: Option<Case>,
    began: bool,
    /// Whether missing tests were reported already. An outer suite would report the same tests again.
    said: bool,
}

struct Element {
    name: String,
    /// Title of the suite; `None` if this is not a suite.
    suite: Option<String>,
    /// The numbers of tests that the suite announces.
    announced: Tally,
    /// The numbers of tests that were found in the suite and its nested suites.
    found: Tally,
}

/// Number of tests, and how many of them failed.
#[derive(Clone, Copy, Default)]
struct Tally {
    tests: u64,
    failed: u64,
}

struct Case {
    class: String,
    name: String,
    verdict: Verdict,
    skipped: bool,
    /// Depth of the child elements of the test case.
    depth: usize,
}

impl Report {
    fn end_tag(&mut self, name: &str, place: Place, into: &mut Collector) -> Result<(), Wrong> {
        match self.open.last() {
            Some(element) if element.name == name => {
                self.end(place, into);
                Ok(())
            }
            Some(element) => Err(Wrong::Xml(format!("</{name}> closes <{}>", element.name))),
            None => Err(Wrong::Xml(format!("</{name}> closes nothing"))),
        }
    }

    fn start(
        &mut self,
        start: &BytesStart<'_>,
        place: Place,
        into: &mut Collector,
    ) -> Result<(), Wrong> {
        let name = start.name().as_ref().to_owned();
        let kind = start.local_name().as_ref().to_owned();
        if self.open.is_empty() && !matches!(kind.as_str(), "testsuites" | "testsuite") {
            return Err(Wrong::Root(name));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(Wrong::Xml(format!(
                "more than {DEPTH_MAX} elements are inside of each other"
            )));
        }
        self.began = true;
        let attributes = Attributes::of(start)?;
        let inside_case = self
            .case
            .as_ref()
            .is_some_and(|case| case.depth == self.open.len());
        match (kind.as_str(), &mut self.case) {
            ("testcase", None) => {
                let not_run = ["notrun", "disabled", "skipped", "suppressed", "ignored"];
                let skipped = not_run.contains(&attributes.status.as_str());
                self.case = Some(Case {
                    class: attributes.class,
                    name: attributes.name.clone(),
                    verdict: Verdict::Passed,
                    skipped,
                    depth: self.open.len() + 1,
                });
            }
            ("failure", Some(case)) if inside_case => {
                case.verdict = case.verdict.max(Verdict::Failed);
            }
            ("error", Some(case)) if inside_case => case.verdict = Verdict::Errored,
            ("flakyFailure" | "flakyError", Some(case)) if inside_case => {
                case.verdict = case.verdict.max(Verdict::Flaky);
            }
            // A skipped test, or one that is expected to fail, may also contain a failure.
            ("skipped", Some(case)) if inside_case => case.skipped = true,
            // A failure outside of a test case: the setup of a suite failed.
            ("failure" | "error", None) => {
                into.add(place.line, &self.suites(), Verdict::Errored);
                self.found(0, true);
            }
            _ => {}
        }
        let suite = (kind == "testsuite").then_some(attributes.name);
        self.open.push(Element {
            name,
            suite,
            announced: attributes.announced,
            found: Tally::default(),
        });
        Ok(())
    }

    fn suites(&self) -> Vec<&str> {
        self.open
            .iter()
            .filter_map(|element| element.suite.as_deref())
            .collect()
    }

    fn found(&mut self, tests: u64, failed: bool) {
        if let Some(around) = self.open.last_mut() {
            around.found.tests += tests;
            around.found.failed += u64::from(failed);
        }
    }

    /// Reports a problem if a suite has fewer tests than it announces. Some runners write more, which is not a problem.
    fn missing(&mut self, element: &Element, place: Place, into: &mut Collector) {
        let Element {
            announced, found, ..
        } = element;
        let what = if announced.tests > found.tests {
            Some((announced.tests, "tests", found.tests))
        } else if announced.failed > found.failed {
            Some((announced.failed, "failures", found.failed))
        } else {
            None
        };
        if let Some((announced, what, found)) = what.filter(|_| !self.said) {
            self.said = true;
            let name = &element.name;
            into.problem(
                place.line,
                format!("<{name}> says that it has {announced} {what}, and {found} are in it"),
            );
        }
    }

    fn end(&mut self, place: Place, into: &mut Collector) {
        if let Some(element) = self.open.pop() {
            self.missing(&element, place, into);
            if let Some(around) = self.open.last_mut() {
                around.found.tests += element.found.tests;
                around.found.failed += element.found.failed;
            }
        }
        if let Some(case) = self.case.take_if(|case| case.depth > self.open.len()) {
            let verdict = if case.skipped {
                Verdict::Skipped
            } else {
                case.verdict
            };
            let mut parts = self.suites();
            parts.extend([case.class.as_str(), &case.name]);
            into.add(place.line, &parts, verdict);
            self.found(1, case.verdict.is_failure());
        }
    }
}

#[derive(Default)]
struct Attributes {
    name: String,
    class: String,
    status: String,
    announced: Tally,
}

impl Attributes {
    fn of(start: &BytesStart<'_>) -> Result<Self, Wrong> {
        let mut found = Self::default();
        // Duplicate attributes are not checked, because the check takes quadratic time.
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|error| Wrong::Xml(error.to_string()))?;
            let number = || attribute.value.trim().parse::<u64>().unwrap_or(0);
            let wanted = match attribute.key.as_ref() {
                "name" => &mut found.name,
                "classname" => &mut found.class,
                // googletest writes both. A test that skips itself has the status `run` and the result `skipped`.
                "status" | "result" => &mut found.status,
                "tests" => {
                    found.announced.tests = number();
                    continue;
                }
                "failures" | "errors" => {
                    found.announced.failed = found.announced.failed.saturating_add(number());
                    continue;
                }
                _ => continue,
            };
            let raw = &*attribute.value;
            // An entity that XML does not define is kept as text.
            let value = unescape(raw).map_or_else(|_| raw.to_owned(), Cow::into_owned);
            let not_told = wanted.is_empty() || value == "suppressed" || value == "skipped";
            if not_told {
                *wanted = value;
            }
        }
        Ok(found)
    }
}
