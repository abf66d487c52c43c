//! `cargo xtask size`: counts the lines of product code, without comments, blank lines and tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::tidy::code::{before_unit_tests, code_only};

/// Prints the lines of each product crate, and their sum.
pub fn run(root: &Path) -> Result<(), String> {
    let mut sum = 0;
    for (name, lines) in sizes(&root.join("crates"))? {
        println!("{name:<24} {lines:>6}");
        sum += lines;
    }
    println!("{:<24} {sum:>6}", "all");
    Ok(())
}

/// Returns the number of code lines of each crate below a directory, except those that only tests use.
fn sizes(crates: &Path) -> Result<BTreeMap<String, usize>, String> {
    let mut sizes = BTreeMap::new();
    for crate_dir in entries(crates)? {
        let name = crate_dir.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        if name != "tachikoma-testkit" {
            sizes.insert(name, lines_below(&crate_dir.join("src"))?);
        }
    }
    Ok(sizes)
}

fn lines_below(dir: &Path) -> Result<usize, String> {
    let mut lines = 0;
    for path in entries(dir)? {
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            lines += lines_below(&path)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") && !is_test {
            let text = fs::read_to_string(&path);
            let text = text.map_err(|error| format!("read {}: {error}", path.display()))?;
            lines += code_lines(&text);
        }
    }
    Ok(lines)
}

fn code_lines(text: &str) -> usize {
    // Literals are blanked too, so a line counts by its text if it is not blank in the code.
    let code = code_only(before_unit_tests(text));
    let is_code = |(code, text): &(&str, &str)| {
        !code.trim().is_empty() || (!text.trim().is_empty() && !text.trim().starts_with("//"))
    };
    code.lines().zip(text.lines()).filter(is_code).count()
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("list {}: {error}", dir.display());
    let entries = fs::read_dir(dir).map_err(failed)?;
    entries
        .map(|entry| entry.map(|entry| entry.path()).map_err(failed))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_unit_tests_are_not_counted() {
        let text = "//! Doc.\n\nfn one() {\n    // Why.\n    \"two\n   lines\"\n}\n\n#[cfg(test)]\nmod tests {\n    fn two() {}\n}\n";
        assert_eq!(code_lines(text), 4);
    }
}
