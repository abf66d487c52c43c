//! Splits an agent's output into lines of bounded length. The output can be any bytes.

use std::borrow::Cow;

/// Maximum size of the buffer that is kept between lines. A larger buffer is freed after the line that needed it.
const BUFFER_BYTES_KEPT: usize = 64 * 1024;

/// Replacement for invalid UTF-8 and for NUL, at which terminals and C programs stop.
const REPLACEMENT: &str = "\u{FFFD}";

/// One line of output, without its line ending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// The text, with invalid UTF-8 and NUL bytes replaced.
    pub text: Cow<'a, str>,
    /// Number of bytes that were left out because the line was longer than the maximum.
    pub omitted_bytes: u64,
}

/// Splits a stream of bytes into lines. It keeps at most the start of one line in memory.
#[derive(Debug)]
pub struct LineSplitter {
    line_bytes_max: usize,
    head: Vec<u8>,
    omitted_bytes: u64,
    /// Whether the last omitted byte was a carriage return. If a newline follows, it is part of the line ending.
    omitted_ends_in_cr: bool,
    /// Whether the current line has begun. An empty buffer alone does not show that.
    begun: bool,
}

impl LineSplitter {
    /// Returns a splitter that keeps at most `line_bytes_max` bytes of each line.
    #[must_use]
    pub fn new(line_bytes_max: usize) -> Self {
        Self {
            line_bytes_max,
            head: Vec::new(),
            omitted_bytes: 0,
            omitted_ends_in_cr: false,
            begun: false,
        }
    }

