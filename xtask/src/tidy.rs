//! `cargo xtask tidy`: checks rules about the sources that a compiler does not, one function each.

mod architecture;
pub mod code;
mod events;
mod manifests;
mod messages;
mod modules;
mod security;
mod style;
mod types;
mod words;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cargo;

/// A line that violates a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Line number, from 1; 0 means the whole file.
    line: usize,
    rule: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: impl Into<String>) -> Self {
        let (path, rule) = (path.to_owned(), rule.into());
        Self { path, line, rule }
    }

    fn file(path: &str, rule: impl Into<String>) -> Self {
        Self::new(path, 0, rule)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.rule),
            line => write!(f, "{}:{line}: {}", self.path, self.rule),
        }
    }
}

/// A file of the project.
#[derive(Debug)]
struct Source {
    /// Path relative to the workspace, with `/` as separator.
    path: String,
    size_bytes: u64,
    /// Content of the file. Invalid UTF-8 is replaced.
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// All files of the project: those that git tracks or would track.
#[derive(Debug, Default)]
struct Tree(Vec<Source>);

impl Tree {
    fn get(&self, path: &str) -> Option<&Source> {
        self.0.iter().find(|source| source.path == path)
    }

    fn rust(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().filter(|source| source.is_rust())
    }

    /// Returns the Rust files below a directory, which ends with `/`.
    fn rust_below(&self, directory: &str) -> impl Iterator<Item = &Source> {
        self.rust()
            .filter(move |source| source.path.starts_with(directory))
    }
}

/// A rule that needs only the sources.
type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 20] = [
    style::files_are_short,
    style::files_say_what_they_are_for,
    style::nothing_is_left_unfinished,
    style::tests_do_not_sleep,
    style::nothing_is_large,
    style::nothing_of_one_machine,
    words::words_are_plain,
    words::crates_state_their_rule,
    architecture::the_core_is_pure,
    architecture::one_file_is_unsafe,
    architecture::one_file_reads_the_clock,
    modules::siblings_have_no_cycles,
    types::a_type_name_means_one_thing,
    types::a_type_is_implemented_in_one_file,
    types::running_state_is_small,
    manifests::lints_are_the_workspaces,
    manifests::dependencies_have_a_job,
    security::evidence_exists,
    events::all_are_documented,
    messages::quoted_ones_are_printed,
];

/// Prints all findings. Fails if there are any.
pub fn run(root: &Path) -> Result<(), String> {
    let tree = read_tree(root)?;
    let metadata = read_metadata(root)?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.extend(manifests::dependencies_point_one_way(&metadata));
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => Err("1 finding".into()),
        count => Err(format!("{count} findings")),
    }
}

fn read_tree(root: &Path) -> Result<Tree, String> {
    let mut git = Command::new("git");
    // In CI the checkout may belong to another user than the build process, which git would refuse.
    git.args(["-c", "safe.directory=*", "ls-files", "-z"]);
    git.args(["--cached", "--others"]);
    let names = output_of(git.arg("--exclude-standard").current_dir(root))?;
    let mut sources = Vec::new();
    for path in names.split('\0').filter(|name| !name.is_empty()) {
        let file = root.join(path);
        // A file that was removed only from the work tree is still in git's list.
        if !file.is_file() {
            continue;
        }
        let bytes = fs::read(&file).map_err(|error| format!("read {path}: {error}"))?;
        sources.push(Source {
            path: path.into(),
            size_bytes: bytes.len() as u64,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        });
    }
    Ok(Tree(sources))
}

fn read_metadata(root: &Path) -> Result<serde_json::Value, String> {
    let mut metadata = cargo(root);
    metadata.args(["metadata", "--no-deps", "--offline"]);
    let text = output_of(metadata.args(["--format-version", "1"]))?;
    serde_json::from_str(&text).map_err(|error| format!("read cargo's metadata: {error}"))
}

fn output_of(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("start {program}: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} failed: {}", stderr.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tachikoma_testkit::Scratch;

    /// Creates a tree from small inputs.
    pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
        let source = |&(path, text): &(&str, &str)| Source {
            path: path.into(),
            size_bytes: text.len() as u64,
            text: text.into(),
        };
        Tree(files.iter().map(source).collect())
    }

    /// Returns findings as they are printed, one per line.
    pub(super) fn seen(findings: &[Finding]) -> String {
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        lines.join("\n")
    }

    #[test]
    fn new_files_are_checked_but_ignored_and_removed_ones_are_not() {
        let scratch = Scratch::with_git();
        scratch.write(".gitignore", "ignored/\n");
        scratch.write("ignored/a.rs", "");
        scratch.write("tracked.rs", "//! Text.\n");
        let removed = scratch.write("removed.rs", "");
        scratch.git(&["add", "."]);
        fs::remove_file(removed).unwrap();
        scratch.write("new.rs", "");

        let tree = read_tree(&scratch.path()).unwrap();
        let paths: Vec<&str> = tree.rust().map(|source| source.path.as_str()).collect();
        assert_eq!(paths, ["new.rs", "tracked.rs"]);
        assert_eq!(tree.get("tracked.rs").unwrap().text, "//! Text.\n");
    }
}
