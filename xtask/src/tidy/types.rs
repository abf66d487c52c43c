//! Rules about the types of a crate: a name means one thing, methods are in one file, and running state is small.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Fields, Item, Type};

use super::modules::is_for_tests;
use super::{Finding, Source, Tree};

/// Maximum number of fields of a struct that holds running state.
const FIELDS_MAX: usize = 12;

/// Directories with code that runs loops and servers.
const RUNNING: [&str; 3] = [
    "crates/tachikoma-git/src/",
    "crates/tachikoma-loop-runner/src/",
    "crates/tachikoma-opencode/src/",
];

/// Structs that are settings and have no running state.
const SETTINGS: [&str; 2] = ["LoopConfig", "SupervisorSettings"];

/// Types with methods in several files. Each of these files is one group of transitions of a state machine.
const STATE_MACHINES: [&str; 2] = ["Explain", "Stepper"];

/// Names that may be used twice: in the core once for loops and once for the OpenCode server.
const TWICE: [&str; 1] = ["Stepper"];

/// A type name is declared once in a crate.
pub fn a_type_name_means_one_thing(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for_each_crate(tree, |files| {
        let mut declared: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (source, items) in files {
            for name in items.iter().filter_map(type_name) {
                declared.entry(name).or_default().push(&source.path);
            }
        }
        for (name, paths) in declared {
            if paths.len() > 1 && !TWICE.contains(&name.as_str()) {
                let rule = format!("type `{name}` is declared in {} too", paths[1..].join(", "));
                findings.push(Finding::file(paths[0], rule));
            }
        }
    });
    findings
}

/// The inherent methods of a type are in one file.
pub fn a_type_is_implemented_in_one_file(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for_each_crate(tree, |files| {
        let mut files_of: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (source, items) in files {
            for name in items.iter().filter_map(implemented) {
                files_of.entry(name).or_default().insert(&source.path);
            }
        }
        for (name, paths) in files_of {
            if paths.len() > 1 && !STATE_MACHINES.contains(&name.as_str()) {
                let paths: Vec<&str> = paths.into_iter().collect();
                let rule = format!("`{name}` has methods in {} too", paths[1..].join(", "));
                findings.push(Finding::file(paths[0], rule));
            }
        }
    });
    findings
}

/// Structs in the code that runs loops and servers have at most `FIELDS_MAX` fields, except settings.
pub fn running_state_is_small(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for_each_crate(tree, |files| {
        for (source, items) in files {
            if !RUNNING.iter().any(|dir| source.path.starts_with(dir)) {
                continue;
            }
            for item in items {
                if let Item::Struct(found) = item
                    && let Fields::Named(fields) = &found.fields
                    && fields.named.len() > FIELDS_MAX
                    && !SETTINGS.contains(&found.ident.to_string().as_str())
                {
                    let (name, count) = (&found.ident, fields.named.len());
                    let rule = format!("`{name}` has {count} fields, {FIELDS_MAX} are the most");
                    findings.push(Finding::file(&source.path, rule));
                }
            }
        }
    });
    findings
}

/// Crates to which this rule does not apply yet.
const UNCHECKED: [&str; 5] = [
    "tachikoma-agents",
    "tachikoma-core",
    "tachikoma-git",
    "tachikoma-opencode",
    "tachikoma-store",
];

/// Calls `check` with the files of each product crate, and their items without tests.
fn for_each_crate<'a>(tree: &'a Tree, mut check: impl FnMut(&[(&'a Source, Vec<Item>)])) {
    let mut crates: BTreeMap<&str, Vec<(&Source, Vec<Item>)>> = BTreeMap::new();
    for source in tree.rust_below("crates/") {
        let Some((name, file)) = source.path["crates/".len()..].split_once("/src/") else {
            continue;
        };
        let is_test = file.ends_with("tests.rs") || file.contains("tests/");
        if name == "tachikoma-testkit" || is_test || UNCHECKED.contains(&name) {
            continue;
        }
        // Files that cannot be parsed are skipped, because the compiler reports them.
        let Ok(parsed) = syn::parse_file(&source.text) else {
            continue;
        };
        let items = parsed.items.into_iter().filter(|item| !is_for_tests(item));
        crates
            .entry(name)
            .or_default()
            .push((source, items.collect()));
    }
    for files in crates.values() {
        check(files);
    }
}

fn type_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Struct(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Returns the type of an inherent `impl` block; `None` for other items.
fn implemented(item: &Item) -> Option<String> {
    let Item::Impl(item) = item else { return None };
    let Type::Path(path) = &*item.self_ty else {
        return None;
    };
    let name = path.path.segments.last()?.ident.to_string();
    item.trait_.is_none().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(path, text)| Source {
            path: format!("crates/tachikoma-loop-runner/src/{path}"),
            size_bytes: 0,
            text: (*text).to_owned(),
        });
        let findings = rule(&Tree(files.collect()));
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn repeated_type_names_are_found() {
        let files = [
            ("a.rs", "struct A; #[cfg(test)] mod tests { struct B; }"),
            ("b.rs", "enum A {} struct B;"),
        ];
        assert_eq!(
            findings(a_type_name_means_one_thing, &files),
            ["type `A` is declared in crates/tachikoma-loop-runner/src/b.rs too"]
        );
    }

    #[test]
    fn methods_of_a_type_outside_of_its_file_are_found() {
        let files = [
            ("a.rs", "struct A; impl A {} impl Clone for B {}"),
            ("b.rs", "impl super::A {} struct B; impl B {}"),
        ];
        assert_eq!(
            findings(a_type_is_implemented_in_one_file, &files),
            ["`A` has methods in crates/tachikoma-loop-runner/src/b.rs too"]
        );
    }

    #[test]
    fn large_structs_are_found() {
        let fields: String = (0..13).map(|number| format!("f{number}: u8,")).collect();
        let large = format!("struct Large {{ {fields} }} struct LoopConfig {{ {fields} }}");
        assert_eq!(
            findings(running_state_is_small, &[("a.rs", &large)]),
            ["`Large` has 13 fields, 12 are the most"]
        );
    }
}
