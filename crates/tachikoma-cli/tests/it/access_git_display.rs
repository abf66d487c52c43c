//! Commands that show git data run no program named by the repository and pass no secret to git.

use std::fs;

use tachikoma_testkit::Scratch;

use crate::access_secrets::{CANARY, assert_clean, spy};
use crate::autocommit_support::path_with_git;
use crate::cloud_support::{Server, settings};
use crate::git_support::{repository, run_iterations};
use crate::live_pty::Terminal;
use crate::support::tachikoma;

/// Creates a program that records its arguments and the fact that it ran.
fn planted(scratch: &Scratch, name: &str) -> String {
    let path = scratch.home().join(name);
    let script = format!("#!/bin/sh\ntouch {0}.ran; cat \"$@\"\n", path.display());
    scratch.write_script(&path, script).display().to_string()
}

fn ran(scratch: &Scratch) -> Vec<String> {
    let names = fs::read_dir(scratch.home()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".ran")).collect();
    names.sort();
    names
}

#[test]
fn diff_does_not_run_programs_of_the_repository() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > tracked"]);
    scratch.write(".git/info/attributes", "* diff=odd\n");
    for (setting, name) in [
        ("diff.external", "external"),
        ("diff.odd.command", "driver"),
        ("diff.odd.textconv", "text"),
        ("core.pager", "pager"),
        ("pager.diff", "pager-of-diff"),
    ] {
        scratch.git(&["config", setting, &planted(&scratch, name)]);
    }
    let tool = tachikoma(&scratch);
    let shown = tool.run(["diff", "1"]);
    assert_eq!(shown.code(), Some(0), "{}", shown.snapshot());
    assert!(
        shown.stdout.contains("-as committed\n+1\n"),
        "{}",
        shown.snapshot()
    );
    // The operator's own pager is used on a terminal.
    let own = planted(&scratch, "own");
    let global = scratch.home().join("gitconfig");
    fs::write(&global, format!("[core]\n\tpager = {own}\n")).unwrap();
    let tool = tool.env("GIT_CONFIG_GLOBAL", &global);
    let mut terminal = Terminal::start(&tool, &["diff", "1"], 80);
    terminal.await_text("as committed");
    assert_eq!(terminal.wait(), Some(0));
    assert_eq!(ran(&scratch), ["own.ran"]);
    // No program of the repository ran during the rollback.
    fs::remove_file(format!("{own}.ran")).unwrap();
    let mut terminal = Terminal::start(&tool, &["rollback", "1", "--yes"], 80);
    terminal.await_text("1 file changed");
    assert_eq!(terminal.wait(), Some(0));
    assert_eq!(ran(&scratch), [""; 0]);
}

#[test]
fn diff_starts_no_git_in_a_nested_repository() {
    let scratch = repository();
    let nested = scratch.path().join("nested");
    let nested = nested.to_str().unwrap();
    scratch.git(&["init", "--quiet", nested]);
    scratch.write("nested/file", "first\n");
    let commit = "git -C nested add file; git -C nested -c user.name=n -c user.email=n commit -q -m next; git add nested";
    run_iterations(
        &scratch,
        &[commit, &format!("echo second > nested/file; {commit}")],
    );
    let external = planted(&scratch, "external");
    scratch.git(&["-C", nested, "config", "diff.external", &external]);
    scratch.git(&["config", "diff.submodule", "diff"]);
    let shown = tachikoma(&scratch).run(["diff", "2"]);
    assert_eq!(shown.code(), Some(0), "{}", shown.snapshot());
    assert!(
        shown.stdout.contains("+Subproject commit"),
        "{}",
        shown.snapshot()
    );
    assert_eq!(ran(&scratch), [""; 0]);
}

#[test]
fn git_does_not_fetch_missing_objects() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > tracked"]);
    // The repository is a partial clone with a program as its remote, and one blob is missing.
    let fetches = planted(&scratch, "fetches");
    for (setting, value) in [
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", "."),
        ("remote.origin.uploadpack", &fetches),
    ] {
        scratch.git(&["config", setting, value]);
    }
    let blob = scratch.git(&["rev-parse", "HEAD:tracked"]);
    let (dir, name) = blob.trim().split_at(2);
    fs::remove_file(scratch.path().join(".git/objects").join(dir).join(name)).unwrap();
    let _ = tachikoma(&scratch).run(["diff", "1"]);
    let _ = tachikoma(&scratch).run(["rollback", "1", "--yes"]);
    assert_eq!(ran(&scratch), [""; 0]);
}

#[test]
fn commands_that_run_git_hand_it_no_secret() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > tracked"]);
    // A backup for upload contains a bundle of the repository.
    let server = Server::start();
    let notify = "[[notify]]\nto = 'webhook'\nurl_env = 'MY_HOOK'\nsecret_env = 'MY_KEY'\n";
    scratch.write("tachikoma.toml", settings(&server.url(), notify));
    let spy = spy(&scratch);
    let path = path_with_git(&scratch, &format!("{spy} $WHO"));
    let tool = |who: &str| {
        let tool = server.tool(&scratch).env("PATH", &path).env("WHO", who);
        tool.env("MY_HOOK", format!("http://127.0.0.1:9/{CANARY}"))
            .env("MY_KEY", CANARY)
            .env("TACHIKOMA_STATE_PASSPHRASE", CANARY)
    };
    let shows = tool("shows").env("GIT_PAGER", format!("{spy} pager; cat"));
    let mut terminal = Terminal::start(&shows, &["diff", "1"], 80);
    assert_eq!(terminal.wait(), Some(0));
    for who in ["shows", "pager"] {
        assert_clean(&scratch, who);
    }
    for words in [
        &["diff", "1"][..],
        &["state", "backup"],
        &["state", "restore", "--yes"],
        // The purge is the last command, because it deletes the configuration.
        &["rollback", "1", "--yes"],
    ] {
        let who = words[..words.len().min(2)].join("-");
        let ran = tool(&who).run(words);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        assert_clean(&scratch, &who);
    }
}
