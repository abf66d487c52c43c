//! A line of text with tones. Escape codes come only from tones: all other text is escaped when the line is rendered.

use std::fmt::Write as _;

use crate::sanitize::harmless;

/// What a part of a line means. Each meaning has one color, and the text has to be understandable without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Ordinary text.
    Plain,
    /// Finished, passed or allowed: green.
    Done,
    /// Waiting, or a warning: yellow.
    Waiting,
    /// Failed or denied: red.
    Failed,
    /// What the agent does: cyan.
    Agent,
    /// Details that can be skipped: dim.
    Detail,
    /// Headings: bold.
    Strong,
}

impl Tone {
    /// Returns the escape code that starts the tone; `None` for plain text.
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Done => Some("32"),
            Self::Waiting => Some("33"),
            Self::Failed => Some("31"),
            Self::Agent => Some("36"),
            Self::Detail => Some("2"),
            Self::Strong => Some("1"),
        }
    }
}

/// One line of output, as parts with a tone each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    parts: Vec<(Tone, String)>,
}

impl Text {
    /// Returns a line with one part.
    pub fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self::default().with(tone, text)
    }

    /// Returns a line without a tone.
    pub fn plain(text: impl Into<String>) -> Self {
        Self::new(Tone::Plain, text)
    }

    /// Appends a part.
    #[must_use]
    pub fn with(mut self, tone: Tone, text: impl Into<String>) -> Self {
        self.parts.push((tone, text.into()));
        self
    }

    /// Appends ordinary text.
    #[must_use]
    pub fn and(self, text: impl Into<String>) -> Self {
        self.with(Tone::Plain, text)
    }

    /// Appends all parts of another line.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// Returns the first columns of the line.
    #[must_use]
    pub fn cut(&self, columns: usize) -> Self {
        let mut shown = Self::default();
        let mut left = columns;
        for (tone, text) in &self.parts {
            let (head, _) = split_at(text, left);
            left -= head.chars().count();
            shown.push(*tone, head);
        }
        shown
    }

    /// Returns the number of columns of the line. Wide characters count as one column.
    pub fn columns(&self) -> usize {
        self.parts
            .iter()
            .map(|(_, text)| text.chars().count())
            .sum()
    }

    /// Returns the line for a terminal or a file. Characters that a terminal would interpret are escaped, and newlines become spaces.
    pub fn render(&self, color: bool) -> String {
        let mut rendered = String::new();
        for (tone, text) in &self.parts {
            let text = text.replace('\n', " ");
            let text = harmless(&text);
            match tone.code().filter(|_| color && !text.is_empty()) {
                Some(code) => {
                    let _ = write!(rendered, "\u{1b}[{code}m{text}\u{1b}[0m");
                }
                None => rendered.push_str(&text),
            }
        }
        rendered
    }

    /// Breaks the line at word boundaries into lines of at most `columns`. Later lines are indented by `indent` columns. A word that is
    /// longer than a line is broken.
    pub fn wrap(&self, columns: usize, indent: usize) -> Vec<Self> {
        let columns = columns.max(indent + 8);
        let mut lines = Vec::new();
        let (mut line, mut used) = (Self::default(), 0);
        for (tone, text) in &self.parts {
            for word in text.split_inclusive(' ') {
                let mut word = word;
                loop {
                    let visible = word.trim_end_matches(' ').chars().count();
                    if used + visible <= columns {
                        break;
                    }
                    let empty = used <= if lines.is_empty() { 0 } else { indent };
                    if empty {
                        let (head, tail) = split_at(word, columns - used);
                        line.push(*tone, head);
                        word = tail;
                    }
                    line.trim_end();
                    lines.push(std::mem::take(&mut line));
                    line.push(Tone::Plain, &" ".repeat(indent));
                    used = indent;
                }
                line.push(*tone, word);
                used += word.chars().count();
            }
        }
        line.trim_end();
        if !line.parts.is_empty() || lines.is_empty() {
            lines.push(line);
        }
        lines
    }

    /// Appends text to the last part if the tone is the same.
    fn push(&mut self, tone: Tone, text: &str) {
        match self.parts.last_mut() {
            Some((last, part)) if *last == tone => part.push_str(text),
            _ => self.parts.push((tone, text.to_owned())),
        }
    }

    fn trim_end(&mut self) {
        while let Some((_, part)) = self.parts.last_mut() {
            part.truncate(part.trim_end_matches(' ').len());
            if !part.is_empty() {
                return;
            }
            self.parts.pop();
        }
    }
}

/// Splits a text after `chars` characters.
fn split_at(text: &str, chars: usize) -> (&str, &str) {
    match text.char_indices().nth(chars) {
        Some((place, _)) => text.split_at(place),
        None => (text, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_only_tones_make_escape_codes() {
        let line = Text::new(Tone::Failed, "✗ ").and("a\u{1b}[2Jb\nc");
        assert_eq!(line.render(false), "✗ a\\u001b[2Jb c");
        assert_eq!(line.render(true), "\u{1b}[31m✗ \u{1b}[0ma\\u001b[2Jb c");
    }

    #[test]
    fn wrap_breaks_at_words_and_keeps_tones_and_every_character() {
        let line = Text::new(Tone::Agent, "  ● Bash ").and("cargo test --workspace and more");
        let wrapped = |columns| -> Vec<String> {
            let lines = line.wrap(columns, 4);
            lines.iter().map(|line| line.render(false)).collect()
        };
        assert_eq!(
            wrapped(20),
            ["  ● Bash cargo test", "    --workspace and", "    more"]
        );
        assert_eq!(wrapped(80), ["  ● Bash cargo test --workspace and more"]);
        for columns in 0..50 {
            let words = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(
                words(&wrapped(columns).concat()),
                words(&line.render(false))
            );
        }
    }

    #[test]
    fn wrap_breaks_words_that_are_longer_than_a_line() {
        let lines = Text::plain("abcdefghijklmnopqrstuvwxyz").wrap(12, 2);
        let lines: Vec<String> = lines.iter().map(|line| line.render(false)).collect();
        assert_eq!(lines, ["abcdefghijkl", "  mnopqrstuv", "  wxyz"]);
    }
}
