//! Makes agent output safe for a terminal: no escape sequences, no control characters, no reordering of text.

use std::borrow::Cow;

/// Returns `text` as one line, without characters that a terminal would interpret.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let stripped = anstream::adapter::strip_str(text).to_string();
    Cow::Owned(
        stripped
            .chars()
            .map(|character| if character == '\n' { ' ' } else { character })
            .filter(|character| is_harmless(*character))
            .collect(),
    )
}

/// Escapes the characters that a terminal would interpret, and those that reorder text, as `\u001b`. Newlines and tabs are kept. In a JSON
/// string the escape means the same character.
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

/// Returns whether a terminal shows a character without interpreting it.
pub fn is_harmless(character: char) -> bool {
    // Characters that reorder the following text could change the meaning of a line.
    let reorders = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character == '\t' || !(character.is_control() || reorders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_that_a_terminal_interprets_is_left() {
        for (text, expected) in [
            ("plain\ttext, ünïcode ✓", "plain\ttext, ünïcode ✓"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]52;c;aGk=\u{1b}\\clipboard", "clipboard"),
            ("a\rb\u{8}c\u{7}", "abc"),
            ("lint: 2 errors\nfix them", "lint: 2 errors fix them"),
            ("\u{9b}2Jcleared", "2Jcleared"),
            ("\u{202e}gnp.exe", "gnp.exe"),
            ("\u{200f}a\u{61c}b\u{200e}c", "abc"),
        ] {
            let clean = sanitize(text);
            assert!(
                !clean.chars().any(|c| c.is_control() && c != '\t'),
                "{text:?} -> {clean:?}"
            );
            assert_eq!(clean, expected, "{text:?}");
        }
    }

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
