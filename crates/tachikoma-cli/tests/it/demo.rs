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
    let ran = tachikoma(&scratch).run(["demo", "--dir", "new/er"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let dir = scratch.path().join("new/er");
    let first = format!(
        "a scripted agent works through a plan in {}\n",
        dir.display()
    );
    assert!(ran.stdout.starts_with(&first), "{}", ran.stdout);
    assert!(ran.stdout.contains("The demo showed "), "{}", ran.stdout);
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
