//! Objectives: the check boxes of a Markdown file.

use serde::{Deserialize, Serialize};

use crate::markdown::Fences;

/// Maximum number of open and of ticked objectives that are kept by name. The rest is counted.
const NAMED_MAX: usize = 20;

/// Maximum number of malformed check boxes that a warning lists.
const ODD_MAX: usize = 3;

/// Maximum size of the text of one objective in bytes.
const WORDS_BYTES_MAX: usize = 200;

/// Check boxes of the objectives, and how many are ticked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objectives {
    /// Number of check boxes.
    pub total: u32,
    /// Number of check boxes that are ticked.
    pub ticked: u32,
    /// Texts of the first open objectives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
    /// Texts of the first ticked objectives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
    /// The first lines that look like check boxes but are malformed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub odd: Vec<String>,
}

impl Objectives {
    /// Reads the check boxes of a Markdown text: list items that begin with `[x]` or `[X]` are ticked; those with blanks or another sign
    /// in brackets are open. Boxes in code blocks and comments are ignored, and so is `[-]`.
    #[must_use]
    pub fn read(markdown: &str) -> Self {
        let mut objectives = Self::default();
        let mut fences = Fences::default();
        // All line endings and byte order marks are accepted, so that no box is overlooked.
        let text = markdown.strip_prefix('\u{feff}').unwrap_or(markdown);
        let mut lines = text.split(['\n', '\r']);
        while let Some(line) = lines.next() {
            if fences.take(line) {
                continue;
            }
            if let Some(behind) = line.trim_start().strip_prefix(COMMENT) {
                // A comment without an end does not hide boxes.
                let mut rest = lines.clone();
                let ends = |line: &str| line.contains(COMMENT_END);
                if ends(behind) || rest.any(ends) {
                    if !ends(behind) {
                        lines = rest;
                    }
                    continue;
                }
            }
            match check_box(line) {
                Line::Box(ticked, words) => objectives.count(ticked, words),
                Line::Odd if objectives.odd.len() < ODD_MAX => {
                    objectives.odd.push(cut(line.trim()).to_owned());
                }
                Line::Odd | Line::Text => {}
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
            names.push(cut(words).to_owned());
        }
    }
}

/// Start of a Markdown comment.
const COMMENT: &str = "<!--";
const COMMENT_END: &str = "-->";

fn cut(words: &str) -> &str {
    let end = words.floor_char_boundary(WORDS_BYTES_MAX);
    words.get(..end).unwrap_or_default()
}

/// Kind of a line.
enum Line<'a> {
    /// A check box: whether it is ticked, and its text.
    Box(bool, &'a str),
    /// A line that looks like a check box but is malformed.
    Odd,
    /// Any other line.
    Text,
}

fn check_box(line: &str) -> Line<'_> {
    let line = line.trim_start_matches("> ").trim_start();
    let Some(item) = after_marker(line) else {
        let bare = line.trim_start_matches(['-', '*', '+']);
        let meant = |mark: &str| bare.strip_prefix(mark).is_some_and(ends_a_mark);
        return match ["[ ]", "[x]", "[X]"].iter().any(|mark| meant(mark)) {
            true => Line::Odd,
            false => Line::Text,
        };
    };
    let Some((mark, rest)) = item.strip_prefix('[').and_then(|item| item.split_once(']')) else {
        return Line::Text;
    };
    // `[x](link)`, `[a][b]` and `[1]: note` are links.
    if rest.starts_with(['(', '[', ':']) {
        return Line::Text;
    }
    let mut marks = mark.chars();
    let ticked = match (mark.trim(), marks.next(), marks.next()) {
        ("", _, _) => false,
        ("x" | "X", _, None) => true,
        // `[-]` marks a dropped objective.
        ("-", _, _) => return Line::Text,
        // An unknown mark is not a tick.
        (_, Some(other), None) if !other.is_alphanumeric() => false,
        (inside, _, _) if inside.chars().count() == 1 => return Line::Odd,
        _ => return Line::Text,
    };
    // `[ ]word` is not a box.
    match ends_a_mark(rest) {
        true => Line::Box(ticked, rest.trim()),
        false => Line::Odd,
    }
}

