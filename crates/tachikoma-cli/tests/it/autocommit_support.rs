//! A repository for a loop, and helpers to inspect it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tachikoma_testkit::Scratch;

use crate::support::events;

/// First commands of the agents of these tests: they change a tracked file and create a new one.
pub const WORK: &str =
    "echo $TACHIKOMA_ITERATION >> known; echo $TACHIKOMA_ITERATION > new$TACHIKOMA_ITERATION;";

/// Returns a repository with one commit that contains the configuration.
pub fn repository(config: &str) -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("known", "0\n");
    scratch.write("tachikoma.toml", config);
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "--quiet", "-m", "the user's"]);
    scratch
}

/// Returns the subjects of all commits, oldest first.
pub fn subjects(scratch: &Scratch) -> Vec<String> {
    let log = scratch.git(&["log", "--reverse", "--format=%s"]);
    log.lines().map(str::to_owned).collect()
}

/// Returns the names of the files that a commit changed.
pub fn files_of(scratch: &Scratch, commit: &str) -> Vec<String> {
    let words = ["show", "--format=", "--name-only", "--no-renames", commit];
    scratch.git(&words).lines().map(str::to_owned).collect()
}

/// Returns the output of `git status`. The loop's own files are ignored.
pub fn dirty(scratch: &Scratch) -> String {
    scratch.git(&["status", "--porcelain"])
}

/// Returns the ids of the commits that the journal records, oldest first.
pub fn recorded(scratch: &Scratch) -> Vec<String> {
    let kept = events(scratch, "work_kept");
    let id = |event: &Value| event["kept"]["commit"]["id"].as_str().map(str::to_owned);
    kept.iter().filter_map(id).collect()
}

/// Writes a git hook.
pub fn git_hook(scratch: &Scratch, name: &str, script: &str) {
    program(&scratch.path().join(".git/hooks").join(name), script);
}

/// Writes an executable script with `sh`. If this process wrote it, a child of another test could have it open for writing, and it
/// could not be executed.
fn program(path: &Path, script: &str) {
    let made = Command::new("sh")
        .args(["-c", "mkdir -p \"${1%/*}\" && printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .arg(script)
        .status();
    assert!(made.expect("sh starts").success(), "{}", path.display());
}

/// Returns a `PATH` with a git wrapper that runs a script first, with git's arguments in `$*`.
pub fn path_with_git(scratch: &Scratch, script: &str) -> OsString {
    let bin = scratch.home().join("bin");
    let path = std::env::var_os("PATH").expect("PATH is set");
    let git = std::env::split_paths(&path)
        .map(|dir| dir.join("git"))
        .find(|git| git.exists())
        .expect("git is installed");
    let script = format!("{script}\nexec {} \"$@\"", git.display());
    program(&bin.join("git"), &script);
    let all = std::iter::once(bin).chain(std::env::split_paths(&path));
    std::env::join_paths(all).expect("no directory of PATH has a colon")
}

/// Returns the iteration and the commit id of each snapshot of the only loop.
pub fn snapshots(scratch: &Scratch) -> Vec<(u32, String)> {
    let refs = scratch.git(&[
        "for-each-ref",
        "--format=%(refname) %(objectname)",
        "refs/tachikoma/",
    ]);
    let mut found: Vec<(u32, String)> = refs
        .lines()
        .filter_map(|line| {
            let (name, commit) = line.split_once(' ')?;
            Some((name.rsplit('/').next()?.parse().ok()?, commit.to_owned()))
        })
        .collect();
    found.sort();
    found
}
