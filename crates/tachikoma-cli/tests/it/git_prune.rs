//! Git snapshots are deleted with their loop.

use crate::git_support::{repository, run_iterations, sh};
use crate::support::{loops, status, tachikoma};

const FOREIGN: &str = "refs/tachikoma/loop_00000000-0000-0000-0000-000000000001/1";

fn refs(scratch: &tachikoma_testkit::Scratch) -> Vec<String> {
    let listed = scratch.git(&["for-each-ref", "--format=%(refname)", "refs/tachikoma"]);
    listed.lines().map(Into::into).collect()
}

#[test]
fn a_purge_deletes_the_snapshots_of_its_loops() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a", "echo 2 > a"]);
    run_iterations(&scratch, &["echo 3 > a"]);
    let ran = tachikoma(&scratch).run(["rollback", "1", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    sh(
        &scratch,
        &format!("git update-ref {FOREIGN} HEAD; git update-ref refs/tachikoma/mine HEAD"),
    );
    assert_eq!(refs(&scratch).len(), 6);
    let ran = tachikoma(&scratch).run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(refs(&scratch), [FOREIGN, "refs/tachikoma/mine"]);
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_purge_names_files_it_could_not_delete() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a"]);
    let loop_id = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    scratch.write(format!(".git/refs/tachikoma/{loop_id}/1.lock"), "");
    let ran = tachikoma(&scratch).run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let says =
        format!("warning: the git snapshots of {loop_id} were not deleted: git update-ref failed");
    assert!(ran.stderr.contains(&says), "{}", ran.stderr);
}

#[test]
fn deleting_an_old_loop_deletes_its_snapshots() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a"]);
    let first = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    sh(&scratch, &format!("git update-ref {FOREIGN} HEAD"));
    for _ in 0..10 {
        run_iterations(&scratch, &["true"]);
    }
    assert_eq!(loops(&scratch).len(), 10);
    let refs = refs(&scratch);
    assert!(!refs.iter().any(|name| name.contains(&first)), "{refs:?}");
    assert!(refs.iter().any(|name| name == FOREIGN), "{refs:?}");
    assert_eq!(refs.len(), 11);
}

#[test]
fn a_loop_that_cannot_be_deleted_is_reported() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a"]);
    let first = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    for _ in 0..9 {
        run_iterations(&scratch, &["true"]);
    }
    let lock = format!(".git/refs/tachikoma/{first}/1.lock");
    scratch.write(&lock, "");
    let ran = run_iterations(&scratch, &["true"]);
    assert_eq!(loops(&scratch).len(), 11);
    // The message is in the journal, or in the output if the loop has ended.
    let events = tachikoma(&scratch).run(["events", "--json"]).stdout;
    let warned = format!("{events}{}", ran.stderr);
    let says = format!("{first} is older than the last 10 loops and cannot be deleted: ");
    assert!(warned.contains(&says), "{warned}");
    std::fs::remove_file(scratch.path().join(lock)).unwrap();
    run_iterations(&scratch, &["true"]);
    assert_eq!(loops(&scratch).len(), 10);
}
