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
}
