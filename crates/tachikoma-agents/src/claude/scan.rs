//! Reads one line of JSON without copying and skips values that are not needed. It validates only as much as it needs:
//! a skipped value may be malformed.

use std::borrow::Cow;

use super::blocks::{self, BLOCK};

/// Whether to continue reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Continue with the next member.
    On,
    /// Stop: all needed values were found.
    Done,
}

/// A position in a line.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// The meaning of a byte outside of a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Quote,
    Open,
    Close,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Other; 256];
    classes[b'"' as usize] = Class::Quote;
    classes[b'{' as usize] = Class::Open;
    classes[b'[' as usize] = Class::Open;
    classes[b'}' as usize] = Class::Close;
    classes[b']' as usize] = Class::Close;
    classes
};

impl<'a> Scan<'a> {
    /// Returns a scan at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            if byte > b' ' {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    /// Reads the members of the object at this position. `member` gets the raw key and must consume the value.
    /// Returns `None` if it is not an object, or an incomplete one.
    #[inline]
    pub fn object(
        &mut self,
        mut member: impl FnMut(&'a [u8], &mut Self) -> Option<Walk>,
    ) -> Option<Walk> {
        self.expect(b'{')?;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(Walk::On);
        }
        loop {
            self.expect(b'"')?;
            let start = self.at;
            self.at = string_end(self.bytes, start)?;
            let key = self.bytes.get(start..self.at - 1)?;
            self.expect(b':')?;
            if member(key, self)? == Walk::Done {
                return Some(Walk::Done);
            }
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Some(Walk::On);
                }
                _ => return None,
            }
        }
    }

    /// Reads the object at this position and returns all of it; another value is returned unchanged.
    pub fn raw_object(
        &mut self,
        member: impl FnMut(&'a [u8], &mut Self) -> Option<()>,
    ) -> Option<Raw<'a>> {
        if self.peek()? != b'{' {
            return self.value();
        }
        let start = self.at;
        let mut member = member;
        self.object(|key, scan| member(key, scan).map(|()| Walk::On))?;
        Some(Raw(self.bytes.get(start..self.at)?))
    }

    /// Reads the elements of the array at this position.
    pub fn array(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            element(self)?;
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    /// Returns the raw value at this position.
    #[inline]
    pub fn value(&mut self) -> Option<Raw<'a>> {
        let first = self.peek()?;
        let start = self.at;
        self.at = match CLASSES[usize::from(first)] {
            Class::Quote => string_end(self.bytes, start + 1)?,
            Class::Open => container_end(self.bytes, start)?,
            Class::Close => return None,
            Class::Other => scalar_end(self.bytes, start)?,
        };
        Some(Raw(self.bytes.get(start..self.at)?))
    }

    /// Skips a value.
    #[inline]
    pub fn skip(&mut self) -> Option<Walk> {
        self.value().map(|_| Walk::On)
    }
}

