//! Rules about the architecture: a pure core, one unsafe file, one clock.

use super::code::{before_unit_tests, code_only, lines_with};
use super::{Finding, Tree};

const CORE: &str = "crates/tachikoma-core/src/";

/// Crates that do I/O and must get the time from `tachikoma-runtime`.
const CLOCKED: [&str; 6] = [
    "crates/tachikoma-process/src/",
    "crates/tachikoma-config/src/",
    "crates/tachikoma-store/src/",
    "crates/tachikoma-git/src/",
    "crates/tachikoma-opencode/src/",
    "crates/tachikoma-loop-runner/src/",
];

/// The only file with `unsafe` code, which runs between the fork of a process and the start of its program.
const UNSAFE_FILE: &str = "crates/tachikoma-process/src/spawn.rs";

const IMPURE_MODULES: [&str; 5] = ["fs", "env", "net", "process", "thread"];
const IMPURE_WORDS: [&str; 4] = ["SystemTime::now", "Instant::now", "tokio", "rand::"];
const CLOCK_READINGS: [&str; 3] = ["SystemTime::now", "Instant::now", "Timestamp::now"];

/// The core has no I/O, no clock, no randomness and no async.
pub fn the_core_is_pure(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.rust_below(CORE) {
        let code = code_only(&source.text);
        let words = IMPURE_MODULES
            .iter()
            .map(|module| format!("std::{module}"))
            .chain(IMPURE_WORDS.map(Into::into));
        for word in words {
            findings.extend(lines_with(&code, &word).map(|line| {
                let rule = format!("`{word}` does not belong into the pure core");
                Finding::new(&source.path, line, rule)
            }));
        }
        findings.extend(grouped_imports(&code).into_iter().map(|(line, module)| {
            let rule = format!("`std::{module}` does not belong into the pure core");
            Finding::new(&source.path, line, rule)
        }));
    }
    findings
}

/// Finds impure modules inside `use std::{..}`, with the line of the `use`.
fn grouped_imports(code: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (start, lead) in code.match_indices("std::{") {
        let group = &code[start + lead.len()..];
        let group = &group[..group.find(';').unwrap_or(group.len())];
        let line = code[..start].lines().count().max(1);
        for module in IMPURE_MODULES {
            let named = |part: &str| part.trim().split("::").next() == Some(module);
            if group.split([',', '}']).any(named) {
                found.push((line, module));
            }
        }
    }
    found
}

/// All `unsafe` code is in one file.
pub fn one_file_is_unsafe(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.rust().filter(|source| source.path != UNSAFE_FILE) {
        let code = code_only(&source.text);
        findings.extend(lines_with(&code, "unsafe").map(|line| {
            let rule = format!("`unsafe` belongs into {UNSAFE_FILE} alone");
            Finding::new(&source.path, line, rule)
        }));
    }
    findings
}

/// Only `tachikoma-runtime` reads the clock. Unit tests may measure time.
pub fn one_file_reads_the_clock(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in CLOCKED.iter().flat_map(|crates| tree.rust_below(crates)) {
        let code = code_only(&source.text);
        for word in CLOCK_READINGS {
            findings.extend(lines_with(before_unit_tests(&code), word).map(|line| {
                let rule = format!("`{word}` belongs into tachikoma-runtime; ask its clock");
                Finding::new(&source.path, line, rule)
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;

    #[test]
    fn impure_code_in_the_core_is_found() {
        let text = "//! `std::fs` in words is fine.\nuse std::fs::File;\n\
                    use std::{collections::BTreeMap, env};\nlet t = Instant::now();\n";
        let found = the_core_is_pure(&tree(&[
            ("crates/tachikoma-core/src/a.rs", text),
            ("crates/tachikoma-core/tests/it.rs", text),
            ("crates/tachikoma-cli/src/main.rs", text),
        ]));
        assert_eq!(
            seen(&found),
            "crates/tachikoma-core/src/a.rs:2: `std::fs` does not belong into the pure core\n\
             crates/tachikoma-core/src/a.rs:4: `Instant::now` does not belong into the pure core\n\
             crates/tachikoma-core/src/a.rs:3: `std::env` does not belong into the pure core"
        );
    }

    #[test]
    fn core_may_import_pure_items_of_std() {
        let text = "use std::{collections::HashMap, fmt::{self, Display}};\nlet env = 1;\n";
        let found = the_core_is_pure(&tree(&[("crates/tachikoma-core/src/a.rs", text)]));
        assert_eq!(seen(&found), "");
    }

    #[test]
    fn unsafe_in_another_file_is_found() {
        let text = "#![deny(unsafe_code)]\n// unsafe in words\nunsafe { f() }\n";
        let found = one_file_is_unsafe(&tree(&[(UNSAFE_FILE, text), ("a.rs", text)]));
        let expected = format!("a.rs:3: `unsafe` belongs into {UNSAFE_FILE} alone");
        assert_eq!(seen(&found), expected);
    }

    #[test]
    fn clock_read_outside_of_the_runtime_crate_is_found() {
        let text = "let t = Instant::now();\n#[cfg(test)]\nmod tests {\n    Instant::now();\n}\n";
        let found = one_file_reads_the_clock(&tree(&[
            ("crates/tachikoma-runtime/src/clock.rs", text),
            ("crates/tachikoma-loop-runner/src/runner.rs", text),
            ("crates/tachikoma-cli/src/main.rs", text),
        ]));
        assert_eq!(
            seen(&found),
            "crates/tachikoma-loop-runner/src/runner.rs:1: \
             `Instant::now` belongs into tachikoma-runtime; ask its clock"
        );
    }
}
