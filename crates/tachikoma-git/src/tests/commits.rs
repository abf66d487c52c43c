//! Commits: their files, the unchanged user index, and reasons why a commit fails.

use super::*;
use std::thread;
use tachikoma_testkit::await_until;

#[test]
fn commit_includes_new_changed_and_removed_files() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    place.scratch.write("new/file.txt", "1");
    place.remove("dir/b.txt");
    changed(&mut tracker, ChangeOwner::Loop);
    let made = commit(&mut tracker, "tachikoma: iteration 1\n\n# not a comment").unwrap();
    let made = made.unwrap();
    assert_eq!(made.files, 3);
    assert_eq!(made.id, place.head());
    assert_eq!(
        place.last_commit(),
        ["M a.txt", "D dir/b.txt", "A new/file.txt"]
    );
    let said = place.scratch.git(&["log", "-1", "--format=%an: %B"]);
    assert_eq!(
        said.trim_end(),
        "Scratch: tachikoma: iteration 1\n\n# not a comment"
    );
    assert_eq!(place.status(), "");
    assert_eq!(commits(&mut tracker), 0);
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
}

#[test]
fn staged_changes_of_the_user_stay_staged() {
    let place = Place::new();
    place.scratch.write("a.txt", "staged");
    place.scratch.write("added.txt", "staged");
    place.scratch.git(&["add", "a.txt", "added.txt"]);
    place.scratch.write("a.txt", "staged, and changed since");
    let staged = place.scratch.git(&["diff", "--cached"]);
    let mut tracker = place.tracker();
    place.scratch.write("dir/b.txt", "2");
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.last_commit(), ["M dir/b.txt", "A new.txt"]);
    assert_eq!(place.scratch.git(&["diff", "--cached"]), staged);
    assert_eq!(place.status(), "MM a.txt\nA  added.txt\n");
}

#[test]
fn stashes_are_unchanged() {
    let place = Place::new();
    place.scratch.write("a.txt", "stashed");
    place.scratch.git(&["stash", "--quiet"]);
    place.scratch.write("a.txt", "stashed too");
    place.scratch.git(&["stash", "--quiet"]);
    let before = place.scratch.git(&["stash", "list", "--format=%H"]);
    let mut tracker = place.tracker();
    for round in 0..3 {
        snapshot(&mut tracker, round + 1);
        place.scratch.write("dir/b.txt", format!("{round}"));
        changed(&mut tracker, ChangeOwner::Loop);
        assert_eq!(commits(&mut tracker), 1);
    }
    assert_eq!(place.scratch.git(&["stash", "list", "--format=%H"]), before);
}

#[test]
fn commit_is_refused_during_a_merge_or_rebase() {
    for (file, what) in [
        ("MERGE_HEAD", "a merge"),
        ("CHERRY_PICK_HEAD", "a cherry-pick"),
        ("REVERT_HEAD", "a revert"),
        ("rebase-merge/done", "a rebase"),
        ("BISECT_LOG", "a bisection"),
    ] {
        let place = Place::new();
        let mut tracker = place.tracker();
        place.scratch.write("a.txt", "2");
        changed(&mut tracker, ChangeOwner::Loop);
        let marker = place.scratch.write(place.git_dir().join(file), "");
        let head = place.head();
        let error = commit(&mut tracker, "x").unwrap_err();
        assert!(error.to_string().starts_with(what), "{error}");
        assert_eq!(place.head(), head);
        fs::remove_dir_all(
            marker
                .parent()
                .filter(|dir| dir.ends_with("rebase-merge"))
                .unwrap_or(&marker),
        )
        .or_else(|_| fs::remove_file(&marker))
        .unwrap();
        assert_eq!(commits(&mut tracker), 1, "the changes are not lost");
    }
}

#[test]
fn merge_with_conflicts_is_surveyed_and_not_committed() {
    let place = Place::new();
    place.scratch.git(&["checkout", "--quiet", "-b", "other"]);
    place.scratch.write("a.txt", "other");
    place.commit_all("other");
    place.scratch.git(&["checkout", "--quiet", "main"]);
    place.scratch.write("a.txt", "main");
    place.commit_all("main");
    let merge = std::process::Command::new("git")
        .args(["merge", "--quiet", "other"])
        .current_dir(place.scratch.path())
        .output();
    assert!(!merge.unwrap().status.success(), "the merge has conflicts");
    let mut tracker = place.tracker();
    let index = place.index();
    place.scratch.write("dir/b.txt", "2");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["dir/b.txt"]);
    snapshot(&mut tracker, 1);
    assert!(matches!(
        commit(&mut tracker, "x"),
        Err(CommitError::InProgress { what: "a merge" })
    ));
    assert_eq!(place.index(), index);
}

