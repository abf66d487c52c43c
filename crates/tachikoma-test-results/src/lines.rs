//! Reads formats that consist of lines.

use std::borrow::Cow;
use std::io::{BufRead as _, Read};

use tachikoma_agents::line::{self, LineSplitter};

use super::ResultsError;
use super::collector::Collector;
use super::source::Source;

/// Maximum length of a line that is stored. Lines about a test are shorter. Output of tests may be longer.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// One line of output, without colors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub text: &'a str,
    /// Line number, counted from 1.
    pub number: u64,
    /// Whether the line was longer than [`LINE_BYTES_MAX`], so that its end is missing.
    pub cut: bool,
}

/// A format that is read line by line.
pub(super) trait LineReader {
    /// Handles the next line.
    fn line(&mut self, line: Line<'_>, into: &mut Collector);
    /// Reports at the end of the input which parts are missing. `line` is the number of the last line.
    fn end(&mut self, line: u64, into: &mut Collector);
}

/// Reads all lines to the end of the input.
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
    // An incomplete last line is reported, because it can look like the result of a test with a shorter name.
    if last != b'\n' {
        into.problem(number, "its last line has no end, so it may be cut off");
    }
    Ok(())
}

/// Removes color codes from a text.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    match text.contains('\u{1b}') {
        true => Cow::Owned(anstream::adapter::strip_str(text).to_string()),
        false => Cow::Borrowed(text),
    }
}
