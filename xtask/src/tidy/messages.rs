//! Users search `docs/troubleshooting.md` by messages, so the messages that it quotes must be printed by the program.

use super::code::before_unit_tests;
use super::{Finding, Tree};

const PAGE: &str = "docs/troubleshooting.md";

/// Placeholder of a varying part of a message.
const VARIES: &str = "...";

/// Minimum length of a fixed piece of a message. Shorter pieces could match by chance.
const PIECE_MIN_CHARS: usize = 10;

/// Each bold quote is a message: its fixed pieces are in the sources, and at least one of them is long enough to be searched for.
pub fn quoted_ones_are_printed(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.get(PAGE) else {
        return vec![Finding::file(PAGE, "is missing")];
    };
    let printed: Vec<String> = tree
        .rust_below("crates/")
        .filter(|source| source.path.contains("/src/") && !source.path.ends_with("/tests.rs"))
        .map(|source| without_comments(before_unit_tests(&source.text)))
        .collect();
    let is_printed = |piece: &str| printed.iter().any(|text| text.contains(piece));
    let mut findings = Vec::new();
    for (line, message) in bold_quotes(&page.text) {
        let pieces: Vec<&str> = message
            .split(VARIES)
            .map(str::trim)
            .filter(|piece| piece.chars().count() >= PIECE_MIN_CHARS)
            .collect();
        if pieces.is_empty() {
            let rule = format!("`{message}` is too short to be searched for");
            findings.push(Finding::new(PAGE, line, rule));
        }
        let unknown = pieces.into_iter().filter(|piece| !is_printed(piece));
        findings.extend(
            unknown.map(|piece| Finding::new(PAGE, line, format!("nothing prints `{piece}`"))),
        );
    }
    findings
}

/// Returns the bold text in backticks, with its line number.
fn bold_quotes(page: &str) -> Vec<(usize, String)> {
    let mut quotes = Vec::new();
    for (start, mark) in page.match_indices("**`") {
        let after = &page[start + mark.len()..];
        if let Some((quote, _)) = after.split_once("`**") {
            let line = page[..start].matches('\n').count() + 1;
            let words: Vec<&str> = quote.split_whitespace().collect();
            quotes.push((line, words.join(" ")));
        }
    }
    quotes
}

fn without_comments(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;

    const SOURCE: &str = "\
        //! Comments say: the owner is away\n\
        fn say() { print(\"the door of {house} cannot be opened; try the back door\"); }\n\
        #[cfg(test)]\nmod tests {\n    fn a_test() { seen(\"only a test says so\"); }\n}\n";

    fn check(page: &str) -> String {
        let files = [
            (PAGE, page),
            ("crates/a/src/b.rs", SOURCE),
            ("crates/a/tests/it.rs", "\"an integration test says so\""),
        ];
        seen(&quoted_ones_are_printed(&tree(&files)))
    }

    #[test]
    fn quoted_messages_that_the_program_prints_are_accepted() {
        let page = "**`the door of ... cannot be opened; ...`** (exit 1). Or **`cannot be\nopened`**, \
                    and **bold text** with `a quote that is no message`.";
        assert_eq!(check(page), "");
    }

    #[test]
    fn quoted_messages_that_the_program_never_prints_are_reported() {
        let page = "Text.\n**`the door of ... is closed today`**\n**`the owner is away`** \
                    **`only a test says so`** **`an integration test says so`**";
        assert_eq!(
            check(page),
            "docs/troubleshooting.md:2: nothing prints `is closed today`\n\
             docs/troubleshooting.md:3: nothing prints `the owner is away`\n\
             docs/troubleshooting.md:3: nothing prints `only a test says so`\n\
             docs/troubleshooting.md:3: nothing prints `an integration test says so`"
        );
    }

    #[test]
    fn quoted_messages_that_are_too_short_to_search_for_are_reported() {
        assert_eq!(
            check("**`try ... door`**"),
            "docs/troubleshooting.md:1: `try ... door` is too short to be searched for"
        );
    }

    #[test]
    fn missing_page_is_reported() {
        let found = quoted_ones_are_printed(&tree(&[]));
        assert_eq!(seen(&found), "docs/troubleshooting.md: is missing");
    }
}
