//! Matches patterns against the final text of a turn. Text that the agent quotes from its prompt does not match.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder};

use crate::settings::Settings;

/// Patterns that are matched against final texts of the agent.
#[derive(Debug)]
pub(super) struct Patterns {
    /// Patterns that cause a reboot.
    pub reboot: Vec<Regex>,
    /// Patterns that end the loop.
    pub stop: Vec<Regex>,
}

impl Patterns {
    pub fn new(settings: &Settings) -> Self {
        Self {
            reboot: compiled(&settings.reboot.triggers.on_patterns),
            stop: compiled(&settings.stop_conditions.stop_on_patterns),
        }
    }
}

/// Compiles the patterns, which the settings have validated. `^` and `$` match at line ends.
fn compiled(patterns: &[String]) -> Vec<Regex> {
    let compile = |pattern: &String| RegexBuilder::new(pattern).multi_line(true).build().ok();
    patterns.iter().filter_map(compile).collect()
}

/// Returns the first pattern that matches text of the agent that is not quoted from the prompt.
pub(super) fn matching(patterns: &[Regex], text: &str, prompt: &str) -> Option<String> {
    if patterns.is_empty() {
        return None;
    }
    let own = own_text(text, prompt);
    let asked: HashSet<&str> = lines(prompt).collect();
    let says = |pattern: &&Regex| {
        let mut found = pattern.find_iter(&own);
        found.any(|part| !is_quoted(&own, part.range(), &asked))
    };
    let matching = patterns.iter().find(says);
    matching.map(|pattern| pattern.as_str().to_owned())
}

/// Removes quotations and passages of the prompt. A passage is two or more lines that also follow each other in the prompt.
fn own_text(text: &str, prompt: &str) -> String {
    let asked: Vec<&str> = lines(prompt).collect();
    let pairs: HashSet<(&str, &str)> = asked
        .iter()
        .copied()
        .zip(asked.iter().copied().skip(1))
        .collect();
    let lines_of_text: Vec<&str> = text.lines().collect();
    let filled_lines: Vec<(usize, &str)> = lines_of_text
        .iter()
        .enumerate()
        .map(|(at, line)| (at, line.trim()))
        .filter(|(_, line)| !line.is_empty())
        .collect();
    let mut left_out = HashSet::new();
    for pair in filled_lines.windows(2) {
        if let [(first, above), (second, below)] = pair
            && pairs.contains(&(above, below))
        {
            left_out.extend([*first, *second]);
        }
    }
    let own = lines_of_text
        .iter()
        .enumerate()
        .filter(|(at, line)| !left_out.contains(at) && !line.trim_start().starts_with('>'));
    own.map(|(_, line)| *line).collect::<Vec<_>>().join("\n")
}

/// Returns whether a match is only a part of a line of the prompt. A match of a whole line is not a quotation: a prompt may ask for this line.
fn is_quoted(own: &str, part: std::ops::Range<usize>, asked: &HashSet<&str>) -> bool {
    let start = own[..part.start].rfind('\n').map_or(0, |at| at + 1);
    let end = own[part.end..]
        .find('\n')
        .map_or(own.len(), |at| part.end + at);
    let line = own[start..end].trim();
    asked.contains(line) && own[part].trim() != line
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: &str = "Fix the bug.\nIf you cannot go on, say BLOCKED and why.\n\nWhen all fails, say exactly\nGIVE UP\nand nothing else.\n";

    fn says(pattern: &str, text: &str) -> bool {
        matching(&compiled(&[pattern.to_owned()]), text, PROMPT).is_some()
    }

    #[test]
    fn anchors_match_at_line_ends() {
        for pattern in ["^STUCK", "here$", "^STUCK here$"] {
            assert!(says(pattern, "It is so.\nSTUCK here\nBye."), "{pattern}");
        }
        assert!(!says("^STUCK", "I am STUCK"));
    }

    #[test]
    fn own_words_of_the_agent_match() {
        assert!(says("BLOCKED", "I am BLOCKED: no network."));
        assert!(says("(?m)^GIVE UP$", "I tried all of it.\nGIVE UP"));
        assert!(says("(?s)tried.*UP", "I tried all of it.\nGIVE UP"));
        assert!(says("(?m)^GIVE UP$", "GIVE UP"));
        assert!(
            !says("BLOCKED", "I am blocked"),
            "patterns are case-sensitive"
        );
        assert!(!says("BLOCKED", ""));
    }

    #[test]
    fn quotations_from_the_prompt_do_not_match() {
        for text in [
            "You told me:\nIf you cannot go on, say BLOCKED and why.\nI can.",
            "> say BLOCKED and why\n\nThat is not so.",
            PROMPT,
            "Fix the bug.\n\n  If you cannot go on, say BLOCKED and why.  ",
        ] {
            assert!(!says("BLOCKED", text), "{text}");
        }
        let recited = "When all fails, say exactly\nGIVE UP\nand nothing else.\nIt has not.";
        assert!(!says("GIVE UP", recited));
        let meant = format!("{recited}\nNow it has: GIVE UP");
        assert!(says("GIVE UP", &meant));
    }

    #[test]
    fn first_configured_pattern_that_matches_is_returned() {
        let patterns = compiled(&["a+".to_owned(), "b+".to_owned()]);
        assert_eq!(matching(&patterns, "bbb a", ""), Some("a+".to_owned()));
        assert_eq!(matching(&patterns, "b", ""), Some("b+".to_owned()));
        assert_eq!(matching(&patterns, "c", ""), None);
    }
}
