//! Bounds JSON before the parser reads it: long strings are cut and the depth is limited, so that every input fits into memory.

use std::io::{self, BufRead as _, Read};

use super::source::Source;

/// Bytes of a string that are kept: names are shorter, and messages are not used.
const STRING_BYTES_MAX: usize = 16 << 10;

/// Levels of arrays and objects. Results have four or five.
const DEPTH_MAX: usize = 128;

/// The longest escape, `\u0000`.
const ESCAPE_BYTES: usize = 6;

/// One document with shortened strings. It ends where the document ends.
pub(super) struct Shortened<'a, R> {
    source: &'a mut Source<R>,
    ready: Vec<u8>,
    taken: usize,
    depth: usize,
    string: Option<Text>,
    ended: bool,
}

/// Inside of a string.
#[derive(Default)]
struct Text {
    kept: usize,
    escape: Escape,
    full: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    /// The next letter says how long the escape is.
    Letter,
    /// This many digits follow.
    Digits(u8),
}

impl<'a, R: Read> Shortened<'a, R> {
    pub const fn new(source: &'a mut Source<R>) -> Self {
        Self {
            source,
            ready: Vec::new(),
            taken: 0,
            depth: 0,
            string: None,
            ended: false,
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.ready.clear();
        self.taken = 0;
        while self.ready.is_empty() && !self.ended {
            let bytes = self.source.fill_buf()?;
            if bytes.is_empty() {
                self.ended = true;
            }
            let mut count = 0;
            for byte in bytes {
                count += 1;
                match &mut self.string {
                    Some(text) => {
                        let over = *byte == b'"' && text.escape != Escape::Letter;
                        if over || text.takes(*byte) {
                            self.ready.push(*byte);
                        }
                        if over {
                            self.string = None;
                        }
                        continue;
                    }
                    None => self.ready.push(*byte),
                }
                match byte {
                    b'"' => self.string = Some(Text::default()),
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => continue,
                }
                if self.depth > DEPTH_MAX {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("more than {DEPTH_MAX} levels"),
                    ));
                }
                if self.depth == 0 && self.string.is_none() {
                    self.ended = true;
                    break;
                }
            }
            self.source.consume(count);
        }
        Ok(())
    }
}

impl Text {
    /// Returns whether this byte is kept. An escape is kept as a whole or not at all.
    fn takes(&mut self, byte: u8) -> bool {
        self.escape = match self.escape {
            Escape::None => {
                self.full |= self.kept + ESCAPE_BYTES > STRING_BYTES_MAX;
                if byte == b'\\' {
                    Escape::Letter
                } else {
                    Escape::None
                }
            }
            Escape::Letter if byte == b'u' => Escape::Digits(4),
            Escape::Letter | Escape::Digits(0 | 1) => Escape::None,
            Escape::Digits(left) => Escape::Digits(left - 1),
        };
        self.kept += usize::from(!self.full);
        !self.full
    }
}

impl<R: Read> Read for Shortened<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken >= self.ready.len() {
            self.fill()?;
        }
        let ahead = self.ready.get(self.taken..).unwrap_or_default();
        let count = ahead.len().min(into.len());
        let (Some(from), Some(to)) = (ahead.get(..count), into.get_mut(..count)) else {
            return Ok(0);
        };
        to.copy_from_slice(from);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(bytes: &[u8]) -> io::Result<String> {
        let mut text = Vec::new();
        let mut source = Source::new(bytes);
        Shortened::new(&mut source).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    #[test]
    fn short_documents_stay_unchanged() {
        for text in [
            r#"{"a":["b\"",{"c":"\u00e9\\"}],"d":1}"#,
            "{}",
            r#"{"a":""}"#,
            "{",
            "\"",
            "word",
        ] {
            assert_eq!(shortened(text.as_bytes()).unwrap(), text);
        }
        let two = br#"{"a":"}"} and words"#;
        assert_eq!(shortened(two).unwrap(), r#"{"a":"}"}"#);
    }

    #[test]
    fn long_strings_are_cut_between_escapes() {
        // Each offset of an escape to the limit.
        for lead in 0..8 {
            for unit in ["x", "\\u00e9", "\\\"", "\\\\"] {
                let long = format!("{}{}", "y".repeat(lead), unit.repeat(40_000));
                let text = format!(r#"{{"a":"{long}","b":["{long}",1]}}"#);
                let short = shortened(text.as_bytes()).unwrap();
                assert!(short.len() < 2 * STRING_BYTES_MAX + 100, "{}", short.len());
                let value: serde_json::Value = serde_json::from_str(&short).expect(unit);
                assert_eq!(value["b"][1], 1);
            }
        }
    }

    #[test]
    fn depth_is_limited() {
        assert!(shortened("[".repeat(DEPTH_MAX).as_bytes()).is_ok());
        let error = shortened("[".repeat(DEPTH_MAX + 1).as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "more than 128 levels");
    }
}
