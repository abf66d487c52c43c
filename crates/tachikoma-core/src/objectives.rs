//! Objectives: the check boxes of a Markdown file.

use serde::{Deserialize, Serialize};

/// Objectives of each kind that are kept by name; a hand-off has no room for more, and the rest is counted.
const NAMED_MAX: usize = 20;

/// What is kept of one objective's words.
const WORDS_BYTES_MAX: usize = 200;

/// How far the objectives are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objectives {
    /// Boxes.
    pub total: u32,
    /// Boxes that are ticked.
    pub ticked: u32,
    /// The first ones that are not, in their own words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
    /// The first ones that are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
}

impl Objectives {
    /// Reads the check boxes of a Markdown text: items of a list that begin with `[ ]`, `[x]` or `[X]`. Those in blocks of
    /// code are examples.
    #[must_use]
    pub fn read(markdown: &str) -> Self {
        let mut objectives = Self::default();
        let mut fence: Option<(char, usize)> = None;
        for line in markdown.lines() {
            let text = line.trim_start();
            if let Some((mark, length)) = fence {
                if run_of(text, mark) >= length {
                    fence = None;
                }
                continue;
            }
            fence = ['`', '~']
                .map(|mark| (mark, run_of(text, mark)))
                .into_iter()
                .find(|(_, length)| *length >= 3);
            if fence.is_none()
                && let Some((ticked, words)) = check_box(text)
            {
                objectives.count(ticked, words);
            }
        }
        objectives
    }

    /// Returns whether there are objectives and all are ticked.
    #[must_use]
    pub fn all_ticked(&self) -> bool {
        self.total > 0 && self.ticked == self.total
    }

    fn count(&mut self, ticked: bool, words: &str) {
        self.total = self.total.saturating_add(1);
        let names = if ticked {
            self.ticked = self.ticked.saturating_add(1);
            &mut self.done
        } else {
            &mut self.open
        };
        if names.len() < NAMED_MAX {
            let kept = words.floor_char_boundary(WORDS_BYTES_MAX);
            let kept = words.get(..kept).unwrap_or_default();
            names.push(kept.to_owned());
        }
    }
}

fn run_of(text: &str, mark: char) -> usize {
    text.chars().take_while(|c| *c == mark).count()
}

/// Splits a line that is a box into whether it is ticked, and what it says.
fn check_box(line: &str) -> Option<(bool, &str)> {
    let item = after_marker(line.trim_start_matches("> "))?;
    let (ticked, rest) = if let Some(rest) = item.strip_prefix("[ ]") {
        (false, rest)
    } else {
        let rest = item.strip_prefix("[x]").or(item.strip_prefix("[X]"))?;
        (true, rest)
    };
    // `[x](link)` is a link, and `[ ]word` is no box either.
    (rest.is_empty() || rest.starts_with([' ', '\t'])).then(|| (ticked, rest.trim()))
}

/// The words behind `-`, `*`, `+`, `1.` or `1)`.
fn after_marker(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = match line.strip_prefix(['-', '*', '+']) {
        Some(rest) => rest,
        None => {
            let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = line.len() - number.len();
            // More is no number of a list: a year, or a year and a day.
            if !(1..=9).contains(&digits) {
                return None;
            }
            number.strip_prefix(['.', ')'])?
        }
    };
    let text = rest.trim_start();
    (text.len() < rest.len()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_of_all_lists_count_and_nothing_else_does() {
        let read = Objectives::read(
            "# Plan\n- [x] parse\n* [X] print\n+ [ ] colours\n  1. [ ] nested\n2) [x] numbered\n> - [ ] quoted\n\
             - [2024-01-02] a date\n- [link](x)\n- [x](y) link\n- [ ]glued\n[ ] no item\n-[ ] no space\n- [-] dropped\n\
             ```md\n- [ ] example\n```\n~~~\n- [x] another\n~~~\n- [ ]\n",
        );
        assert_eq!((read.total, read.ticked), (7, 3));
        assert_eq!(read.open, ["colours", "nested", "quoted", ""]);
        assert_eq!(read.done, ["parse", "print", "numbered"]);
        assert!(!read.all_ticked());
    }

    #[test]
    fn all_ticked_needs_at_least_one() {
        assert!(!Objectives::read("nothing here\n").all_ticked());
        assert!(Objectives::read("- [x] one\r\n- [X] two\r\n").all_ticked());
        assert!(!Objectives::read("- [x] one\n- [ ] two").all_ticked());
    }

    #[test]
    fn many_and_long_ones_are_counted_and_cut() {
        let text = format!("- [ ] {}\n", "ü".repeat(500)).repeat(1000);
        let read = Objectives::read(&text);
        assert_eq!(read.total, 1000);
        assert_eq!(read.open.len(), NAMED_MAX);
        assert!(read.open.iter().all(|words| words.len() <= WORDS_BYTES_MAX));
    }
}
