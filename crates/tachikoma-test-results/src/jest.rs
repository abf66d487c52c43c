//! The JSON of Jest, which Vitest writes too: one document that is read as a stream and never held as a whole.

use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use tachikoma_core::Verdict;

use super::collector::Collector;
use super::json::Shortened;
use super::source::Source;
use super::{Counts, ResultsError};

/// Limit of the tests of one file in bytes. The name of the file comes last, so they are held until then.
const FILE_BYTES_MAX: usize = 16 << 20;

/// Bytes that one test takes beside its name.
const RESULT_BYTES: usize = 32;

/// Nested groups that become part of a name.
const ANCESTORS_MAX: usize = 32;

pub(super) fn read(
    source: &mut Source<impl Read>,
    into: &mut Collector,
) -> Result<(), ResultsError> {
    let first_line = source.line_number();
    let mut reading = Reading {
        into,
        line: first_line,
        file: File::default(),
        found: false,
    };
    let mut json = serde_json::Deserializer::from_reader(Shortened::new(source));
    let ended = Document(&mut reading).deserialize(&mut json);
    let Reading {
        into, file, found, ..
    } = reading;
    let (line, reason) = match ended {
        Ok(()) if found => return Ok(()),
        Ok(()) => (first_line, "it has no testResults".to_owned()),
        Err(error) => {
            let line = first_line + error.line().saturating_sub(1) as u64;
            // The collector counts the tests that were left out.
            let text = error.to_string();
            let reason = text.split(" at line ").next().unwrap_or(&text).to_owned();
            match error.classify() {
                Category::Eof => {
                    // The name of their file was not read.
                    file.left_out(into);
                    into.problem(line, "it ends in the middle");
                    return Ok(());
                }
                Category::Io => match error.io_error_kind() {
                    Some(std::io::ErrorKind::InvalidData) | None => (line, reason),
                    Some(_) => return Err(ResultsError::Io(error.into())),
                },
                Category::Syntax | Category::Data => (line, reason),
            }
        }
    };
    if into.is_empty() {
        return Err(ResultsError::NotJest { line, reason });
    }
    file.left_out(into);
    into.problem(line, format!("it cannot be read any further: {reason}"));
    Ok(())
}

struct Reading<'a> {
    into: &'a mut Collector,
    line: u64,
    /// The file that is being read.
    file: File,
    found: bool,
}

#[derive(Default)]
struct File {
    name: String,
    failed: bool,
    tests: Vec<(Vec<String>, Verdict)>,
    bytes: usize,
    /// Tests beyond the limit.
    beyond: Counts,
}

impl File {
    fn left_out(mut self, into: &mut Collector) {
        for (_, verdict) in self.tests {
            *self.beyond.of(verdict) += 1;
        }
        for verdict in Verdict::ALL {
            into.unnamed(verdict, *self.beyond.of(verdict));
        }
    }

    fn end(mut self, line: u64, into: &mut Collector) {
        let mut explained = self.beyond.failed > 0;
        for (parts, verdict) in std::mem::take(&mut self.tests) {
            explained |= verdict.is_failure();
            let parts: Vec<&str> = std::iter::once(&self.name)
                .chain(&parts)
                .map(String::as_str)
                .collect();
            into.add(line, &parts, verdict);
        }
        // The file could not be loaded, or its set-up failed.
        if self.failed && !explained {
            into.add(line, &[&self.name], Verdict::Errored);
        }
        if self.beyond.total() > 0 {
            let text = format!(
                "{} tests of {} were counted without their names",
                self.beyond.total(),
                self.name
            );
            into.problem(line, text);
            self.left_out(into);
        }
    }
}

/// A string of any bytes.
#[derive(Default)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
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
        from.deserialize_bytes(Bytes)
    }
}

/// The first strings of a list.
#[derive(Default)]
struct Texts(Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        each(from, |texts: &mut Self, Text(text)| {
            if texts.0.len() < ANCESTORS_MAX {
                texts.0.push(text);
            }
        })
    }
}

/// Returns whether a list has elements.
#[derive(Default)]
struct Any(bool);

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        each(from, |any: &mut Self, _: IgnoredAny| any.0 = true)
    }
}

