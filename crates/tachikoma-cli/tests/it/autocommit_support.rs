//! A repository for a loop, and helpers to inspect it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tachikoma_testkit::Scratch;

use crate::support::events;

/// What the agents of these tests do first: a change to a file that is known, and a file that is new.
pub const WORK: &str =
    "echo $TACHIKOMA_ITERATION >> known; echo $TACHIKOMA_ITERATION > new$TACHIKOMA_ITERATION;";

/// A repository with one commit, and a configuration that is part of it.
pub fn repository(config: &str) -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("known", "0\n");
    scratch.write("tachikoma.toml", config);
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "--quiet", "-m", "the user's"]);
    scratch
}

/// The first lines of the messages of all commits, oldest first.
pub fn subjects(scratch: &Scratch) -> Vec<String> {
    let log = scratch.git(&["log", "--reverse", "--format=%s"]);
    log.lines().map(str::to_owned).collect()
}

/// The files of a commit.
pub fn files_of(scratch: &Scratch, commit: &str) -> Vec<String> {
    let words = ["show", "--format=", "--name-only", "--no-renames", commit];
    scratch.git(&words).lines().map(str::to_owned).collect()
}

/// What git has to say about the work tree; the loop's own files are ignored.
pub fn dirty(scratch: &Scratch) -> String {
    scratch.git(&["status", "--porcelain"])
}

/// The commits that the journal knows of, oldest first.
pub fn recorded(scratch: &Scratch) -> Vec<String> {
    let kept = events(scratch, "work_kept");
    let id = |event: &Value| event["kept"]["commit"]["id"].as_str().map(str::to_owned);
    kept.iter().filter_map(id).collect()
}

/// Makes a hook of the repository.
pub fn git_hook(scratch: &Scratch, name: &str, script: &str) {
    program(&scratch.path().join(".git/hooks").join(name), script);
}

/// Makes a program that is a script. Not written by this process: another test's child could still hold it open for writing
/// when it is to be run.
fn program(path: &Path, script: &str) {
    let made = Command::new("sh")
        .args(["-c", "mkdir -p \"${1%/*}\" && printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .arg(script)
        .status();
    assert!(made.expect("sh starts").success(), "{}", path.display());
}

/// A `PATH` with a git that does something else first, with its arguments in `$*`.
pub fn path_with_git(scratch: &Scratch, script: &str) -> OsString {
    let bin = scratch.home().join("bin");
    let path = std::env::var_os("PATH").expect("there is a PATH");
    let git = std::env::split_paths(&path)
        .map(|dir| dir.join("git"))
        .find(|git| git.exists())
        .expect("git is installed");
    let script = format!("{script}\nexec {} \"$@\"", git.display());
    program(&bin.join("git"), &script);
    let all = std::iter::once(bin).chain(std::env::split_paths(&path));
    std::env::join_paths(all).expect("no colons")
}

/// The snapshots of the only loop: iteration and commit.
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
