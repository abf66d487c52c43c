//! Rules about the manifests of crates: the direction of dependencies, and one list of lints.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Finding, Tree};

/// The crates of the workspace. Each may depend on those before it in this list.
const LAYERS: [&str; 15] = [
    "tachikoma-core",
    "tachikoma-agents",
    "tachikoma-fs",
    "tachikoma-test-results",
    "tachikoma-runtime",
    "tachikoma-process",
    "tachikoma-cloud",
    "tachikoma-config",
    "tachikoma-store",
    "tachikoma-git",
    "tachikoma-opencode",
    "tachikoma-loop-runner",
    "tachikoma-cli",
    FOR_TESTS,
    "xtask",
];

/// The test kit. Tests of all crates and the crate `xtask` may depend on it.
const FOR_TESTS: &str = "tachikoma-testkit";

const WORKSPACE_MANIFEST: &str = "Cargo.toml";
const DEPENDENCIES_PAGE: &str = "docs/dependencies.md";
const PROCESS_MANIFEST: &str = "crates/tachikoma-process/Cargo.toml";

/// Crates depend only on crates of lower layers.
pub fn dependencies_point_one_way(metadata: &Value) -> Vec<Finding> {
    let packages: Vec<&Value> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let layer = |name: &str| LAYERS.iter().position(|known| *known == name);
    let mut findings = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(own) = layer(name) else {
            let rule = "unknown crate; add it to tidy's `LAYERS`";
            findings.push(Finding::file(name, rule));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev" && on == FOR_TESTS;
            if !for_tests && layer(on).is_some_and(|other| other >= own) {
                findings.push(Finding::file(name, format!("must not depend on {on}")));
            }
        }
    }
    findings
}

/// All crates use the lints of the workspace. `tachikoma-process` denies `unsafe` where the workspace forbids it, so it cannot
/// inherit the list and repeats it.
pub fn lints_are_the_workspaces(tree: &Tree) -> Vec<Finding> {
    let read = |path: &str, section: &str| {
        tree.get(path).map(|source| {
            let rust = entries(&source.text, &format!("[{section}.rust]"));
            let clippy = entries(&source.text, &format!("[{section}.clippy]"));
            rust.into_iter().chain(clippy).collect::<BTreeMap<_, _>>()
        })
    };
    let Some(mut wanted) = read(WORKSPACE_MANIFEST, "workspace.lints") else {
        return vec![Finding::file(WORKSPACE_MANIFEST, "is missing")];
    };
    let Some(found) = read(PROCESS_MANIFEST, "lints") else {
        return vec![Finding::file(PROCESS_MANIFEST, "is missing")];
    };
    wanted.insert("unsafe_code", "\"deny\"");

    let lints = wanted.keys().chain(found.keys()).copied();
    let lints: BTreeSet<&str> = lints.collect();
    let mut findings = Vec::new();
    for lint in lints {
        let rule = match (wanted.get(lint), found.get(lint)) {
            (Some(wanted), Some(found)) if wanted == found => continue,
            (Some(wanted), Some(found)) => format!("lint {lint} is {found}, should be {wanted}"),
            (Some(wanted), None) => format!("lint {lint} = {wanted} of the workspace is missing"),
            (None, _) => format!("lint {lint} is not one of the workspace's"),
        };
        findings.push(Finding::file(PROCESS_MANIFEST, rule));
    }
    findings
}

/// Each dependency has a documented purpose, and each documented purpose belongs to a dependency.
pub fn dependencies_have_a_job(tree: &Tree) -> Vec<Finding> {
    let Some(manifest) = tree.get(WORKSPACE_MANIFEST) else {
        return vec![Finding::file(WORKSPACE_MANIFEST, "is missing")];
    };
    let Some(page) = tree.get(DEPENDENCIES_PAGE) else {
        return vec![Finding::file(DEPENDENCIES_PAGE, "is missing")];
    };
    let taken: BTreeSet<&str> = entries(&manifest.text, "[workspace.dependencies]")
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !name.starts_with("tachikoma-"))
        .collect();
    let listed: BTreeSet<&str> = page
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .filter(|name| *name != "crate")
        .collect();
    let without_job = taken.difference(&listed);
    let gone = listed.difference(&taken);
    without_job
        .map(|name| format!("does not say what {name} is for"))
        .chain(gone.map(|name| format!("lists {name}, which is not a dependency")))
        .map(|rule| Finding::file(DEPENDENCIES_PAGE, rule))
        .collect()
}

/// Returns the `key = value` lines of one section.
fn entries<'a>(manifest: &'a str, section: &str) -> Vec<(&'a str, &'a str)> {
    manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != section)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> = dependencies
            .iter()
            .map(|(name, kind)| json!({"name": name, "kind": kind}))
            .collect();
        json!({"name": name, "dependencies": dependencies})
    }

    #[test]
    fn dependencies_in_the_wrong_direction_are_found() {
        let metadata = json!({"packages": [
            package("tachikoma-core", &[("serde", None), ("tachikoma-agents", None)]),
            package("tachikoma-agents", &[("tachikoma-core", None), ("tachikoma-testkit", None)]),
            package("tachikoma-cli", &[("tachikoma-core", None), ("tachikoma-testkit", Some("dev"))]),
            package("tachikoma-testkit", &[]),
            package("tachikoma-utils", &[]),
        ]});
        assert_eq!(
            seen(&dependencies_point_one_way(&metadata)),
            "tachikoma-core: must not depend on tachikoma-agents\n\
             tachikoma-agents: must not depend on tachikoma-testkit\n\
             tachikoma-utils: unknown crate; add it to tidy's `LAYERS`"
        );
    }

    #[test]
    fn different_lints_are_found() {
        let workspace = "[workspace.lints.rust]\nunsafe_code = \"forbid\"\n\
                         [workspace.lints.clippy]\n# why\na = \"warn\"\nb = \"warn\"\n[profile.dev]\nx = 1\n";
        let runner =
            "[lints.rust]\nunsafe_code = \"deny\"\n[lints.clippy]\nb = \"allow\"\nc = \"warn\"\n";
        let files = [(WORKSPACE_MANIFEST, workspace), (PROCESS_MANIFEST, runner)];
        let found = lints_are_the_workspaces(&tree(&files));
        let rules: Vec<&str> = found.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(
            rules,
            [
                "lint a = \"warn\" of the workspace is missing",
                "lint b is \"allow\", should be \"warn\"",
                "lint c is not one of the workspace's",
            ]
        );
    }

    #[test]
    fn dependencies_without_a_documented_job_are_found() {
        let manifest = "[workspace.dependencies]\ntachikoma-core = \"1\"\n\
                        serde = { version = \"1\", features = [\"x\"] }\ntoml = \"1\"\n[lints]\n";
        let page = "| crate | its one job |\n|---|---|\n| toml | reads |\n| rand | draws |\n";
        let files = [(WORKSPACE_MANIFEST, manifest), (DEPENDENCIES_PAGE, page)];
        assert_eq!(
            seen(&dependencies_have_a_job(&tree(&files))),
            "docs/dependencies.md: does not say what serde is for\n\
             docs/dependencies.md: lists rand, which is not a dependency"
        );
    }

    #[test]
    fn equal_lints_are_accepted() {
        let workspace = "[workspace.lints.rust]\nunsafe_code = \"forbid\"\n";
        let runner = "[lints.rust]\nunsafe_code = \"deny\"\n";
        let files = [(WORKSPACE_MANIFEST, workspace), (PROCESS_MANIFEST, runner)];
        assert_eq!(seen(&lints_are_the_workspaces(&tree(&files))), "");
    }
}
