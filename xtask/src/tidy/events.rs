//! Checks that all events of the journal, which is a public format, are documented.

use super::code::code_only;
use super::{Finding, Tree};

const EVENTS: &str = "crates/tachikoma-core/src/event.rs";
const PAGE: &str = "docs/journal-format.md";

/// Each variant of `LoopEvent` has its own heading or table row with its name in the journal.
pub fn all_are_documented(tree: &Tree) -> Vec<Finding> {
    let Some(events) = tree.get(EVENTS) else {
        return vec![Finding::file(
            EVENTS,
            "is missing; it defines `enum LoopEvent`",
        )];
    };
    let Some(page) = tree.get(PAGE) else {
        return vec![Finding::file(
            PAGE,
            "is missing; it documents every `LoopEvent`",
        )];
    };
    let variants = variants(&events.text, "LoopEvent");
    if variants.is_empty() {
        return vec![Finding::file(
            EVENTS,
            "has no `enum LoopEvent` with variants",
        )];
    }
    variants
        .iter()
        .map(|variant| renamed(&events.text, variant).unwrap_or_else(|| snake_case(variant)))
        .filter(|name| !is_documented(&page.text, name))
        .map(|name| Finding::file(PAGE, format!("says nothing about the event `{name}`")))
        .collect()
}

fn is_documented(page: &str, name: &str) -> bool {
    let quoted = format!("`{name}`");
    page.lines().any(|line| match line.strip_prefix('|') {
        Some(row) => row.trim_start().starts_with(&quoted),
        None => line.starts_with('#') && line.contains(&quoted),
    })
}

/// Returns the names of an enum's variants.
fn variants(source: &str, name: &str) -> Vec<String> {
    let code = code_only(source);
    let Some((_, body)) = code.split_once(&format!("enum {name} {{")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut between = true;
    let mut rest = body;
    while let Some(next) = rest.chars().next() {
        let word = word_at(rest);
        match next {
            '{' | '(' | '[' => depth += 1,
            '}' if depth == 0 => break,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => between = true,
            _ if depth == 0 && between && !word.is_empty() => {
                found.push(word.into());
                between = false;
            }
            _ => {}
        }
        rest = &rest[word.len().max(next.len_utf8())..];
    }
    found
}

/// Returns the name that a serde attribute in the line before the variant gives to it.
fn renamed(source: &str, variant: &str) -> Option<String> {
    let mut before = "";
    for line in source.lines().map(str::trim) {
        if word_at(line) == variant
            && let Some(name) = before.strip_prefix("#[serde(rename = \"")
        {
            return name.strip_suffix("\")]").map(str::to_owned);
        }
        before = line;
    }
    None
}

fn word_at(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (index, c) in name.char_indices() {
        if c.is_uppercase() && index > 0 {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;

    const SOURCE: &str = "\
        //! Events, such as Nothing.\n\
        /// Text, with a Comma.\n\
        #[derive(Debug)]\n\
        pub enum LoopEvent {\n\
            /// It began {\n\
            Started { config: Map<A, B>, why: Option<String> },\n\
            #[serde(rename = \"iteration_ended\")]\n\
            IterationCompleted(Outcome, u32),\n\
            Paused = LAST,\n\
        }\n\
        pub enum Other { Foreign }\n";

    #[test]
    fn variants_are_found() {
        let expected = ["Started", "IterationCompleted", "Paused"];
        assert_eq!(variants(SOURCE, "LoopEvent"), expected);
        assert_eq!(variants(SOURCE, "Other"), ["Foreign"]);
    }

    #[test]
    fn undocumented_events_are_found() {
        let page = "## `started`\n\n| event | meaning |\n|---|---|\n| `paused` | rests |\n\
                    Text about `iteration_ended`.\n";
        let found = all_are_documented(&tree(&[(EVENTS, SOURCE), (PAGE, page)]));
        assert_eq!(
            seen(&found),
            "docs/journal-format.md: says nothing about the event `iteration_ended`"
        );
    }

    #[test]
    fn missing_files_are_named() {
        let found = all_are_documented(&tree(&[(PAGE, "")]));
        let expected = format!("{EVENTS}: is missing; it defines `enum LoopEvent`");
        assert_eq!(seen(&found), expected);
        let found = all_are_documented(&tree(&[(EVENTS, SOURCE)]));
        let expected = format!("{PAGE}: is missing; it documents every `LoopEvent`");
        assert_eq!(seen(&found), expected);
        let found = all_are_documented(&tree(&[(EVENTS, ""), (PAGE, "")]));
        let expected = format!("{EVENTS}: has no `enum LoopEvent` with variants");
        assert_eq!(seen(&found), expected);
    }
}
