//! Reports about commits and rollbacks: to the agent in its prompt, and to the user in `run` and `status`.

use std::fs;

use tachikoma_testkit::{Ran, Scratch};

use crate::autocommit_support::{WORK, git_hook, repository, subjects};
use crate::support::{run, status, tachikoma};

/// An agent that changes a file and saves its prompt outside of the repository.
fn agent(scratch: &Scratch) -> String {
    let home = scratch.home();
    format!(
        "cat > {}/prompt$TACHIKOMA_ITERATION; {WORK}",
        home.display()
    )
}

fn prompt(scratch: &Scratch, iteration: u32) -> String {
    fs::read_to_string(scratch.home().join(format!("prompt{iteration}"))).unwrap()
}

#[track_caller]
fn iterations(scratch: &Scratch, flags: &[&str], up_to: &str) -> Ran {
    let flags = [&["--max-iterations", up_to], flags].concat();
    let ran = tachikoma(scratch).run(run(&flags, &agent(scratch)));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    ran
}

#[test]
fn the_reason_of_a_refused_commit_is_in_the_next_prompt() {
    let scratch = repository("");
    git_hook(
        &scratch,
        "pre-commit",
        "[ -e new2 ] || { echo 'the linter says no' >&2; exit 1; }",
    );
    iterations(&scratch, &[], "3");
    assert_eq!(prompt(&scratch, 1), "go");
    let second = prompt(&scratch, 2);
    assert!(second.contains("the linter says no"), "{second}");
    assert!(second.ends_with("\n\ngo"), "{second}");
    assert_eq!(prompt(&scratch, 3), "go", "the work is committed now");
}

#[test]
fn a_rollback_is_announced_once_in_a_continued_conversation() {
    let scratch = repository("");
    iterations(&scratch, &[], "2");
    let ran = tachikoma(&scratch).run(["rollback", "2", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    iterations(&scratch, &["--allow-dirty"], "4");
    let third = prompt(&scratch, 3);
    let says = "The operator rolled the work tree back to its state before iteration 2.";
    assert!(third.starts_with(says), "{third}");
    assert_eq!(prompt(&scratch, 4), "go");
}

#[test]
fn auto_commit_can_be_turned_on_again() {
    let scratch = repository("");
    iterations(&scratch, &["--no-auto-commit"], "1");
    iterations(&scratch, &[], "2");
    assert_eq!(subjects(&scratch).len(), 1, "the request is recorded");
    iterations(&scratch, &["--auto-commit"], "3");
    iterations(&scratch, &[], "4");
    assert_eq!(
        subjects(&scratch)[1..],
        [
            "tachikoma: iteration 3 succeeded",
            "tachikoma: iteration 4 succeeded"
        ]
    );
}

#[test]
fn run_announces_commits_with_a_detached_head() {
    let scratch = repository("");
    let says = "has a detached HEAD";
    let ran = iterations(&scratch, &[], "1");
    assert!(!ran.stderr.contains(says), "{}", ran.stderr);
    scratch.git(&["checkout", "--quiet", "--detach"]);
    let ran = iterations(&scratch, &[], "2");
    assert_eq!(ran.stderr.matches(says).count(), 1, "{}", ran.stderr);
}

#[test]
fn snapshots_are_listed() {
    let scratch = repository("");
    iterations(&scratch, &[], "2");
    let ran = tachikoma(&scratch).run(["rollback", "1", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let ran = tachikoma(&scratch).run(["diff", "--list"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let moments: Vec<&str> = ran
        .stdout
        .lines()
        .filter_map(|line| line.split_once(' ').map(|(_, moment)| moment))
        .collect();
    assert_eq!(moments, ["1", "2", "before-rollback-1"]);
    for line in ran.stdout.lines() {
        let commit = line.split(' ').next().unwrap();
        scratch.git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]);
    }
}

#[test]
fn files_left_uncommitted_for_the_user_are_in_the_status() {
    let scratch = repository("");
    scratch.write("known", "mine\n");
    iterations(&scratch, &["--allow-dirty"], "2");
    let said = || tachikoma(&scratch).run(["status"]).stdout;
    let withheld = "1 file that the loop changed not committed, because another program or person had changed it before";
    assert!(said().contains(withheld), "{}", said());
    assert_eq!(status(&scratch)["git"]["withheld"], 1);
    scratch.git(&["commit", "--quiet", "-a", "-m", "mine"]);
    iterations(&scratch, &[], "3");
    assert!(!said().contains("somebody else"), "{}", said());
    assert_eq!(status(&scratch)["git"]["withheld"], 0);
}