/// Reads a list, or null, without holding it.
fn each<'de, D: Deserializer<'de>, T: Deserialize<'de>, S: Default>(
    from: D,
    take: fn(&mut S, T),
) -> Result<S, D::Error> {
    struct Each<S, T>(fn(&mut S, T));
    impl<'de, S: Default, T: Deserialize<'de>> Visitor<'de> for Each<S, T> {
        type Value = S;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_unit<E: Error>(self) -> Result<S, E> {
            Ok(S::default())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<S, A::Error> {
            let mut sum = S::default();
            while let Some(next) = list.next_element()? {
                (self.0)(&mut sum, next);
            }
            Ok(sum)
        }
    }
    from.deserialize_any(Each(take))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Assertion {
    #[serde(default)]
    ancestor_titles: Texts,
    #[serde(default)]
    title: Text,
    status: Text,
    /// Jest: the number of attempts.
    #[serde(default)]
    invocations: Option<f64>,
    /// Vitest: the messages of earlier attempts.
    #[serde(default)]
    failure_messages: Any,
}

impl Assertion {
    fn verdict(&self) -> Option<Verdict> {
        let tried_again =
            self.invocations.is_some_and(|times| times > 1.0) || self.failure_messages.0;
        match self.status.0.as_str() {
            "passed" if tried_again => Some(Verdict::Flaky),
            "passed" => Some(Verdict::Passed),
            "failed" => Some(Verdict::Failed),
            "pending" | "skipped" | "todo" | "disabled" => Some(Verdict::Skipped),
            _ => None,
        }
    }
}

/// Implements `Deserialize` for a type that reads one kind of value.
macro_rules! seed {
    ($name:ident, $what:literal, $how:ident, $visit:ident: $access:ident, |$reading:ident, $from:ident| $body:block) => {
        struct $name<'a, 'b>(&'a mut Reading<'b>);

        impl<'de> DeserializeSeed<'de> for $name<'_, '_> {
            type Value = ();
            fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
                from.$how(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_, '_> {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($what)
            }
            fn $visit<A: $access<'de>>(self, mut $from: A) -> Result<(), A::Error> {
                let $reading = self.0;
                $body
                Ok(())
            }
        }
    };
}

seed!(Document, "an object with testResults", deserialize_map, visit_map: MapAccess, |reading, map| {
    while let Some(Text(key)) = map.next_key()? {
        match key.as_str() {
            "testResults" => {
                reading.found = true;
                map.next_value_seed(Files(reading))?;
            }
            "wasInterrupted" => {
                if map.next_value::<Option<bool>>()? == Some(true) {
                    reading.into.problem(reading.line, "it was ended early");
                }
            }
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
    }
});

seed!(Files, "a list of files", deserialize_seq, visit_seq: SeqAccess, |reading, list| {
    while list.next_element_seed(OneFile(reading))?.is_some() {}
});

seed!(OneFile, "a file with its tests", deserialize_map, visit_map: MapAccess, |reading, map| {
    reading.file = File::default();
    while let Some(Text(key)) = map.next_key()? {
        match key.as_str() {
            "name" => reading.file.name = map.next_value::<Text>()?.0,
            "status" => reading.file.failed = map.next_value::<Text>()?.0 == "failed",
            "assertionResults" => map.next_value_seed(Assertions(reading))?,
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
    }
    std::mem::take(&mut reading.file).end(reading.line, reading.into);
});

seed!(Assertions, "a list of tests", deserialize_seq, visit_seq: SeqAccess, |reading, list| {
    while let Some(found) = list.next_element::<Assertion>()? {
        let Some(verdict) = found.verdict() else {
            let text = format!("no status of a test is known as {}", found.status.0);
            reading.into.problem(reading.line, text);
            continue;
        };
        let mut parts = found.ancestor_titles.0;
        parts.push(found.title.0);
        let bytes = parts.iter().map(|part| part.len() + RESULT_BYTES).sum::<usize>();
        let file = &mut reading.file;
        if file.bytes + bytes > FILE_BYTES_MAX {
            *file.beyond.of(verdict) += 1;
        } else {
            file.bytes += bytes;
            file.tests.push((parts, verdict));
        }
    }
});
