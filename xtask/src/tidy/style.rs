//! Rules about the form of files.

use super::code::{before_unit_tests, code_only, lines_with};
use super::{Finding, Source, Tree};

const LINES_MAX: usize = 800;
const SIZE_BYTES_MAX: u64 = 1024 * 1024;

/// Path of the only test file that may sleep.
const AWAITING: &str = "crates/tachikoma-testkit/src/awaiting.rs";

// The words are put together, so that this file does not contain them.
const UNFINISHED_TEXT: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
const UNFINISHED_CODE: [&str; 6] = [
    "todo!",
    "unimplemented!",
    "dbg!",
    "#[ignore",
    "#[allow(",
    "#![allow(",
];
const SLEEPS: [&str; 3] = ["thread::sleep", "time::sleep", "time::sleep_until"];
const ONE_MACHINE: [&str; 6] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/tmp/", "wt/"),
    concat!("/tmp/", "target-"),
    concat!("arti", "factory"),
    concat!("index.", "crates.io"),
];

/// No Rust file is longer than `LINES_MAX` lines.
pub fn files_are_short(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .map(|source| (source, source.text.lines().count()))
        .filter(|&(_, lines)| lines > LINES_MAX)
        .map(|(source, lines)| {
            let rule = format!("{lines} lines; split it by idea, {LINES_MAX} are the most");
            Finding::file(&source.path, rule)
        })
        .collect()
}

/// Each file starts with a `//!` comment about its purpose.
pub fn files_say_what_they_are_for(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| {
            let rule = "starts with `//!`: what it is for, in one or two sentences";
            Finding::new(&source.path, 1, rule)
        })
        .collect()
}

/// The code has no markers of unfinished work, and no ignored tests.
pub fn nothing_is_left_unfinished(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.rust() {
        let code = code_only(&source.text);
        let text = UNFINISHED_TEXT.map(|word| (word, source.text.as_str()));
        let code = UNFINISHED_CODE.map(|word| (word, code.as_str()));
        for (word, place) in text.into_iter().chain(code) {
            let rule = format!("`{word}` is not for the main branch");
            let found = |line| Finding::new(&source.path, line, rule.as_str());
            findings.extend(lines_with(place, word).map(found));
        }
    }
    findings
}

/// Tests wait for states and do not sleep: a sleep is either too long or too short.
pub fn tests_do_not_sleep(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.rust().filter(|source| source.path != AWAITING) {
        let code = code_only(&source.text);
        let first_line = first_line_of_tests(source, &code);
        let sleeping = SLEEPS.iter().flat_map(|word| lines_with(&code, word));
        findings.extend(sleeping.filter(|&line| line >= first_line).map(|line| {
            let rule = "tests do not sleep; `await_until` waits for a state";
            Finding::new(&source.path, line, rule)
        }));
    }
    findings
}

/// Returns the first line of test code. In a `tests` directory and in the test kit, all code is test code.
fn first_line_of_tests(source: &Source, code: &str) -> usize {
    let path = &source.path;
    if path.contains("/tests/") || path.starts_with("crates/tachikoma-testkit/") {
        1
    } else {
        before_unit_tests(code).lines().count() + 1
    }
}

/// No file is so large that it slows down a clone of the repository.
pub fn nothing_is_large(tree: &Tree) -> Vec<Finding> {
    tree.0
        .iter()
        .filter(|source| source.size_bytes > SIZE_BYTES_MAX)
        .map(|source| {
            let rule = format!("{} bytes; 1 MiB is the most", source.size_bytes);
            Finding::file(&source.path, rule)
        })
        .collect()
}

/// No file contains a path or host of a developer's machine.
pub fn nothing_of_one_machine(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.0 {
        for (index, line) in source.text.lines().enumerate() {
            for word in ONE_MACHINE.iter().filter(|word| names(line, word)) {
                let rule = format!("`{word}` exists on one machine only");
                findings.push(Finding::new(&source.path, index + 1, rule));
            }
        }
    }
    findings
}

/// Returns whether a line contains a path. A path inside of a longer path is not found.
fn names(line: &str, word: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || "._-/]}*$".contains(c);
    line.match_indices(word).any(|(start, _)| {
        !word.starts_with('/') || !line[..start].chars().last().is_some_and(goes_on)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;

    #[test]
    fn long_files_are_found() {
        let long = "//! Text.\n".repeat(LINES_MAX + 1);
        let short = "//! Text.\n".repeat(LINES_MAX);
        let found = files_are_short(&tree(&[("a.rs", &long), ("b.rs", &short), ("c.md", &long)]));
        let expected = "a.rs: 801 lines; split it by idea, 800 are the most";
        assert_eq!(seen(&found), expected);
    }

    #[test]
    fn files_without_a_purpose_are_found() {
        let files = [
            ("a.rs", "use x;\n//! Late.\n"),
            ("b.rs", "//! For x.\n"),
            ("c.md", ""),
        ];
        let found = files_say_what_they_are_for(&tree(&files));
        let expected = "a.rs:1: starts with `//!`: what it is for, in one or two sentences";
        assert_eq!(seen(&found), expected);
    }

    #[test]
    fn unfinished_code_is_found() {
        let text = format!(
            "// {}: later\nlet x = \"dbg!\";\ndbg!(x);\n#[ignore = \"slow\"]\n#[allow(unused)]\n",
            UNFINISHED_TEXT[0]
        );
        let found = nothing_is_left_unfinished(&tree(&[("a.rs", &text), ("b.md", &text)]));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 3, 4, 5], "{}", seen(&found));
    }

    #[test]
    fn sleeping_tests_are_found() {
        let product = "fn f() { tokio::time::sleep(d); }\n#[cfg(test)]\nmod tests {\n";
        let unit = format!("{product}    thread::sleep(d);\n}}\n");
        let files = [
            ("crates/a/src/lib.rs", product),
            ("crates/a/src/unit.rs", &unit),
            ("crates/a/tests/it/main.rs", product),
            (AWAITING, &unit),
        ];
        let found = tests_do_not_sleep(&tree(&files));
        assert_eq!(
            seen(&found),
            "crates/a/src/unit.rs:4: tests do not sleep; `await_until` waits for a state\n\
             crates/a/tests/it/main.rs:1: tests do not sleep; `await_until` waits for a state"
        );
    }

    #[test]
    fn large_files_are_found() {
        let mut files = tree(&[("a.bin", "x"), ("b.bin", "x")]);
        files.0[0].size_bytes = SIZE_BYTES_MAX + 1;
        let found = nothing_is_large(&files);
        assert_eq!(seen(&found), "a.bin: 1048577 bytes; 1 MiB is the most");
    }

    #[test]
    fn names_of_one_machine_are_found() {
        let place = ONE_MACHINE[0];
        let text = format!("see {place}notes\nscratch{place}notes\nfine\n");
        let found = nothing_of_one_machine(&tree(&[("a.md", &text)]));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1], "{}", seen(&found));
    }
}
