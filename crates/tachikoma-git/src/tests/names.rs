//! Paths with a special meaning for git, a shell or a terminal.

use std::os::unix::ffi::OsStrExt as _;

use super::*;

const NAMES: [&[u8]; 14] = [
    b"two\nlines",
    b"\"quoted\" 'names'",
    b"not-\xff-utf8",
    b"-leading-dash",
    b"--all",
    b":(top)x",
    b":(exclude)a.txt",
    b":!a.txt",
    b"*",
    b"[a].txt",
    b" spaces ",
    b"tab\there",
    b"back\\slash",
    b"dir-\xfe/:(glob)**",
];

fn file(place: &Place, name: &[u8], text: &str) {
    let name = std::ffi::OsStr::from_bytes(name);
    place.scratch.write(name, text);
}

#[test]
fn files_with_unusual_names_are_committed() {
    let place = Place::new();
    place.scratch.write("theirs.txt", "not the loop's");
    let mut tracker = place.tracker();
    for name in NAMES {
        file(&place, name, "1");
    }
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    let mut expected: Vec<RepoPath> = NAMES.iter().copied().map(RepoPath::new).collect();
    expected.sort();
    assert_eq!(survey.changed, expected);
    assert_eq!(commits(&mut tracker), NAMES.len());
    assert_eq!(place.status(), "?? theirs.txt\n");
    for name in NAMES {
        file(&place, name, "2");
    }
    place.scratch.write("a.txt", "of somebody else");
    tracker
        .survey(ChangeOwner::Others, &CancelToken::new())
        .unwrap();
    for name in NAMES {
        file(&place, name, "3");
    }
    // All files belong to others now, including `*`, so nothing is committed.
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop).len(), NAMES.len());
    assert_eq!(commits(&mut tracker), 0);
    place.scratch.git(&["checkout", "--quiet", "."]);
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Others).len(),
        NAMES.len() + 1
    );
    for name in NAMES {
        fs::remove_file(place.scratch.path().join(std::ffi::OsStr::from_bytes(name))).unwrap();
    }
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop).len(), NAMES.len());
    assert_eq!(commits(&mut tracker), NAMES.len());
    assert_eq!(place.status(), "?? theirs.txt\n");
}

#[test]
fn file_named_like_a_pattern_commits_only_itself() {
    let place = Place::new();
    let mut tracker = place.tracker();
    file(&place, b"*", "1");
    file(&place, b":", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    place.scratch.write("a.txt", "theirs");
    place.scratch.write("b.txt", "theirs");
    changed(&mut tracker, ChangeOwner::Others);
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.last_commit(), ["A *", "A :"]);
    assert_eq!(place.status(), " M a.txt\n?? b.txt\n");
}

#[test]
fn ignored_files_with_unusual_names_are_recognized() {
    let place = Place::new();
    let mut tracker = place.tracker();
    for name in [
        &b":(top)x.log"[..],
        b"-x.log",
        b"\xff.log",
        b"a\nb.log",
        b"*.log",
    ] {
        file(&place, name, "1");
    }
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
}
