//! Objectives: the check boxes of a Markdown file.

use serde::{Deserialize, Serialize};

use crate::markdown::Fences;

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
    /// Reads the check boxes of a Markdown text: items of a list that begin with `[x]` or `[X]`, which are ticked, or with
    /// blanks or another sign in brackets, which are not. Those in blocks of code are examples, and `[-]` is dropped.
    #[must_use]
    pub fn read(markdown: &str) -> Self {
        let mut objectives = Self::default();
        let mut fences = Fences::default();
        // Whoever wrote the file, on whatever system: no box may be overlooked.
        let text = markdown.strip_prefix('\u{feff}').unwrap_or(markdown);
        for line in text.split(['\n', '\r']) {
            if !fences.take(line)
                && let Some((ticked, words)) = check_box(line)
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

/// Splits a line that is a box into whether it is ticked, and what it says.
fn check_box(line: &str) -> Option<(bool, &str)> {
    let item = after_marker(line.trim_start_matches("> "))?;
    let (mark, rest) = item.strip_prefix('[')?.split_once(']')?;
    let mut marks = mark.chars();
    let ticked = match (mark.trim(), marks.next(), marks.next()) {
        ("", _, _) => false,
        ("x" | "X", _, None) => true,
        // Somebody's own mark is not a tick; `[-]` is what was dropped.
        (_, Some(other), None) if !other.is_alphanumeric() && other != '-' => false,
        _ => return None,
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
    fn an_open_box_is_not_overlooked() {
        for open in [
            "\u{feff}- [ ] first\n- [x] a",
            "- [x] a\r- [ ] b\r",
            "```cargo test``` must pass\n- [x] a\n- [ ] b",
            "- [x] a\n- [] b",
            "- [x] a\n- [  ] b",
            "- [x] a\n- [~] b",
            "- [x] a\n- [/] b",
        ] {
            let read = Objectives::read(open);
            assert_eq!((read.total, read.ticked), (2, 1), "{open:?}");
        }
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