fn ends_a_mark(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with([' ', '\t'])
}

/// Returns the text after `-`, `*`, `+`, `1.` or `1)`.
fn after_marker(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = match line.strip_prefix(['-', '*', '+']) {
        Some(rest) => rest,
        None => {
            let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = line.len() - number.len();
            // More digits are not the number of a list item, but a year or a date.
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
    fn check_boxes_of_every_list_style_are_recognized() {
        let read = Objectives::read(
            "# Plan\n- [x] parse\n* [X] print\n+ [ ] colours\n  1. [ ] nested\n2) [x] numbered\n> - [ ] quoted\n\
             - [2024-01-02] a date\n- [link](x)\n- [x](y) link\n- [ ]glued\n[ ] no item\n-[ ] no space\n- [-] dropped\n\
             ```md\n- [ ] example\n```\n~~~\n- [x] another\n~~~\n- [ ]\n",
        );
        assert_eq!((read.total, read.ticked), (7, 3));
        assert_eq!(read.open, ["colours", "nested", "quoted", ""]);
        assert_eq!(read.done, ["parse", "print", "numbered"]);
        assert!(!read.all_ticked());
        assert_eq!(read.odd, ["- [ ]glued", "[ ] no item", "-[ ] no space"]);
    }

    #[test]
    fn malformed_check_boxes_are_reported() {
        for odd in [
            "- [ x ] a",
            "- [v] a",
            "1. [y] a",
            "- [x]a",
            "[x] a",
            "*[X]",
        ] {
            let read = Objectives::read(&format!("- [x] one\n{odd}\n"));
            assert_eq!(
                (read.total, read.odd.as_slice()),
                (1, &[odd.to_owned()][..])
            );
        }
        for plain in [
            "- [-] a",
            "- [ - ] a",
            "- [1]: note",
            "- [a][b]",
            "- [ab] c",
            "- [",
            "[link](x)",
        ] {
            let read = Objectives::read(plain);
            assert_eq!((read.total, read.odd.len()), (0, 0), "{plain}");
        }
    }

    #[test]
    fn check_boxes_in_comments_are_ignored() {
        for (text, total) in [
            ("<!-- - [ ] a -->\n- [x] b", 1),
            ("<!--\n- [ ] a\n- [ ] b\n--> \n- [x] c", 1),
            ("  <!-- old\r\n- [ ] a\r\n-->\r\n- [x] b", 1),
            ("```\n<!--\n```\n- [x] a\n-->", 1),
            // A comment that starts within a line or is never closed must not hide a box.
            ("- [x] a <!-- note\n- [ ] b\n-->", 2),
            ("- [x] write `<!--`\n- [ ] b\n`-->`", 2),
            ("<!-- never ended\n- [x] a\n- [ ] b", 2),
        ] {
            assert_eq!(Objectives::read(text).total, total, "{text:?}");
        }
    }

    #[test]
    fn all_ticked_needs_at_least_one_check_box() {
        assert!(!Objectives::read("nothing here\n").all_ticked());
        assert!(Objectives::read("- [x] one\r\n- [X] two\r\n").all_ticked());
        assert!(!Objectives::read("- [x] one\n- [ ] two").all_ticked());
    }

    #[test]
    fn open_check_boxes_are_found() {
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
    fn many_and_long_objectives_are_bounded() {
        let text = format!("- [ ] {}\n", "ü".repeat(500)).repeat(1000);
        let read = Objectives::read(&text);
        assert_eq!(read.total, 1000);
        assert_eq!(read.open.len(), NAMED_MAX);
        assert!(read.open.iter().all(|words| words.len() <= WORDS_BYTES_MAX));
    }
}