#[test]
fn commit_waits_for_the_index_lock_of_another_git() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    let lock = place.git_dir().join("index.lock");
    fs::write(&lock, "").unwrap();
    let path = place.scratch.home().join("asked");
    place.asked();
    let releasing = thread::spawn(move || {
        // The lock is released after git has failed at least once.
        await_until("git to be asked twice", LIMIT, || {
            let asked = fs::read_to_string(&path).unwrap_or_default();
            asked.matches("intent-to-add").count() >= 2
        });
        fs::remove_file(lock).unwrap();
    });
    assert_eq!(commits(&mut tracker), 1);
    releasing.join().unwrap();
}

#[test]
fn permanent_index_lock_is_reported_and_kept() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    let lock = place.git_dir().join("index.lock");
    fs::write(&lock, "theirs").unwrap();
    let error = commit(&mut tracker, "x").unwrap_err();
    assert!(
        error.to_string().contains(lock.to_str().unwrap()),
        "{error}"
    );
    assert_eq!(fs::read(&lock).unwrap(), b"theirs");
    fs::remove_file(lock).unwrap();
    assert_eq!(commits(&mut tracker), 1);
}

#[test]
fn commit_without_an_identity_fails_and_loses_nothing() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.git(&["config", "--unset", "user.name"]);
    place.scratch.git(&["config", "--unset", "user.email"]);
    place.scratch.git(&["config", "user.useConfigOnly", "true"]);
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    snapshot(&mut tracker, 1);
    let index = place.staged();
    let error = commit(&mut tracker, "x").unwrap_err();
    assert!(error.to_string().contains("user.email"), "{error}");
    assert_eq!(place.staged(), index);
    place.scratch.git(&["config", "user.name", "x"]);
    place
        .scratch
        .git(&["config", "user.email", "x@example.invalid"]);
    assert_eq!(commits(&mut tracker), 1);
}

#[test]
fn file_replaced_by_an_empty_directory_does_not_block_the_commit() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.remove("a.txt");
    fs::create_dir(place.path("a.txt")).unwrap();
    place.scratch.write("dir/b.txt", "2");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "dir/b.txt"]
    );
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["M dir/b.txt"]);
    assert_eq!(commits(&mut tracker), 0);
    fs::remove_dir(place.path("a.txt")).unwrap();
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["D a.txt"]);
}

#[test]
fn runtime_files_are_never_committed() {
    let place = Place::new();
    fs::remove_file(place.path(".ralph/.gitignore")).unwrap();
    place.scratch.write("sub/.ralph/state.json", "1");
    let mut tracker = place.tracker();
    place.scratch.write(".ralph/state.json", "2");
    place.scratch.write("sub/.ralph/state.json", "2");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    assert_eq!(commits(&mut tracker), 0);
}

#[test]
fn files_that_git_refuses_to_add_do_not_block_the_commit() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("nested/x", "1");
    place.scratch.write("build/o.js", "1");
    place.scratch.git(&["add", "-f", "build/o.js"]);
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    place.hook("pre-commit", "exit 1");
    commit(&mut tracker, "x").unwrap_err();
    place.hook("pre-commit", "exit 0");
    let nested = place.path("nested");
    place
        .scratch
        .git(&["init", "--quiet", nested.to_str().unwrap()]);
    place.scratch.git(&["reset", "--quiet"]);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["M a.txt"]);
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    let said = survey.warnings.join("\n");
    assert!(said.contains("build/o.js, nested/x"), "{said}");
    assert_eq!(survey.uncommitted, 0);
    assert_eq!(commit(&mut tracker, "x").unwrap(), None);
}

#[test]
fn changed_git_attributes_leave_nothing_uncommitted() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1\r\n");
    changed(&mut tracker, ChangeOwner::Loop);
    place.scratch.write(".gitattributes", "*.txt text\n");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.at("HEAD", "new.txt"), "1\n");
    assert_eq!((tracker.left(), place.status().as_str()), (0, ""));
    assert_eq!(commit(&mut tracker, "x").unwrap(), None);
}

#[test]
fn commit_emptied_by_new_attributes_is_not_a_failure() {
    let place = Place::new();
    place.scratch.write("a.txt", "1\n");
    place.commit_all("a line");
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "1\r\n");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    fs::create_dir_all(place.git_dir().join("info")).unwrap();
    fs::write(place.git_dir().join("info/attributes"), "*.txt text\n").unwrap();
    assert_eq!(commit(&mut tracker, "x").unwrap(), None);
    assert_eq!(tracker.left(), 0);
}
