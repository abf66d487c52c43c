//! Standard output and error, for readers that may have gone. All text that this program prints goes through here, and characters that a
//! terminal would obey are escaped.

use std::borrow::Cow;
use std::io::{ErrorKind, Write as _};

use crate::sanitise::is_harmless;

/// Escapes the characters that a terminal would obey, and those that reorder text, as `\u001b`. Line ends and tabs stay. Inside a JSON
/// string the escape means the same character, so that JSON keeps its meaning.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let stays = |character: char| character == '\n' || is_harmless(character);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if stays(character) {
            escaped.push(character);
        } else {
            escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
        }
    }
    Cow::Owned(escaped)
}

/// Prints a line. A reader that has gone (`| head`) has what it wanted: the program ends well.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{}", harmless(text)) {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// Prints a line about a running loop. Whoever reads may have gone; the loop goes on without an audience.
pub fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", harmless(text)).and_then(|()| out.flush());
}

/// Says something on standard error. Where nobody listens, nothing is lost.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", harmless(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_json_keeps_its_meaning() {
        for (text, expected) in [
            ("two\nlines\tand ünïcode ✓", "two\nlines\tand ünïcode ✓"),
            ("\u{1b}[31mred", "\\u001b[31mred"),
            ("a\rb\u{7f}", "a\\u000db\\u007f"),
            (
                "\u{9b}2J\u{9d}0;title\u{9c}",
                "\\u009b2J\\u009d0;title\\u009c",
            ),
            ("\u{202e}gnp.exe", "\\u202egnp.exe"),
        ] {
            assert_eq!(harmless(text), expected, "{text:?}");
        }
        let hostile = "\u{9b}2J\u{1b}c\u{7f}\u{2066}\\";
        let json = serde_json::to_string(hostile).unwrap();
        let escaped = harmless(&json);
        assert!(escaped.is_ascii(), "{escaped}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), hostile);
    }
}
