//! `tachikoma demo` writes only into its own directory.

use insta::assert_snapshot;
use tachikoma_testkit::Scratch;

use crate::support::{files, tachikoma};

#[test]
fn demo_refuses_a_directory_that_is_not_empty() {
    let scratch = Scratch::new();
    scratch.write("mine/plan.md", "my own plan\n");
    scratch.write("file", "");
    let before = files(&scratch.path());
    let tool = tachikoma(&scratch);
    assert_snapshot!(tool.run(["demo", "--dir", "mine"]).snapshot(), @"
    exit: 2
    --- stdout
    --- stderr
    error: [DIR]/mine is not empty
    hint: name a directory that is empty or does not exist; without `--dir` a temporary one is used
    ");
    assert_snapshot!(tool.run(["demo", "--dir", "file"]).snapshot(), @"
    exit: 2
    --- stdout
    --- stderr
    error: [DIR]/file: Not a directory (os error 20)
    ");
    assert_eq!(files(&scratch.path()), before, "no file is written");
}

#[test]
fn demo_creates_a_relative_directory_and_writes_only_there() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(["demo", "--fast", "--dir", "new/er"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let dir = scratch.path().join("new/er");
    let first = format!(
        "a scripted agent works through a plan in {}\n",
        dir.display()
    );
    assert!(ran.stdout.starts_with(&first), "{}", ran.stdout);
    let (_, end) = ran.stdout.split_once("The demo showed ").unwrap();
    assert_snapshot!(end.replace(&*dir.to_string_lossy(), "[DEMO]"), @"
    a crash with a backoff, a reboot at the redline with a hand-off, and a completed plan.
    Its directory is kept. Try next:
      cd [DEMO]
      tachikoma history              # each iteration and its result
      tachikoma explain 2            # why iteration 2 was repeated
      tachikoma checkpoint show      # the hand-off that the second session got
      git log --oneline              # a commit per iteration
    ");
    assert!(dir.join(".ralph/loops").is_dir());
    let commits = ran.stdout.matches("committed ").count();
    assert_eq!(
        commits, 5,
        "the work of the demo is committed: {}",
        ran.stdout
    );
    assert!(!ran.stdout.contains("warning"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("not committed"), "{}", ran.stdout);
}

#[test]
fn a_failed_demo_prints_no_summary() {
    let scratch = Scratch::new();
    let mut live = tachikoma(&scratch).spawn(["demo", "--dir", "here"]);
    tachikoma_testkit::await_until("it works", crate::support::SOON, || {
        live.stdout().contains("iteration 1")
    });
    live.signal(rustix::process::Signal::TERM);
    let ran = live.wait(crate::support::SOON);
    assert_eq!(ran.code(), Some(143), "{}", ran.snapshot());
    assert!(!ran.stdout.contains("The demo showed"), "{}", ran.stdout);
}

#[test]
fn demo_keeps_its_temporary_directory() {
    let scratch = Scratch::new();
    scratch.write("tmp/file", "");
    let tool = tachikoma(&scratch).env("TMPDIR", scratch.path().join("tmp"));
    let ran = tool.run(["demo", "--fast"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let entries = std::fs::read_dir(scratch.path().join("tmp")).unwrap();
    let plans = entries.filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        path.join(".ralph/loops").is_dir() && ran.stdout.contains(&*path.to_string_lossy())
    });
    assert_eq!(plans.count(), 1, "{}", ran.stdout);
}