/// Returns the position after the closing quote of the string that begins at `at`.
#[inline]
fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        // Reads eight bytes at a time, because most of the input is strings.
        while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
            let word = u64::from_le_bytes(*word);
            let quotes = zero_bytes(word ^ (LOW_BITS * b'"' as u64));
            let escapes = zero_bytes(word ^ (LOW_BITS * b'\\' as u64));
            let found = quotes | escapes;
            if found == 0 {
                at += 8;
                continue;
            }
            // Only the lowest mark is reliable. Marks above it can be wrong.
            at += (found.trailing_zeros() / 8) as usize;
            if found & found.wrapping_neg() & quotes != 0 {
                return Some(at + 1);
            }
            at += 2;
        }
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Sets the high bit of each byte that is zero, and perhaps of some after the first.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// Returns the position after the bracket that closes the one at `at`. The kind of bracket is not checked.
fn container_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = start;
    // Short values are read byte by byte, because blocks are slower for them.
    while at - start < BLOCK {
        match CLASSES[usize::from(*bytes.get(at)?)] {
            Class::Other => at += 1,
            Class::Quote => at = string_end(bytes, at + 1)?,
            Class::Open => {
                depth += 1;
                at += 1;
            }
            Class::Close => {
                depth -= 1;
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
    }
    let rest = bytes.get(at..)?;
    blocks::close(rest, depth).map(|length| at + length)
}

/// Returns the position after a number or a word.
fn scalar_end(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes
        .get(at..)?
        .iter()
        .position(|byte| matches!(byte, b',' | b'}' | b']' | b':' | b'"' | b'\0'..=b' '))?;
    (length > 0).then_some(at + length)
}

/// A raw value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raw<'a>(&'a [u8]);

impl<'a> Raw<'a> {
    /// Returns a scan of the value.
    pub fn scan(self) -> Scan<'a> {
        Scan::new(self.0)
    }

    /// Returns whether there is a value: not absent and not `null`.
    pub fn is_some(self) -> bool {
        !self.0.is_empty() && self.0 != b"null"
    }

    /// Returns whether the value is `true`.
    pub fn is_true(self) -> bool {
        self.0 == b"true"
    }

    /// Returns a string without its quotes, with escapes; `None` if it is not a string.
    pub fn bare(self) -> Option<&'a [u8]> {
        self.0.strip_prefix(b"\"")?.strip_suffix(b"\"")
    }

    /// Returns the string with its escapes decoded.
    pub fn text(self) -> Option<Cow<'a, str>> {
        self.bare().map(unescaped)
    }

    /// Returns the string as an owned value.
    pub fn string(self) -> Option<String> {
        self.text().map(Cow::into_owned)
    }

    /// Returns the start of the string as one line of about `max_bytes`.
    pub fn line(self, max_bytes: usize) -> Option<String> {
        let bare = self.bare()?;
        let plain = |byte: &u8| (b' '..0x7f).contains(byte) && *byte != b'\\';
        if bare.len() <= max_bytes && bare.iter().all(plain) {
            return String::from_utf8(bare.to_vec()).ok();
        }
        // An escape needs at most six bytes for each byte of text, so this is enough for the line.
        let head = bare.get(..max_bytes.saturating_mul(6)).unwrap_or(bare);
        let text = unescaped(head);
        let mut line = String::with_capacity(text.len().min(max_bytes));
        for character in text.chars() {
            if line.len() + character.len_utf8() > max_bytes {
                break;
            }
            line.push(if character.is_control() {
                ' '
            } else {
                character
            });
        }
        Some(line)
    }

    /// Returns the end of the string, about `max_bytes`. Its first character may be the rest of an
    /// escape.
    pub fn tail(self, max_bytes: usize) -> Option<String> {
        let bare = self.bare()?;
        let text = unescaped(&bare[bare.len().saturating_sub(max_bytes.saturating_mul(6))..]);
        let start = text.ceil_char_boundary(text.len().saturating_sub(max_bytes));
        Some(text[start..].to_owned())
    }

    /// Returns the raw bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the raw value as text.
    pub fn json(self) -> String {
        String::from_utf8_lossy(self.0).into_owned()
    }

    /// Returns the number; `None` if it is negative or too large for a count.
    pub fn count(self) -> Option<u64> {
        let digits = self.0;
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        digits.iter().try_fold(0, |number: u64, byte| {
            byte.is_ascii_digit()
                .then(|| number * 10 + u64::from(byte - b'0'))
        })
    }

    /// Returns the number, if it is finite.
    pub fn number(self) -> Option<f64> {
        let number: f64 = std::str::from_utf8(self.0).ok()?.parse().ok()?;
        number.is_finite().then_some(number)
    }
}

/// Decodes the content of a string. Invalid escapes become the replacement character, an incomplete one
/// at the end is left out.
fn unescaped(bare: &[u8]) -> Cow<'_, str> {
    // This search reads many bytes at once, unlike `position`.
    if !bare.contains(&b'\\') {
        return String::from_utf8_lossy(bare);
    }
    let mut text = String::with_capacity(bare.len());
    let mut rest = bare;
    let mut next = rest.iter().position(|byte| *byte == b'\\');
    while let Some(at) = next {
        text.push_str(&String::from_utf8_lossy(&rest[..at]));
        let Some((character, length)) = escape(&rest[at..]) else {
            return Cow::Owned(text);
        };
        text.push(character);
        rest = &rest[at + length..];
        next = rest.iter().position(|byte| *byte == b'\\');
    }
    text.push_str(&String::from_utf8_lossy(rest));
    Cow::Owned(text)
}

/// Decodes the escape at the start and returns its length; `None` if it is incomplete.
fn escape(bytes: &[u8]) -> Option<(char, usize)> {
    Some(match bytes.get(1)? {
        b'n' => ('\n', 2),
        b't' => ('\t', 2),
        b'r' => ('\r', 2),
        b'b' => ('\u{8}', 2),
        b'f' => ('\u{c}', 2),
        byte @ (b'"' | b'\\' | b'/') => (char::from(*byte), 2),
        b'u' => {
            let high = hex(bytes.get(2..6)?);
            let low = bytes.get(6..12).and_then(|next| {
                let digits = next.strip_prefix(b"\\u")?;
                hex(digits).filter(|low| (0xdc00..0xe000).contains(low))
            });
            match (high, low) {
                (Some(high @ 0xd800..0xdc00), Some(low)) => {
                    let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                    (char::from_u32(code).unwrap_or('\u{fffd}'), 12)
                }
                (Some(code), _) => (char::from_u32(code).unwrap_or('\u{fffd}'), 6),
                (None, _) => ('\u{fffd}', 2),
            }
        }
        _ => ('\u{fffd}', 2),
    })
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, byte| {
        char::from(*byte)
            .to_digit(16)
            .map(|digit| number * 16 + digit)
    })
}

