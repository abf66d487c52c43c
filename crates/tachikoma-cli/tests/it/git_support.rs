//! Helpers for the tests of git: a repository with a loop in which each iteration runs its own script.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tachikoma_testkit::{Ran, Scratch};

use crate::support::{status, tachikoma};

/// Returns a repository with one commit: `tracked`, `gone`, and a `.gitignore`.
pub fn repository() -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("tracked", "as committed\n");
    scratch.write("gone", "as committed\n");
    scratch.write(".gitignore", "*.log\n");
    commit_all(&scratch);
    scratch
}

pub fn commit_all(scratch: &Scratch) {
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "before"]);
}

/// Runs a loop with one iteration for each script.
#[track_caller]
pub fn run_iterations(scratch: &Scratch, scripts: &[&str]) -> Ran {
    let count = scripts.len().to_string();
    let cases = scripts.iter().enumerate();
    let cases: String = cases
        .map(|(index, script)| format!("{})\n{script}\n;;\n", index + 1))
        .collect();
    let agent = format!("case $TACHIKOMA_ITERATION in\n{cases}esac\n");
    let words = [
        "run",
        "--quiet",
        "--new",
        "--allow-dirty",
        "--no-auto-commit",
        "--delay",
        "0s",
        "--prompt-text",
        "go",
        "--max-iterations",
        &count,
        "--",
        "sh",
        "-ec",
        &agent,
    ];
    let ran = tachikoma(scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        status(scratch)["stats"]["failed"],
        0,
        "each iteration did its work"
    );
    ran
}

/// Returns everything that a rollback must not change: HEAD, branches, index, stashes and git settings.
pub fn untouchable(scratch: &Scratch) -> Vec<Vec<u8>> {
    let git = scratch.path().join(".git");
    let read = |name: &str| fs::read(git.join(name)).unwrap_or_default();
    vec![
        read("HEAD"),
        read("index"),
        read("config"),
        scratch
            .git(&["for-each-ref", "refs/heads", "refs/stash"])
            .into(),
        scratch.git(&["stash", "list"]).into(),
    ]
}

/// Returns names, kinds, modes and contents of the work tree, without `.git` and `.ralph`.
pub fn work_tree(scratch: &Scratch) -> Vec<String> {
    let mut found = Vec::new();
    collect(&scratch.path(), &mut found);
    found.sort();
    found
}

fn collect(dir: &Path, found: &mut Vec<String>) {
    use std::os::unix::fs::PermissionsExt as _;
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if [".git", ".ralph"]
            .iter()
            .any(|name| entry.file_name() == *name)
        {
            continue;
        }
        let path = entry.path();
        let there = fs::symlink_metadata(&path).unwrap();
        let content = if there.is_dir() {
            collect(&path, found);
            continue;
        } else if there.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        let mode = there.permissions().mode();
        found.push(format!("{path:?} {mode:o} {}", content.escape_ascii()));
    }
}

/// Runs a shell command in the work tree.
#[track_caller]
pub fn sh(scratch: &Scratch, script: &str) {
    let status = Command::new("sh")
        .args(["-ec", script])
        .current_dir(scratch.path())
        .env("HOME", scratch.home())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{script}");
}
