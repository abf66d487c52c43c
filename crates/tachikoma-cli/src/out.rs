//! Writes to stdout and stderr, which may be closed. All output of this program is written here, and characters that a
//! terminal would interpret are escaped.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write as _};
use std::sync::OnceLock;

use clap::ColorChoice;

use crate::sanitize::is_harmless;
use crate::view::text::Text;

/// The value of `--color`; unset until the arguments are parsed.
static COLOR: OnceLock<ColorChoice> = OnceLock::new();

/// Sets when colors are printed.
pub fn choose_color(choice: ColorChoice) {
    let _ = COLOR.set(choice);
}

/// Returns whether escape codes may be written to a stream: it is a terminal that understands them, and the user did not disable colors.
/// `--color always` also colors output to a file.
pub fn has_color(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match COLOR.get().copied().unwrap_or(ColorChoice::Auto) {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb(),
    }
}

/// Returns whether the terminal understands no escape codes.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Returns the number of columns of the terminal at stdout; 80 if it is not a terminal or does not report its width.
pub fn columns() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map(|size| usize::from(size.ws_col))
        .ok()
        .filter(|columns| *columns > 0)
        .unwrap_or(80)
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

/// Prints a line. If the reader has closed the pipe (`| head`), the program exits successfully.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{}", harmless(text)) {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// Prints a line with tones. If the reader has closed the pipe (`| head`), the program exits successfully.
pub fn text(text: &Text) {
    let mut out = std::io::stdout().lock();
    let rendered = text.render(has_color(&out));
    if let Err(error) = writeln!(out, "{rendered}") {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// Prints a line about a running loop. If the reader has closed the pipe, the loop continues.
pub fn report(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", harmless(text)).and_then(|()| out.flush());
}

/// Prints a line to standard error. Errors are ignored.
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
