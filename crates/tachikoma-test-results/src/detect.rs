//! Detects the format of test results from their first lines.

use std::io::{BufRead as _, Read};

use super::lines::plain;
use super::source::Source;
use super::{Format, ResultsError, go, libtest, nextest, pytest, tap};

/// Finds the first line that is typical of a format, and stops before it.
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
        if let Some(format) = format_of(&head) {
            return Ok(Some(format));
        }
        nothing_before &= head.trim().is_empty();
        skip_line(source)?;
    }
}

/// Skips to the start of a JSON document, or to the end.
pub(super) fn skip_to_document(source: &mut Source<impl Read>) -> Result<(), ResultsError> {
    let begins = |ahead: &[u8]| {
        let first = without_mark(ahead)
            .iter()
            .find(|byte| !byte.is_ascii_whitespace());
        first == Some(&b'{')
    };
    // Output of the runner or of npm may precede the document. If there is no document, the whole input is skipped.
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

/// Skips the byte order mark that Windows programs write before UTF-8.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Returns the format of a document that may begin here; `None` if no document begins here.
fn document(ahead: &[u8], nothing_before: bool) -> Option<Format> {
    // An indented line is a quotation and does not begin a document.
    let ahead = match nothing_before {
        true => without_mark(ahead).trim_ascii_start(),
        false => ahead,
    };
    let xml = [&b"<?xml"[..], b"<testsuite"];
    if xml.iter().any(|begin| ahead.starts_with(begin)) {
        return Some(Format::Junit);
    }
    // An HTML page is treated as XML, because the error for other XML is more helpful than "unknown format".
    if nothing_before && matches!(ahead, [b'<', b'!' | b'a'..=b'z' | b'A'..=b'Z', ..]) {
        return Some(Format::Junit);
    }
    let keys = [&b"\"num"[..], b"\"testResults\""];
    let inside = ahead.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    inside
        .is_some_and(|inside| keys.iter().any(|key| inside.starts_with(key)))
        .then_some(Format::Jest)
}

/// Returns the format that a line is typical of. Formats that quote others are checked first.
fn format_of(line: &str) -> Option<Format> {
    type Sign = fn(&str) -> bool;
    let signs: [(Sign, Format); 5] = [
        (go::is_format, Format::Go),
        (nextest::is_format, Format::Nextest),
        (libtest::is_format, Format::Libtest),
        (pytest::is_format, Format::Pytest),
        (tap::is_format, Format::Tap),
    ];
    let found = signs.iter().find(|(is_format, _)| is_format(line));
    found.map(|(_, format)| *format)
}
