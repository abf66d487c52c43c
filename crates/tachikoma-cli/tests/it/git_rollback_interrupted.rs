//! Tests of a `tachikoma rollback` that is interrupted.

use std::fs;

use rustix::process::Signal;
use tachikoma_testkit::{Live, Scratch, await_until};

use crate::git_support::{commit_all, repository, run_iterations};
use crate::support::{SOON, tachikoma};

/// Starts a rollback with a git wrapper that waits until the file `go` exists in the home directory.
fn in_the_middle() -> (Scratch, Live) {
    let scratch = repository();
    scratch.write(".gitattributes", "slow filter=slow\n");
    scratch.write("slow", "1\n");
    commit_all(&scratch);
    run_iterations(&scratch, &["echo 2 > slow; echo 2 > tracked"]);
    let home = scratch.home();
    let filter = home.join("filter");
    let text = format!(
        "#!/bin/sh\necho $1 >'{home}/git.new'; mv '{home}/git.new' '{home}/git'\nwhile [ ! -e '{home}/go' ]; do sleep 0.02; done\ncat\n",
        home = home.display()
    );
    scratch.write_script(&filter, text);
    let smudge = format!("'{}' $PPID", filter.display());
    scratch.git(&["config", "filter.slow.smudge", &smudge]);
    let live = tachikoma(&scratch).spawn(["rollback", "1", "--yes"]);
    await_until("git to be in the middle of it", SOON, || {
        home.join("git").exists()
    });
    (scratch, live)
}

fn go(scratch: &Scratch) {
    fs::write(scratch.home().join("go"), "").unwrap();
}

#[test]
fn a_signal_waits_until_the_rollback_is_complete() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (scratch, mut live) = in_the_middle();
        live.signal(signal);
        go(&scratch);
        let ran = live.wait(SOON);
        assert!(
            ran.stdout.contains("the work tree is restored"),
            "{}",
            ran.snapshot()
        );
        assert_eq!(scratch.git(&["status", "--short"]), "");
        let ran = tachikoma(&scratch).run(["events"]);
        assert!(ran.stdout.contains("The operator rolled"), "{}", ran.stdout);
    }
}

#[test]
fn killing_a_rollback_also_kills_its_git_and_the_started_rollback_is_recorded() {
    let (scratch, live) = in_the_middle();
    let git = fs::read_to_string(scratch.home().join("git")).unwrap();
    crate::support::kill(&scratch, live);
    await_until("git to be gone", SOON, || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", git.trim()));
        stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    });
    go(&scratch);
    let ran = tachikoma(&scratch).run(["events"]);
    assert!(
        ran.stdout.contains("The operator starts to roll"),
        "{}",
        ran.stdout
    );
    let ran = tachikoma(&scratch).run(["rollback", "before-rollback-1", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.read("slow"), "2\n");
    assert_eq!(scratch.read("tracked"), "2\n");
}
