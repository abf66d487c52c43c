//! Changes that metadata alone would not show, and files that git has not listed yet.

use super::*;
use std::fs;
use std::time::Duration;
use tachikoma_testkit::{Scratch, await_until};

const LIMIT: Duration = Duration::from_secs(60);

fn scan(scratch: &Scratch, before: Fingerprint) -> Scan {
    let skip = |_: &[u8]| false;
    Fingerprint::scan(&scratch.path(), before, &skip, &CancelToken::new()).unwrap()
}

fn check(scratch: &Scratch, fingerprint: &mut Fingerprint) -> Check {
    fingerprint
        .check(&scratch.path(), &CancelToken::new())
        .unwrap()
}

fn names(files: &[ChangedFile]) -> Vec<String> {
    files.iter().map(|file| file.path.to_string()).collect()
}

#[test]
fn check_reports_every_quick_edit_of_the_same_size() {
    let scratch = Scratch::new();
    scratch.write("file", "none");
    let mut fingerprint = scan(&scratch, Fingerprint::default()).fingerprint;
    let mut missed = Vec::new();
    for round in 0..2000 {
        scratch.write("file", format!("{round:04}"));
        if check(&scratch, &mut fingerprint).changed.len() != 1 {
            missed.push(round);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn check_compares_a_recently_written_file_by_its_content() {
    let scratch = Scratch::new();
    scratch.write("file", "1");
    let mut fingerprint = scan(&scratch, Fingerprint::default()).fingerprint;
    // On a busy machine the check may come too late and is repeated.
    await_until("a check shortly after the write", LIMIT, || {
        scratch.write("file", "1");
        check(&scratch, &mut fingerprint);
        let content = fingerprint.directories[0].files[0].1.content;
        matches!(content, Content::Racy(_))
    });
    // This simulates other content with the same stamp, which newer kernels prevent.
    fingerprint.directories[0].files[0].1.content = Content::Racy(0);
    assert_eq!(names(&check(&scratch, &mut fingerprint).changed), ["file"]);
    await_until("a settled stamp", LIMIT, || {
        assert!(check(&scratch, &mut fingerprint).changed.is_empty());
        fingerprint.directories[0].files[0].1.content == Content::Settled
    });
}

#[test]
fn check_lists_a_recently_changed_directory_again() {
    let scratch = Scratch::new();
    let mut fingerprint = Fingerprint::default();
    await_until("a scan shortly after the change", LIMIT, || {
        fs::remove_file(scratch.write("file", "1")).unwrap();
        fingerprint = scan(&scratch, Fingerprint::default()).fingerprint;
        fingerprint.directories[0].racy
    });
    scratch.write("file", "1");
    // This simulates a directory with an unchanged stamp.
    let stat = rustix::fs::stat(scratch.path()).unwrap();
    fingerprint.directories[0].stamp = Some(stamp(&stat));
    assert!(check(&scratch, &mut fingerprint).rescan);
}

#[test]
fn scan_reports_every_new_name() {
    let scratch = Scratch::new();
    let mut fingerprint = scan(&scratch, Fingerprint::default()).fingerprint;
    for round in 0..500_u32 {
        scratch.write(round.to_string(), "");
        assert!(check(&scratch, &mut fingerprint).rescan, "round {round}");
        let scanned = scan(&scratch, fingerprint);
        assert_eq!(names(&scanned.changed), [round.to_string()]);
        fingerprint = scanned.fingerprint;
    }
}

#[test]
fn files_that_are_not_retained_are_scanned_again() {
    let scratch = Scratch::new();
    scratch.write("dir/kept", "1");
    scratch.write("dir/raced", "1");
    let mut fingerprint = scan(&scratch, Fingerprint::default()).fingerprint;
    fingerprint.retain(|path| path != b"dir/raced");
    assert!(check(&scratch, &mut fingerprint).rescan);
    let scanned = scan(&scratch, fingerprint);
    assert_eq!(names(&scanned.changed), ["dir/raced"]);
}