/// Returns a member of an object; an absent value if there is none.
pub fn member<'a>(object: Raw<'a>, wanted: &[u8]) -> Raw<'a> {
    let mut found = Raw::default();
    let _ = object.scan().object(|key, scan| {
        let value = scan.value()?;
        if key != wanted {
            return Some(Walk::On);
        }
        found = value;
        Some(Walk::Done)
    });
    found
}

/// Returns members of an object by name; those that are missing are absent values.
pub fn members<'a, const N: usize>(object: &'a [u8], names: [&[u8]; N]) -> Option<[Raw<'a>; N]> {
    let mut found = [Raw::default(); N];
    Scan::new(object).object(|key, scan| {
        let value = scan.value()?;
        if let Some(at) = names.iter().position(|name| *name == key) {
            found[at] = value;
        }
        Some(Walk::On)
    })?;
    Some(found)
}

/// Returns members of a value by name. If the value is not an object, all of them are absent.
pub fn members_of<'a, const N: usize>(object: Raw<'a>, names: [&[u8]; N]) -> [Raw<'a>; N] {
    members(object.bytes(), names).unwrap_or([Raw::default(); N])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(line: &str, wanted: &str) -> Option<String> {
        let mut found = None;
        Scan::new(line.as_bytes()).object(|key, scan| {
            let value = scan.value()?;
            if key == wanted.as_bytes() {
                found = Some(String::from_utf8_lossy(value.0).into_owned());
            }
            Some(Walk::On)
        })?;
        found
    }

    #[test]
    fn nested_members_are_not_taken_for_top_level_members() {
        let line =
            r#" { "a" : {"type":"no"}, "b":["]",{"c":"}\\\""}],"type" : "yes","n":-1.5e3 } "#;
        assert_eq!(member(line, "type").as_deref(), Some(r#""yes""#));
        assert_eq!(member(line, "n").as_deref(), Some("-1.5e3"));
        assert_eq!(member(line, "b").as_deref(), Some(r#"["]",{"c":"}\\\""}]"#));
        assert_eq!(member("{}", "a"), None);
    }

    #[test]
    fn incomplete_values_are_rejected_at_every_length() {
        let line = r#"{"a":"x\"y","b":[1,{"c":null}],"d":true}"#;
        for end in 0..line.len() {
            let mut seen = 0;
            let walked = Scan::new(&line.as_bytes()[..end]).object(|_, scan| {
                seen += 1;
                scan.skip()
            });
            assert_eq!(walked, None, "{}", &line[..end]);
        }
        for odd in [
            "",
            "[]",
            "{,}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1 2}"#,
            r#"{"a":]}"#,
        ] {
            assert_eq!(member(odd, "a"), None, "{odd}");
        }
    }

    #[test]
    fn strings_of_any_length_end_at_their_quote() {
        for length in 0..40 {
            for escapes in ["", r#"\""#, r"\\", r#"\\\"x"#, r#"\"\\"#] {
                for more in ["", "m", r#""more","more""#] {
                    let inside = format!("{}{escapes}", "x".repeat(length));
                    let line = format!(r#""{inside}"{more}"#);
                    let raw = Scan::new(line.as_bytes()).value();
                    assert_eq!(raw.and_then(Raw::bare), Some(inside.as_bytes()), "{line}");
                }
            }
        }
    }

    #[test]
    fn strings_decode_as_in_a_json_library() {
        for text in [
            "",
            "plain",
            "ž 🐎\u{2028}",
            "a\"b\\c/d\u{8}\u{c}\n\r\t\0\u{1b}",
        ] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(Raw(json.as_bytes()).text().as_deref(), Some(text));
        }
        let raw = |json: &'static str| Raw(json.as_bytes()).string();
        assert_eq!(raw(r#""\ud83d\udc0e\u00e9""#).as_deref(), Some("🐎é"));
        assert_eq!(
            raw(r#""\ud83dx\q\uzzzz""#).as_deref(),
            Some("\u{fffd}x\u{fffd}\u{fffd}zzzz")
        );
        assert_eq!(raw(r#""cut\u00""#).as_deref(), Some("cut"));
        assert_eq!(raw("null"), None);
    }

    #[test]
    fn lines_and_tails_are_bounded() {
        let raw = Raw(r#""one\ntwo žžž""#.as_bytes());
        assert_eq!(raw.line(100).as_deref(), Some("one two žžž"));
        assert_eq!(raw.line(9).as_deref(), Some("one two "));
        assert_eq!(raw.tail(100).as_deref(), Some("one\ntwo žžž"));
        assert_eq!(raw.tail(5).as_deref(), Some("žž"));
    }

    #[test]
    fn invalid_numbers_are_rejected() {
        assert_eq!(Raw(b"12").count(), Some(12));
        for odd in ["", "-1", "1.5", "1e3", "null", "\"1\"", "9999999999999999"] {
            assert_eq!(Raw(odd.as_bytes()).count(), None, "{odd}");
        }
        assert_eq!(Raw(b"1e999").number(), None);
        assert_eq!(Raw(b"0.5").number(), Some(0.5));
    }
}
