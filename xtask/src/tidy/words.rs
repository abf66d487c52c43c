//! Rules about language: words that mark text which is hard to read, and the rule of each crate.

use std::collections::BTreeMap;

use super::{Finding, Source, Tree};

/// Words and phrases of an old style. Most of them hide a noun, or are a metaphor.
const OLD_STYLE: [&str; 13] = [
    "whoever",
    "whatever",
    "nobody",
    "somebody",
    "whose",
    "is no",
    "is none",
    "any more",
    "behind the",
    "behind it",
    "time-out",
    "stands",
    "told",
];

/// Phrases that are allowed: the name of a user, and plain negations.
const ALLOWED: [&str; 4] = ["as nobody", "`nobody`", "there is no", "is no longer"];

/// Number of lines of an area with such a word. A number may only decrease; areas that are not listed have none.
const KNOWN: [(&str, usize); 2] = [("docs", 1), ("tachikoma-core", 10)];

/// Maximum number of findings that are shown for one area.
const SHOWN_MAX: usize = 40;

/// Comments, help texts and documentation use plain words. Help texts are comments of the arguments.
pub fn words_are_plain(tree: &Tree) -> Vec<Finding> {
    words_beyond(tree, &KNOWN)
}

fn words_beyond(tree: &Tree, known: &[(&str, usize)]) -> Vec<Finding> {
    let mut found: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for source in &tree.0 {
        let Some(area) = area(source) else { continue };
        for (number, text) in (1..).zip(source.text.lines()) {
            if let Some(word) = old_word(prose(source, text)) {
                let rule = format!(
                    "`{word}` marks the old style; name the subject, or use the common term"
                );
                let finding = Finding::new(&source.path, number, rule);
                found.entry(area.clone()).or_default().push(finding);
            }
        }
    }
    let mut findings = Vec::new();
    for (area, found) in found {
        let allowed = known.iter().find(|(name, _)| *name == area);
        let allowed = allowed.map_or(0, |(_, count)| *count);
        if found.len() > allowed {
            let rule = format!(
                "{} lines with words of the old style, {allowed} are known",
                found.len()
            );
            findings.push(Finding::file(&area, rule));
            findings.extend(found.into_iter().take(SHOWN_MAX));
        }
    }
    findings
}

/// Returns the crate of a source file, with `/tests` for its tests, or `docs` for a page.
fn area(source: &Source) -> Option<String> {
    if source.path.ends_with(".md") {
        // The changelog is not checked, because it is history.
        return (source.path != "CHANGELOG.md").then(|| "docs".to_owned());
    }
    if !source.is_rust() {
        return None;
    }
    let path = source.path.strip_prefix("crates/").unwrap_or(&source.path);
    let (name, rest) = path.split_once('/')?;
    Some(match rest.starts_with("tests/") {
        true => format!("{name}/tests"),
        false => name.to_owned(),
    })
}

/// Returns the part of a line that is text for readers: a comment or a page.
fn prose<'a>(source: &Source, line: &'a str) -> &'a str {
    if !source.is_rust() {
        return line;
    }
    let start = match line.trim_start().starts_with("//") {
        true => line.find("//"),
        false => line.find(" // "),
    };
    start.map_or("", |start| &line[start..])
}

fn old_word(text: &str) -> Option<&'static str> {
    let mut text = text.to_lowercase();
    for allowed in ALLOWED {
        text = text.replace(allowed, "");
    }
    let is_whole = |word: &str| {
        text.match_indices(word).any(|(at, _)| {
            let part =
                |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_');
            !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next())
        })
    };
    OLD_STYLE.into_iter().find(|word| is_whole(word))
}

/// The first line of each crate states its rule, and ARCHITECTURE.md has the same sentence.
pub fn crates_state_their_rule(tree: &Tree) -> Vec<Finding> {
    let page = tree.get("ARCHITECTURE.md");
    let page = page.map_or("", |page| page.text.as_str());
    let roots = tree.rust().filter(|source| {
        let directory = source.path.strip_suffix("/src/lib.rs");
        let directory = directory.or_else(|| source.path.strip_suffix("/src/main.rs"));
        let name = directory.map(|path| path.strip_prefix("crates/").unwrap_or(path));
        name.is_some_and(|name| !name.contains('/'))
    });
    let unknown = roots.filter(|source| {
        let line = source.text.lines().next().unwrap_or_default();
        let rule = line.trim_start_matches("//!").trim();
        rule.is_empty() || !page.contains(rule)
    });
    unknown
        .map(|source| {
            let rule = "ARCHITECTURE.md does not have this sentence, the rule of the crate";
            Finding::new(&source.path, 1, rule)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;

    #[test]
    fn old_words_are_found_in_comments_and_pages_only() {
        let tree = tree(&[
            (
                "crates/a/src/lib.rs",
                "\x2f/ Whoever calls.\nlet told = \"nobody\"; \x2f/ It is no file.\n",
            ),
            ("docs/a.md", "It runs as nobody.\nIt stands there.\n"),
            ("CHANGELOG.md", "nobody\n"),
        ]);
        let found = words_beyond(&tree, &[("a", 2)]);
        let expected = "docs: 1 lines with words of the old style, 0 are known\n\
            docs/a.md:2: `stands` marks the old style; name the subject, or use the common term";
        assert_eq!(seen(&found), expected);
        let found = words_beyond(&tree, &[("docs", 194)]);
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [0, 1, 2], "{}", seen(&found));
    }

    #[test]
    fn a_crate_without_its_rule_in_the_architecture_is_named() {
        let tree = tree(&[
            ("crates/a/src/lib.rs", "//! Does one thing.\n"),
            ("crates/b/src/lib.rs", "//! Does another thing.\n"),
            ("ARCHITECTURE.md", "| `a` | Does one thing. |\n"),
        ]);
        let expected = "crates/b/src/lib.rs:1: ARCHITECTURE.md does not have this sentence, the rule of the crate";
        assert_eq!(seen(&crates_state_their_rule(&tree)), expected);
    }
}
