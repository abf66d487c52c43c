//! Patterns over the agent's own final words: what it quotes from its prompt are not its words.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder};

/// Returns the expressions; each was checked with the settings. `^` and `$` are the ends of a line, as everybody expects of them.
pub(super) fn compiled(patterns: &[String]) -> Vec<Regex> {
    let compile = |pattern: &String| RegexBuilder::new(pattern).multi_line(true).build().ok();
    patterns.iter().filter_map(compile).collect()
}

/// Returns the first pattern that the agent's own words match.
pub(super) fn matching(patterns: &[Regex], text: &str, prompt: &str) -> Option<String> {
    if patterns.is_empty() {
        return None;
    }
    let own = own_words(text, prompt);
    let asked: HashSet<&str> = lines(prompt).collect();
    let says = |pattern: &&Regex| {
        let mut found = pattern.find_iter(&own);
        found.any(|part| !is_quoted(&own, part.range(), &asked))
    };
    let matching = patterns.iter().find(says);
    matching.map(|pattern| pattern.as_str().to_owned())
}

/// Leaves out quotations, and passages of the prompt: two lines or more that follow each other there too.
fn own_words(text: &str, prompt: &str) -> String {
    let asked: Vec<&str> = lines(prompt).collect();
    let pairs: HashSet<(&str, &str)> = asked
        .iter()
        .copied()
        .zip(asked.iter().copied().skip(1))
        .collect();
    let said: Vec<&str> = text.lines().collect();
    let spoken: Vec<(usize, &str)> = said
        .iter()
        .enumerate()
        .map(|(at, line)| (at, line.trim()))
        .filter(|(_, line)| !line.is_empty())
        .collect();
    let mut left_out = HashSet::new();
    for pair in spoken.windows(2) {
        if let [(first, above), (second, below)] = pair
            && pairs.contains(&(above, below))
        {
            left_out.extend([*first, *second]);
        }
    }
    let own = said
        .iter()
        .enumerate()
        .filter(|(at, line)| !left_out.contains(at) && !line.trim_start().starts_with('>'));
    own.map(|(_, line)| *line).collect::<Vec<_>>().join("\n")
}

/// Whether a match is a part of one line of the prompt. A whole line is what the agent was asked to say.
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
    fn the_ends_of_a_line_are_ends() {
        for pattern in ["^STUCK", "here$", "^STUCK here$"] {
            assert!(says(pattern, "It is so.\nSTUCK here\nBye."), "{pattern}");
        }
        assert!(!says("^STUCK", "I am STUCK"));
    }

    #[test]
    fn the_agents_own_words_match() {
        assert!(says("BLOCKED", "I am BLOCKED: no network."));
        assert!(says("(?m)^GIVE UP$", "I tried all of it.\nGIVE UP"));
        assert!(says("(?s)tried.*UP", "I tried all of it.\nGIVE UP"));
        assert!(says("(?m)^GIVE UP$", "GIVE UP"));
        assert!(!says("BLOCKED", "I am blocked"), "as it is written");
        assert!(!says("BLOCKED", ""));
    }

    #[test]
    fn what_is_quoted_from_the_prompt_does_not() {
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
    fn the_first_of_several_patterns_is_named() {
        let patterns = compiled(&["a+".to_owned(), "b+".to_owned()]);
        assert_eq!(matching(&patterns, "bbb a", ""), Some("a+".to_owned()));
        assert_eq!(matching(&patterns, "b", ""), Some("b+".to_owned()));
        assert_eq!(matching(&patterns, "c", ""), None);
    }
}
