//! Symbols at the beginning of report lines. Each meaning has one symbol and one tone.

use crate::view::text::{Text, Tone};

/// What a line of the report means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// Something finished or passed.
    Done,
    /// Something failed or was denied.
    Failed,
    /// The user should know about it.
    Warning,
    /// The loop waits, or something is repeated.
    Wait,
    /// A detail that can be skipped.
    Detail,
}

impl Symbol {
    /// Returns a line inside an iteration: indented, with the symbol.
    pub fn line(self, text: impl Into<String>) -> Text {
        self.after("  ", text)
    }

    /// Returns a line without indentation, such as the outcome of the loop.
    pub fn headline(self, text: impl Into<String>) -> Text {
        self.after("", text)
    }

    fn after(self, indent: &str, text: impl Into<String>) -> Text {
        let (tone, symbol) = match self {
            Self::Done => (Tone::Done, "✓"),
            Self::Failed => (Tone::Failed, "✗"),
            Self::Warning => (Tone::Waiting, "!"),
            Self::Wait => (Tone::Waiting, "↻"),
            Self::Detail => return Text::new(Tone::Detail, format!("{indent}{}", text.into())),
        };
        let rest = if self == Self::Failed {
            Tone::Failed
        } else {
            Tone::Plain
        };
        Text::new(tone, format!("{indent}{symbol} ")).with(rest, text)
    }
}

/// Returns a rule of `columns` columns that begins with a text.
pub fn rule(tone: Tone, line: &str, text: &str, columns: usize) -> Text {
    let begin = Text::new(tone, format!("{line}{line} {text} "));
    let rest = columns.saturating_sub(begin.columns());
    begin.with(tone, line.repeat(rest.max(2)))
}
