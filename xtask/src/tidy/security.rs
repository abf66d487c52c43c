//! Checks that all tests and attacks that `SECURITY.md` names exist, and that it names every attack.

use super::{Finding, Tree};

const PAGE: &str = "SECURITY.md";
const ATTACKS: &str = "xtask/src/attack.rs";

/// Prefix of an attack in its list.
const BEFORE_NAME: &str = "    Hole(\n        \"";

/// `SECURITY.md` cites tests as `` `file.rs::test` `` and attacks as `` `attack name` ``. Reports unknown citations, and attacks that
/// are not cited.
pub fn evidence_exists(tree: &Tree) -> Vec<Finding> {
    let (Some(page), Some(attacks)) = (tree.get(PAGE), tree.get(ATTACKS)) else {
        return vec![Finding::file(PAGE, format!("it or {ATTACKS} is missing"))];
    };
    let rows = attacks.text.split(BEFORE_NAME).skip(1);
    let mut unnamed: Vec<&str> = rows.filter_map(|row| row.split('"').next()).collect();
    let known = unnamed.clone();
    let mut findings = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2) {
            let exists = match (quoted.split_once("::"), quoted.strip_prefix("attack ")) {
                (Some((file, test)), _) => is_test(tree, file, test),
                (None, Some(attack)) => known.contains(&attack),
                (None, None) => continue,
            };
            unnamed.retain(|attack| quoted.strip_prefix("attack ") != Some(attack));
            if !exists {
                findings.push(Finding::new(
                    PAGE,
                    index + 1,
                    format!("there is no `{quoted}`"),
                ));
            }
        }
    }
    let missing = |attack| Finding::file(PAGE, format!("does not name `attack {attack}`"));
    findings.extend(unnamed.into_iter().map(missing));
    findings
}

/// Returns whether a quoted test exists. True if `file` is not a Rust file, because then the quote is the path of a type.
fn is_test(tree: &Tree, file: &str, test: &str) -> bool {
    let (end, begin) = (format!("/{file}"), format!("fn {test}("));
    let is_file = file.ends_with(".rs");
    let has = |source: &super::Source| source.path.ends_with(&end) && source.text.contains(&begin);
    !is_file || tree.rust().any(has)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;

    #[test]
    fn missing_tests_and_attacks_are_named() {
        let page =
            "`a.rs::there` `a.rs::gone` `b.rs::there`\n`attack one` `attack two` `Type::Variant`\n";
        let attacks = "    Hole(\n        \"one\",\n    Hole(\n        \"three\",\n";
        let tree = tree(&[
            (PAGE, page),
            (ATTACKS, attacks),
            ("x/a.rs", "fn there() {}"),
        ]);
        assert_eq!(
            seen(&evidence_exists(&tree)),
            "SECURITY.md:1: there is no `a.rs::gone`\n\
             SECURITY.md:1: there is no `b.rs::there`\n\
             SECURITY.md:2: there is no `attack two`\n\
             SECURITY.md: does not name `attack three`"
        );
    }
}