    /// Takes the next bytes and calls `each` for every completed line.
    pub fn push(&mut self, bytes: &[u8], each: &mut dyn FnMut(Line<'_>)) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            if !self.begun && line.len() <= self.line_bytes_max {
                each(self::line(strip_cr(line), 0));
            } else {
                self.keep(line);
                self.complete(each);
            }
            rest = after.get(1..).unwrap_or_default();
        }
        if !rest.is_empty() {
            self.keep(rest);
        }
    }

    /// Calls `each` for the unfinished line at the end of the stream, if there is one.
    pub fn finish(&mut self, each: &mut dyn FnMut(Line<'_>)) {
        if self.begun {
            each(line(&self.head, self.omitted_bytes));
            self.reset();
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.begun = true;
        let room = self.line_bytes_max.saturating_sub(self.head.len());
        let (kept, left_out) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(kept);
        if let Some(last) = left_out.last() {
            self.omitted_ends_in_cr = *last == b'\r';
            self.omitted_bytes = self.omitted_bytes.saturating_add(left_out.len() as u64);
        }
    }

    fn complete(&mut self, each: &mut dyn FnMut(Line<'_>)) {
        let ending = u64::from(self.omitted_ends_in_cr);
        match self.omitted_bytes - ending {
            0 if ending == 0 => each(line(strip_cr(&self.head), 0)),
            omitted => each(line(&self.head, omitted)),
        }
        self.reset();
    }

    fn reset(&mut self) {
        self.head.clear();
        if self.head.capacity() > BUFFER_BYTES_KEPT {
            self.head = Vec::new();
        }
        self.omitted_bytes = 0;
        self.omitted_ends_in_cr = false;
        self.begun = false;
    }
}

fn strip_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns a line of which `omitted_bytes` were left out. If it was truncated inside a character, the bytes of that character are removed
/// too.
fn line(head: &[u8], omitted_bytes: u64) -> Line<'_> {
    let last = Some(head).filter(|_| omitted_bytes > 0);
    let last = last.and_then(|head| head.utf8_chunks().last());
    let broken = match last.map(|chunk| chunk.invalid()) {
        // Only an incomplete character at the end is removed. It has at most three bytes.
        Some(invalid) if head.ends_with(invalid) && invalid.len() < 4 => invalid.len(),
        Some(_) | None => 0,
    };
    let kept = head.get(..head.len() - broken).unwrap_or(head);
    let mut text = String::from_utf8_lossy(kept);
    if text.contains('\0') {
        text = Cow::Owned(text.replace('\0', REPLACEMENT));
    }
    Line {
        text,
        omitted_bytes: omitted_bytes + broken as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum line size that is large enough for every sample. Other tests check the limit.
    const ROOMY: usize = 1024;

    fn split(cap: usize, pieces: &[&[u8]]) -> Vec<(String, u64)> {
        let mut lines = Vec::new();
        let mut splitter = LineSplitter::new(cap);
        let mut each = |line: Line<'_>| lines.push((line.text.into_owned(), line.omitted_bytes));
        for piece in pieces {
            splitter.push(piece, &mut each);
        }
        splitter.finish(&mut each);
        lines
    }

    fn texts(cap: usize, bytes: &[u8]) -> Vec<(String, u64)> {
        split(cap, &[bytes])
    }

    fn plain(lines: &[&str]) -> Vec<(String, u64)> {
        lines.iter().map(|line| ((*line).to_owned(), 0)).collect()
    }

    #[test]
    fn line_endings_are_stripped_and_empty_lines_are_lines() {
        assert_eq!(
            texts(ROOMY, b"a\r\n\n\r\nb\rc\n"),
            plain(&["a", "", "", "b\rc"])
        );
        assert_eq!(texts(ROOMY, b""), plain(&[]));
    }

    #[test]
    fn an_unfinished_line_at_the_end_is_a_line() {
        assert_eq!(texts(ROOMY, b"a\nb"), plain(&["a", "b"]));
        assert_eq!(
            texts(ROOMY, b"b\r"),
            plain(&["b\r"]),
            "without a newline, a carriage return is not a line ending"
        );
    }

    #[test]
    fn nul_and_invalid_bytes_become_replacement_characters() {
        assert_eq!(
            texts(ROOMY, b"a\0b\xFFc\n\xE2\x82\n"),
            plain(&["a\u{FFFD}b\u{FFFD}c", "\u{FFFD}"])
        );
    }

    #[test]
    fn every_split_position_gives_the_same_lines() {
        let sample: &[u8] = "one\r\n\nzwölf €\n\0\u{1F600}\r\r\nlong long line\r\nhalf".as_bytes();
        for cap in [1, 3, 4, 5, 8, 12, 14, ROOMY] {
            let expected = texts(cap, sample);
            for first in 0..=sample.len() {
                for second in first..=sample.len() {
                    let pieces = [&sample[..first], &sample[first..second], &sample[second..]];
                    assert_eq!(
                        split(cap, &pieces),
                        expected,
                        "cap {cap}, cuts {first} and {second}"
                    );
                }
            }
        }
    }

    #[test]
    fn long_line_is_truncated_and_omitted_bytes_are_counted() {
        assert_eq!(
            texts(4, b"123456\n1234\r\n12345\r\n"),
            vec![
                ("1234".to_owned(), 2),
                ("1234".to_owned(), 0),
                ("1234".to_owned(), 1)
            ]
        );
        assert_eq!(
            texts(4, b"123456"),
            vec![("1234".to_owned(), 2)],
            "a long line without a newline is truncated too"
        );
    }

    #[test]
    fn line_truncated_inside_a_character_omits_the_whole_character() {
        assert_eq!(
            texts(5, "abc€d\n".as_bytes()),
            vec![("abc".to_owned(), 4)],
            "three bytes of the euro sign and the letter after it are omitted"
        );
    }

    #[test]
    fn memory_stays_bounded_and_is_freed() {
        let mut splitter = LineSplitter::new(1024 * 1024);
        let chunk = vec![b'x'; 1024 * 1024];
        for _ in 0..100 {
            splitter.push(&chunk, &mut |_| ());
        }
        assert!(
            splitter.head.capacity() <= 2 * 1024 * 1024,
            "a line never needs more memory than its maximum"
        );
        let mut seen = Vec::new();
        splitter.push(b"\n", &mut |line| {
            seen.push((line.text.len(), line.omitted_bytes));
        });
        assert_eq!(seen, vec![(1024 * 1024, 99 * 1024 * 1024)]);
        assert_eq!(
            splitter.head.capacity(),
            0,
            "the buffer is released after the line"
        );
    }
}
