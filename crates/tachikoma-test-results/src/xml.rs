//! The tags of an XML document, one at a time. Text, comments, declarations and document types are skipped without being
//! held, and no entity is defined, so a document cannot expand.

use std::io::{self, BufRead as _, Read};

use super::source::Source;

/// Bytes of a tag that are kept. Long attributes are cut before, so only very many attributes reach this limit.
const TAG_BYTES_MAX: usize = 64 << 10;

/// Bytes of an attribute that are kept: names are shorter, and messages are not used.
const VALUE_BYTES_MAX: usize = 4 << 10;

/// A position in the document, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub line: u64,
    pub column: u64,
}

/// The next item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A tag, from `<` to `>`, in [`Tags::tag`].
    Tag,
    /// Text where no text should be.
    Stray,
    /// A tag that the end of the document cuts off.
    Torn,
    /// A tag that is too large.
    Large,
    End,
}

/// Reads tags one by one.
pub(super) struct Tags<'a, R> {
    source: &'a mut Source<R>,
    at: Place,
    /// The position of the tag, or of the other item.
    pub begin: Place,
    pub tag: Vec<u8>,
}

impl<'a, R: Read> Tags<'a, R> {
    pub const fn new(source: &'a mut Source<R>) -> Self {
        let at = Place {
            line: source.line_number(),
            column: 1,
        };
        Self {
            source,
            at,
            begin: at,
            tag: Vec::new(),
        }
    }

    /// Returns the first item without reading it.
    pub fn peek(&mut self) -> io::Result<&[u8]> {
        self.source.peek()
    }

    pub fn skip(&mut self, count: usize) {
        self.source.consume(count);
    }

    /// Reads the next tag. With `strict`, text before it is an error.
    pub fn advance(&mut self, strict: bool) -> io::Result<Next> {
        loop {
            if !self.pass_text(strict)? {
                return Ok(Next::Stray);
            }
            self.begin = self.at;
            let ahead = self.source.peek()?;
            if ahead.is_empty() {
                return Ok(Next::End);
            }
            let over = if ahead.starts_with(b"<!--") {
                self.pass_until(b"-->")?
            } else if ahead.starts_with(b"<![CDATA[") {
                self.pass_until(b"]]>")?
            } else if ahead.starts_with(b"<?") {
                self.pass_until(b"?>")?
            } else if ahead.starts_with(b"<!") {
                self.pass_declaration()?
            } else {
                return self.take_tag();
            };
            if !over {
                return Ok(Next::Torn);
            }
        }
    }

    /// Reads bytes until `over` returns true, or the input ends. Returns whether it did; the last byte is consumed
    /// if `taking`.
    fn scan(&mut self, taking: bool, mut over: impl FnMut(u8) -> bool) -> io::Result<bool> {
        loop {
            let bytes = self.source.fill_buf()?;
            if bytes.is_empty() {
                return Ok(false);
            }
            let found = bytes.iter().position(|byte| over(*byte));
            let count = found.map_or(bytes.len(), |at| at + usize::from(taking));
            let taken = bytes.get(..count).unwrap_or_default();
            match taken.iter().rposition(|byte| *byte == b'\n') {
                Some(last) => {
                    let lines = taken.iter().filter(|byte| **byte == b'\n').count();
                    self.at.line += lines as u64;
                    self.at.column = (count - last) as u64;
                }
                None => self.at.column += count as u64,
            }
            self.source.consume(count);
            if found.is_some() {
                return Ok(true);
            }
        }
    }

    /// Stops before the next `<`, or at unexpected text.
    fn pass_text(&mut self, strict: bool) -> io::Result<bool> {
        let mut stray = false;
        self.scan(false, |byte| {
            stray = strict && byte != b'<' && !byte.is_ascii_whitespace();
            byte == b'<' || stray
        })?;
        self.begin = self.at;
        Ok(!stray)
    }

    /// Skips to after the next `end`; false if there is none.
    fn pass_until(&mut self, end: &[u8]) -> io::Result<bool> {
        let mut last = [0; 3];
        self.scan(true, |byte| {
            last = [last[1], last[2], byte];
            last.ends_with(end)
        })
    }

    /// Skips a document type with its declarations.
    fn pass_declaration(&mut self) -> io::Result<bool> {
        let (mut quote, mut depth) = (None, 0_u32);
        self.scan(true, |byte| {
            match (quote, byte) {
                (Some(open), _) if open == byte => quote = None,
                (None, b'"' | b'\'') => quote = Some(byte),
                (None, b'[' | b'<') => depth += 1,
                (None, b']' | b'>') => depth = depth.saturating_sub(1),
                (Some(_) | None, _) => {}
            }
            byte == b'>' && quote.is_none() && depth == 0
        })
    }

    fn take_tag(&mut self) -> io::Result<Next> {
        let mut tag = std::mem::take(&mut self.tag);
        tag.clear();
        let (mut quote, mut kept, mut large) = (None, 0, false);
        let over = self.scan(true, |byte| {
            let keep = match quote {
                Some(open) if open == byte => {
                    quote = None;
                    true
                }
                Some(_) => {
                    kept += 1;
                    kept <= VALUE_BYTES_MAX
                }
                None => {
                    if matches!(byte, b'"' | b'\'') {
                        (quote, kept) = (Some(byte), 0);
                    }
                    true
                }
            };
            large = keep && tag.len() >= TAG_BYTES_MAX;
            if keep && !large {
                tag.push(byte);
            }
            large || (byte == b'>' && quote.is_none())
        })?;
        self.tag = tag;
        Ok(match (over, large) {
            (_, true) => Next::Large,
            (true, false) => Next::Tag,
            (false, false) => Next::Torn,
        })
    }
}
