//! JUnit XML, in the dialects of pytest, nextest, Vitest, node, Jest, Maven, Gradle and googletest: nested suites with
//! cases. A case has child elements if it did not pass.

use std::borrow::Cow;
use std::io::Read;

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use tachikoma_core::Verdict;

use super::ResultsError;
use super::collector::Collector;
use super::source::Source;
use super::xml::{Next, Place, Tags};

/// Nested elements. Results have a handful.
const DEPTH_MAX: usize = 64;

pub(super) fn read(
    source: &mut Source<impl Read>,
    into: &mut Collector,
) -> Result<(), ResultsError> {
    let mut tags = Tags::new(source);
    let ahead = tags.peek()?;
    if ahead.starts_with(b"\xff\xfe") || ahead.starts_with(b"\xfe\xff") || ahead.starts_with(b"<\0")
    {
        return Err(not_xml(tags.begin, "it is UTF-16, and only UTF-8 is read"));
    }
    if ahead.starts_with(b"\xef\xbb\xbf") {
        tags.skip(3);
    }
    let mut report = Report::default();
    loop {
        let outside = report.open.is_empty();
        let wrong = match tags.advance(outside)? {
            Next::Tag => match report.tag(&tags.tag, tags.begin, into) {
                Ok(()) => continue,
                Err(wrong) => wrong,
            },
            Next::End if report.began && outside => {
                if into.is_empty() {
                    into.problem(tags.begin.line, "there is no test in it".to_owned());
                }
                return Ok(());
            }
            Next::End | Next::Torn if report.began => {
                let inside = report.open.last().map_or("", |element| &element.name);
                into.problem(
                    tags.begin.line,
                    format!("it ends in the middle, inside of <{inside}>"),
                );
                return Ok(());
            }
            Next::End => Wrong::Xml("there is no element in it".into()),
            Next::Torn => Wrong::Xml("it ends in the middle of its first tag".into()),
            Next::Stray => Wrong::Xml("text where a tag should be".into()),
            Next::Large => Wrong::Xml("a tag has too many attributes".into()),
        };
        let Place { line, .. } = tags.begin;
        return match wrong {
            Wrong::Root(root) if into.is_empty() => Err(ResultsError::NotJunit { line, root }),
            Wrong::Xml(reason) if into.is_empty() && report.open.len() < 2 => {
                Err(not_xml(tags.begin, &reason))
            }
            Wrong::Root(reason) | Wrong::Xml(reason) => {
                into.problem(line, format!("it cannot be read any further: {reason}"));
                Ok(())
            }
        };
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

enum Wrong {
    /// The root element is another one.
    Root(String),
    Xml(String),
}

/// The open element.
#[derive(Default)]
struct Report {
    open: Vec<Element>,
    case: Option<Case>,
    began: bool,
    /// Whether missing tests were reported; an outer suite would report the same again.
    said: bool,
}

struct Element {
    name: String,
    /// The title of a suite.
    suite: Option<String>,
    /// The counts that it announces.
    announced: Tally,
    /// The counts that it has, with nested suites.
    found: Tally,
}

/// Tests, and how many of them failed.
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
    /// The depth of its children.
    depth: usize,
}

impl Report {
    fn tag(&mut self, tag: &[u8], place: Place, into: &mut Collector) -> Result<(), Wrong> {
        let tag = String::from_utf8_lossy(tag);
        let mut reader = Reader::from_str(&tag);
        let config = reader.config_mut();
        // A self-closing tag has no end tag; the others are matched below.
        config.check_end_names = false;
        config.allow_unmatched_ends = true;
        match reader.read_event() {
            Ok(Event::Start(start)) => self.start(&start, place, into),
            Ok(Event::Empty(start)) => {
                self.start(&start, place, into)?;
                self.end(place, into);
                Ok(())
            }
            Ok(Event::End(end)) => {
                let name = end.name().as_ref().to_owned();
                match self.open.last() {
                    Some(element) if element.name == name => {
                        self.end(place, into);
                        Ok(())
                    }
                    Some(element) => {
                        Err(Wrong::Xml(format!("</{name}> closes <{}>", element.name)))
                    }
                    None => Err(Wrong::Xml(format!("</{name}> closes nothing"))),
                }
            }
            Ok(_) => Err(Wrong::Xml("there is something that is not a tag".into())),
            Err(error) => Err(Wrong::Xml(error.to_string())),
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
            // A test that is skipped or expected to fail may fail.
            ("skipped", Some(case)) if inside_case => case.skipped = true,
            // The set-up of a suite failed.
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

    /// Fewer tests than announced are a problem. Some runners write more.
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
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| Wrong::Xml(error.to_string()))?;
            let number = || attribute.value.trim().parse::<u64>().unwrap_or(0);
            let wanted = match attribute.key.as_ref() {
                "name" => &mut found.name,
                "classname" => &mut found.class,
                // googletest has it in `result` if `status` does not say it.
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
            // An entity that XML does not define stays as it is written.
            let value = unescape(raw).map_or_else(|_| raw.to_owned(), Cow::into_owned);
            let not_told = wanted.is_empty() || value == "suppressed" || value == "skipped";
            if not_told {
                *wanted = value;
            }
        }
        Ok(found)
    }
}
