//! Rust sources without comments and literals, for rules about code alone.

/// Returns `text` with comments and the contents of literals replaced by spaces. Line numbers do not change.
pub fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = literal_or_comment(rest, code.chars().last());
        if length == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
            code.extend(rest[..length].chars().map(blank));
            rest = &rest[length..];
        }
    }
    code
}

/// Returns the lines that contain `word` as a whole word, counted from 1.
pub fn lines_with<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.lines()
        .enumerate()
        .filter(move |(_, line)| has_word(line, word))
        .map(|(index, _)| index + 1)
}

/// Returns whether `word` occurs as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().last();
        let after = line[start + word.len()..].chars().next();
        let goes_on_before = word.starts_with(in_word) && before.is_some_and(in_word);
        let goes_on_after = word.ends_with(in_word) && after.is_some_and(in_word);
        !goes_on_before && !goes_on_after
    })
}

/// Returns the code before the unit tests, which are at the end of a file.
pub fn before_unit_tests(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(code)
}

/// Returns the length of a comment or literal that starts here; 0 for code.
fn literal_or_comment(rest: &str, previous: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    let in_word = previous.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if in_word { 0 } else { raw_string(rest) }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Returns the length of a literal between two equal quotes, with backslash escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    rest.len()
}

/// Returns the length of a character literal: `'x'` and `'\n'` are literals, `'a` is a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(rest, '\''),
        (_, _) => 0,
    }
}

/// Returns the length of a raw string: `r"..."`, `r#"..."#`, `br##"..."##`.
fn raw_string(rest: &str) -> usize {
    let Some(after) = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')) else {
        return 0;
    };
    let hashes = after.len() - after.trim_start_matches('#').len();
    let Some(body) = after[hashes..].strip_prefix('"') else {
        return 0;
    };
    let end = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - body.len();
    body.find(&end)
        .map_or(rest.len(), |at| start + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(code_only(text), expected);
    }

    #[test]
    fn comments_are_blanked_and_line_numbers_do_not_change() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c\n */ */ d", "a          \n       d");
    }

    #[test]
    fn code_only_replaces_literals_by_spaces() {
        check(r#"f("a\"b") + 1"#, "f(      ) + 1");
        check(r##"f(r#"a"b"#, 'x', '\'')"##, "f(        ,    ,     )");
    }

    #[test]
    fn lifetimes_and_names_with_r_are_code() {
        check("fn for<'a>(x: &'a str)", "fn for<'a>(x: &'a str)");
        check("var\"x\"", "var   ");
        check("r#type", "r#type");
    }

    #[test]
    fn only_whole_words_are_found() {
        let found = |text, word| lines_with(text, word).collect::<Vec<_>>();
        assert_eq!(found("unsafe_code\nunsafe {", "unsafe"), [2]);
        assert_eq!(found("operand::x\nrand::x", "rand::"), [2]);
        assert_eq!(found("todo!()", "todo!"), [1]);
    }

    #[test]
    fn before_unit_tests_cuts_off_the_test_module() {
        assert_eq!(before_unit_tests("a\n#[cfg(test)]\nmod tests {\nb"), "a\n");
    }
}
