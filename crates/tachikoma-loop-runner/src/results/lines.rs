//! Formats that are read line by line, and how all formats are told apart.

use std::borrow::Cow;
use std::io::{BufRead as _, Read};

use tachikoma_agents::line::{self, LineSplitter};

use super::collector::Collector;
use super::source::Source;
use super::{Format, ResultsError, go, libtest, nextest, pytest, tap};

/// What is kept of a line. Lines that tell of a test are shorter; the output of tests is not.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// One line of output, without colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub text: &'a str,
    /// Counted from 1.
    pub number: u64,
    /// Whether its end is missing because it is too long.
    pub cut: bool,
}

/// A format whose lines come one after the other.
pub(super) trait LineReader {
    /// Takes the next line.
    fn line(&mut self, line: Line<'_>, into: &mut Collector);
    /// Says what is missing, now that there is no more. `line` is the number of the last.
    fn end(&mut self, line: u64, into: &mut Collector);
}

/// Reads to the end.
pub(super) fn read(
    source: &mut Source<impl Read>,
    mut reader: impl LineReader,
    into: &mut Collector,
) -> Result<(), ResultsError> {
    let mut number = source.line_number() - 1;
    let mut splitter = LineSplitter::new(LINE_BYTES_MAX);
    let mut each = |line: line::Line<'_>| {
        number += 1;
        let text = plain(&line.text);
        let cut = line.omitted_bytes > 0;
        reader.line(
            Line {
                text: &text,
                number,
                cut,
            },
            into,
        );
    };
    let mut last = b'\n';
    while let bytes = source.fill_buf()?
        && let Some(end) = bytes.last()
    {
        last = *end;
        splitter.push(bytes, &mut each);
        let count = bytes.len();
        source.consume(count);
    }
    splitter.finish(&mut each);
    let number = number.max(1);
    reader.end(number, into);
    // Half a line can read as a whole one, of a test with half a name.
    if last != b'\n' {
        into.problem(number, "its last line has no end, so it may be cut off");
    }
    Ok(())
}

fn plain(text: &str) -> Cow<'_, str> {
    match text.contains('\u{1b}') {
        true => Cow::Owned(anstream::adapter::strip_str(text).to_string()),
        false => Cow::Borrowed(text),
    }
}

/// Looks for the first line that is a sign of a format, and stops before it.
pub(super) fn detect(source: &mut Source<impl Read>) -> Result<Option<Format>, ResultsError> {
    let mut nothing_before = true;
    loop {
        let ahead = source.peek()?;
        if ahead.is_empty() {
            return Ok(None);
        }
        if let Some(format) = document(ahead, nothing_before) {
            return Ok(Some(format));
        }
        let head = ahead
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        let head = String::from_utf8_lossy(head);
        let head = plain(head.trim_end_matches('\r'));
        if let Some(format) = sign(&head) {
            return Ok(Some(format));
        }
        nothing_before &= head.trim().is_empty();
        skip_line(source)?;
    }
}

/// Goes on to where a JSON document begins, or to the end.
pub(super) fn skip_to_document(source: &mut Source<impl Read>) -> Result<(), ResultsError> {
    let begins = |ahead: &[u8]| {
        let first = without_mark(ahead)
            .iter()
            .find(|byte| !byte.is_ascii_whitespace());
        first == Some(&b'{')
    };
    // Its own words, or npm's, may come first. Without any document the first line is as good as another.
    if begins(source.peek()?) {
        return Ok(());
    }
    loop {
        let ahead = source.peek()?;
        if ahead.is_empty() || document(ahead, false) == Some(Format::Jest) {
            return Ok(());
        }
        skip_line(source)?;
    }
}

fn skip_line(source: &mut Source<impl Read>) -> Result<(), ResultsError> {
    loop {
        let bytes = source.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(bytes.len(), |end| end + 1);
        source.consume(count);
        if end.is_some() {
            return Ok(());
        }
    }
}

/// Leaves out the mark that Windows puts before UTF-8.
pub(super) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Formats that are one document, which may begin here.
fn document(ahead: &[u8], nothing_before: bool) -> Option<Format> {
    // What stands further in is quoted by someone.
    let ahead = match nothing_before {
        true => without_mark(ahead).trim_ascii_start(),
        false => ahead,
    };
    let xml = [&b"<?xml"[..], b"<testsuite"];
    if xml.iter().any(|begin| ahead.starts_with(begin)) {
        return Some(Format::Junit);
    }
    // A page or a message of an error is better refused as XML of another kind than not known at all.
    if nothing_before && matches!(ahead, [b'<', b'!' | b'a'..=b'z' | b'A'..=b'Z', ..]) {
        return Some(Format::Junit);
    }
    let keys = [&b"\"num"[..], b"\"testResults\""];
    let inside = ahead.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    inside
        .is_some_and(|inside| keys.iter().any(|key| inside.starts_with(key)))
        .then_some(Format::Jest)
}

/// The format that a line is a sign of. Those that quote the others' words come first.
fn sign(line: &str) -> Option<Format> {
    type Sign = fn(&str) -> bool;
    let signs: [(Sign, Format); 5] = [
        (go::is_sign, Format::Go),
        (nextest::is_sign, Format::Nextest),
        (libtest::is_sign, Format::Libtest),
        (pytest::is_sign, Format::Pytest),
        (tap::is_sign, Format::Tap),
    ];
    let found = signs.iter().find(|(is_sign, _)| is_sign(line));
    found.map(|(_, format)| *format)
}
