//! Finds out what kind of project a directory contains: its language, its test command and its plan.

use std::path::Path;

use serde_json::Value;

use crate::commands::known_agents::has_file;

/// Names of plan files that other tools use.
const PLANS: [&str; 6] = [
    "plan.md",
    "PLAN.md",
    "TODO.md",
    "IMPLEMENTATION_PLAN.md",
    "fix_plan.md",
    "@fix_plan.md",
];

/// Names of prompt files that other tools use.
const PROMPTS: [&str; 2] = ["prompt.md", "PROMPT.md"];

/// Task list of Ralph tools. Tachikoma does not read it.
pub const RALPH_TASKS: &str = "prd.json";

/// Files that mention pytest if a Python project uses it.
const PYTEST_FILES: [&str; 6] = [
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "tox.ini",
    "requirements.txt",
    "requirements-dev.txt",
];

/// Lock files of package managers, each with the command that runs the test script.
const PACKAGE_MANAGERS: [(&str, &str); 4] = [
    ("pnpm-lock.yaml", "pnpm test"),
    ("yarn.lock", "yarn test"),
    ("bun.lock", "bun run test"),
    ("bun.lockb", "bun run test"),
];

/// How the test command of a language is found.
#[derive(Debug)]
enum TestRule {
    /// It is always the same.
    Command(&'static str),
    /// `pytest` if the project mentions it, otherwise `unittest`.
    Python,
    /// The test script of `package.json`, run by the package manager of the project.
    PackageScript,
}

/// A language, the files that identify it, and its commands.
#[derive(Debug)]
struct Language {
    name: &'static str,
    /// The project uses the language if one of these files exists.
    markers: &'static [&'static str],
    test: TestRule,
    /// Commands besides the tests that an agent needs.
    allow: &'static [&'static str],
}

const LANGUAGES: [Language; 4] = [
    Language {
        name: "Rust",
        markers: &["Cargo.toml"],
        test: TestRule::Command("cargo test"),
        allow: &["cargo build", "cargo check", "cargo clippy", "cargo fmt"],
    },
    Language {
        name: "Python",
        markers: &["pyproject.toml", "setup.py", "requirements.txt"],
        test: TestRule::Python,
        allow: &[],
    },
    Language {
        name: "JavaScript or TypeScript",
        markers: &["package.json"],
        test: TestRule::PackageScript,
        allow: &[],
    },
    Language {
        name: "Go",
        markers: &["go.mod"],
        test: TestRule::Command("go test ./..."),
        allow: &["go build", "go vet", "go test"],
    },
];

/// What a directory contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// Name of the language; `None` if it is not known.
    pub language: Option<&'static str>,
    /// Command that runs the tests; `None` if there is none.
    pub test: Option<String>,
    /// Commands besides the tests that an agent needs.
    pub allow: Vec<&'static str>,
    /// Existing plan file.
    pub plan: Option<&'static str>,
    /// Existing prompt file.
    pub prompt: Option<&'static str>,
    /// Whether there is a task list of a Ralph tool.
    pub has_ralph_tasks: bool,
}

impl Project {
    /// Looks at the files in a directory.
    pub fn detect(dir: &Path) -> Self {
        let is_here = |name: &&str| is_listed(dir, name);
        let language = LANGUAGES
            .iter()
            .find(|language| language.markers.iter().any(is_here));
        let test = language.and_then(|language| test_command(dir, &language.test));
        Self {
            language: language.map(|language| language.name),
            test: test.or_else(|| has_make_target(dir).then(|| "make test".to_owned())),
            allow: language.map_or_else(Vec::new, |language| language.allow.to_vec()),
            plan: PLANS.into_iter().find(is_here),
            prompt: PROMPTS.into_iter().find(is_here),
            has_ralph_tasks: is_here(&RALPH_TASKS),
        }
    }
}

/// Returns whether a directory lists a file under exactly this name. File systems that ignore case would find `PLAN.md` as `plan.md`.
fn is_listed(dir: &Path, name: &str) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    has_file(dir, name) && entries.into_iter().any(|entry| entry.file_name() == name)
}

fn test_command(dir: &Path, rule: &TestRule) -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let command = match rule {
        TestRule::Command(command) => command,
        TestRule::Python => {
            let mentions = PYTEST_FILES
                .iter()
                .any(|name| read(name).contains("pytest"));
            match mentions || has_file(dir, "pytest.ini") || has_file(dir, "conftest.py") {
                true => "pytest",
                false => "python3 -m unittest",
            }
        }
        TestRule::PackageScript => {
            let package: Value = serde_json::from_str(&read("package.json")).ok()?;
            let script = package["scripts"]["test"].as_str()?;
            // This is the script that `npm init` writes. It always fails.
            if script.contains("no test specified") {
                return None;
            }
            let manager = PACKAGE_MANAGERS
                .iter()
                .find(|(lock, _)| has_file(dir, lock));
            manager.map_or("npm test", |(_, command)| command)
        }
    };
    Some(command.to_owned())
}

/// Returns whether the Makefile has a target `test`.
fn has_make_target(dir: &Path) -> bool {
    ["Makefile", "makefile", "GNUmakefile"].iter().any(|name| {
        let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .any(|(targets, rest)| {
                !rest.starts_with('=') && targets.split_whitespace().any(|target| target == "test")
            })
    })
}
