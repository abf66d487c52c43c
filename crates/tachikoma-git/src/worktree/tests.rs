//! Queries in real repositories and with fake `git` programs.

use super::*;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;
use tachikoma_runtime::clock;

use tachikoma_testkit::Scratch;

fn commit(scratch: &Scratch, subject: &str) {
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "--allow-empty", "-m", subject]);
}

fn names(tree: &WorkTree) -> Vec<&str> {
    let changed = tree.changed.as_ref().expect("the changed files are known");
    changed.iter().map(String::as_str).collect()
}

#[test]
fn summary_names_changed_files_with_unusual_names() {
    let scratch = Scratch::with_git();
    scratch.write("kept.rs", "1");
    scratch.write("edited.rs", "1");
    scratch.write("gone.rs", "1");
    scratch.write(".gitignore", "*.log\n");
    commit(&scratch, "before");
    let start = head(&scratch.path()).expect("there is a commit");
    scratch.write("committed.rs", "1");
    commit(&scratch, "first: of two");
    commit(&scratch, "second of two");
    scratch.write("edited.rs", "2");
    fs::remove_file(scratch.path().join("gone.rs")).unwrap();
    scratch.write("new dir/with \"quotes\" and\nlines.rs", "1");
    scratch.write("noise.log", "1");
    scratch.write(".ralph/state.json", "{}");
    let odd = scratch.path().join(OsStr::from_bytes(b"not-\xff-utf8"));
    fs::write(odd, "1").unwrap();

    let tree = since(&scratch.path(), Some(&start));
    assert_eq!(
        names(&tree),
        [
            "committed.rs",
            "edited.rs",
            "gone.rs",
            "new dir/with \"quotes\" and\\nlines.rs",
            "not-\u{fffd}-utf8",
        ]
    );
    let subjects: Vec<&str> = tree
        .commits
        .iter()
        .map(|commit| {
            commit
                .split_once(' ')
                .expect("the line starts with a hash")
                .1
        })
        .collect();
    assert_eq!(subjects, ["second of two", "first: of two"]);
}

#[test]
fn changed_paths_are_relative_to_the_working_directory() {
    let scratch = Scratch::with_git();
    commit(&scratch, "before");
    let start = head(&scratch.path()).expect("there is a commit");
    scratch.write("top.rs", "1");
    scratch.write("a/beside.rs", "1");
    scratch.write("a/b/here.rs", "1");
    scratch.write("a/b/.ralph/lock", "1");
    commit(&scratch, "after");
    scratch.write("ab/other.rs", "1");
    let tree = since(&scratch.path().join("a/b"), Some(&start));
    assert_eq!(
        names(&tree),
        [
            "../../ab/other.rs",
            "../../top.rs",
            "../beside.rs",
            "here.rs"
        ]
    );
    assert_eq!(head(&scratch.path().join("a/b")), head(&scratch.path()));
    assert_eq!(tree.commits.len(), 1);
}

#[test]
fn work_tree_summary_is_empty_without_a_repository_or_a_start_commit() {
    let plain = Scratch::new();
    assert_eq!(head(&plain.path()), None);
    let made_up = "0123456789012345678901234567890123456789";
    assert_eq!(since(&plain.path(), Some(made_up)), WorkTree::default());

    let empty = Scratch::new();
    empty.git(&["init", "--quiet"]);
    assert_eq!(head(&empty.path()), None);

    let scratch = Scratch::with_git();
    commit(&scratch, "one");
    scratch.write("new.rs", "1");
    assert_eq!(since(&scratch.path(), None), WorkTree::default());
    let gone = since(&scratch.path(), Some(made_up));
    assert_eq!(gone.head, head(&scratch.path()));
    assert_eq!(
        (gone.changed, gone.commits.len()),
        (None, 0),
        "the start commit does not exist"
    );
    assert_eq!(since(&scratch.path(), Some("--help")), WorkTree::default());
    assert_eq!(head(&scratch.path().join("no-such-directory")), None);
}

fn answer_of(script: &str, patience: Duration) -> (Option<usize>, Duration) {
    let scratch = Scratch::new();
    scratch.write_script("git", format!("#!/bin/sh\n{script}\n"));
    let begun = clock::monotonic();
    let questions = GitQueries {
        git: Git::new(&scratch.path(), Some(scratch.path().as_os_str())),
        cancel: CancelToken::new().within(patience),
    };
    let output = questions.stdout(questions.git.command("anything"));
    let took = clock::monotonic() - begun;
    (output.map(|output| output.len()), took)
}

#[test]
fn query_has_a_timeout_and_an_output_limit() {
    let soon = Duration::from_millis(300);
    let late = Duration::from_secs(20);
    for hangs in ["exec sleep 600", "exec >&-; exec sleep 600"] {
        let (output, took) = answer_of(hangs, soon);
        assert_eq!(output, None, "{hangs}");
        assert!(took < late, "{hangs}: {took:?}");
    }
    let (output, took) = answer_of("exec yes", late);
    let bytes = output.expect("the output up to the timeout");
    assert_eq!(bytes, STDOUT_BYTES_MAX);
    assert!(took < late, "{took:?}");
    assert_eq!(answer_of("echo half; exit 1", late).0, None);
}
