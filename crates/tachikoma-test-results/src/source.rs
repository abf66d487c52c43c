//! A bounded byte stream with lookahead.

use std::io::{self, BufRead, Read};

/// Maximum number of bytes that are read for one test run. More input is ignored, and reported as a problem.
pub const INPUT_BYTES_MAX: u64 = 4 << 30;

const BUFFER_BYTES: usize = 64 << 10;

/// Number of bytes of lookahead. They are enough to recognize a format.
pub(super) const PEEK_BYTES: usize = 512;

/// A reader with lookahead.
pub(super) struct Source<R> {
    reader: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    left: u64,
    ended: bool,
    /// Number of lines that were read.
    lines: u64,
}

impl<R: Read> Source<R> {
    pub fn new(reader: R) -> Self {
        Self::bounded(reader, INPUT_BYTES_MAX)
    }

    fn bounded(reader: R, left: u64) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let (start, end) = (0, 0);
        Self {
            reader,
            buffer,
            start,
            end,
            left,
            ended: false,
            lines: 0,
        }
    }

    /// Returns the next bytes without consuming them: at least [`PEEK_BYTES`] unless the input ends before.
    pub fn peek(&mut self) -> io::Result<&[u8]> {
        while self.end - self.start < PEEK_BYTES && !self.ended {
            self.fill()?;
        }
        Ok(self.unread_bytes())
    }

    fn unread_bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(room.len());
        let room = room.get_mut(..most).unwrap_or_default();
        if room.is_empty() {
            self.ended = true;
            return Ok(());
        }
        match self.reader.read(room) {
            Ok(0) => self.ended = true,
            Ok(read) => {
                self.end += read;
                self.left -= read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns whether the input was longer than the limit.
    pub const fn is_over_limit(&self) -> bool {
        self.left == 0
    }

    /// Returns the number of the next line, counted from 1.
    pub const fn line_number(&self) -> u64 {
        self.lines + 1
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let ahead = self.fill_buf()?;
        let count = ahead.len().min(into.len());
        let (Some(from), Some(to)) = (ahead.get(..count), into.get_mut(..count)) else {
            return Ok(0);
        };
        to.copy_from_slice(from);
        self.consume(count);
        Ok(count)
    }
}

impl<R: Read> BufRead for Source<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.start == self.end && !self.ended {
            self.fill()?;
        }
        Ok(self.unread_bytes())
    }

    fn consume(&mut self, count: usize) {
        let taken = self.unread_bytes().get(..count).unwrap_or_default();
        self.lines += taken.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.start += count.min(self.end - self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns one byte at a time.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = into.len().min(1);
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn lookahead_works_for_any_size_of_reads() {
        let bytes = vec![b'x'; 3 * BUFFER_BYTES];
        let mut source = Source::new(Drip(&bytes));
        assert_eq!(source.peek().unwrap().len(), PEEK_BYTES);
        let mut rest = Vec::new();
        source.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, bytes);
        assert!(source.peek().unwrap().is_empty() && !source.is_over_limit());
    }

    #[test]
    fn lines_are_counted_and_the_input_is_bounded() {
        let mut source = Source::bounded(&b"a\nb\nc\nd\n"[..], 5);
        let mut rest = Vec::new();
        source.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"a\nb\nc");
        assert_eq!((source.line_number(), source.is_over_limit()), (3, true));
    }
}
