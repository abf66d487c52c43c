//! Owners of changes: a file that others changed belongs to them until it is committed.

use super::*;

#[test]
fn files_changed_before_the_loop_are_never_committed() {
    let place = Place::new();
    place.scratch.write("a.txt", "theirs");
    place.scratch.write("untracked.txt", "theirs");
    place.remove("dir/b.txt");
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "theirs, and the loop's");
    place.scratch.write("untracked.txt", "the loop was here");
    place.scratch.write("dir/b.txt", "back again, but other");
    place.scratch.write("dir/c.txt", "the loop's");
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert_eq!(survey.uncommitted, 1);
    assert_eq!(
        survey.warnings,
        [
            "files with uncommitted changes that the loop did not make are not committed: a.txt, dir/b.txt, untracked.txt"
        ]
    );
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["M dir/c.txt"]);
    assert_eq!(place.status(), " M a.txt\n M dir/b.txt\n?? untracked.txt\n");
    place.scratch.write("a.txt", "theirs, and the loop's again");
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert!(survey.warnings.is_empty(), "the warning is returned once");
}

#[test]
fn loop_owns_its_changes_to_a_file_after_others_committed_or_reverted_theirs() {
    let place = Place::new();
    place.scratch.write("a.txt", "theirs");
    place.scratch.write("dir/b.txt", "theirs");
    let mut tracker = place.tracker();
    place
        .scratch
        .git(&["commit", "--quiet", "-m", "mine", "a.txt"]);
    place.scratch.git(&["checkout", "--quiet", "dir/b.txt"]);
    let survey = tracker
        .survey(ChangeOwner::Others, &CancelToken::new())
        .unwrap();
    assert!(survey.head_moved);
    assert_eq!(names(&survey), ["dir/b.txt"]);
    place.scratch.write("a.txt", "the loop's");
    place.scratch.write("dir/b.txt", "the loop's");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 2);
}

#[test]
fn file_of_others_that_the_loop_reverts_or_moves_still_belongs_to_others() {
    let place = Place::new();
    place.scratch.write("a.txt", "theirs");
    place.scratch.write("notes.txt", "theirs");
    let mut tracker = place.tracker();
    let kept = snapshot(&mut tracker, 1);
    place.scratch.git(&["stash", "--quiet", "-u"]);
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "notes.txt"]
    );
    snapshot(&mut tracker, 2);
    assert_eq!(commits(&mut tracker), 0);
    drop(tracker);
    let mut tracker = place.tracker();
    place.scratch.git(&["stash", "pop", "--quiet"]);
    place.scratch.write("dir/c.txt", "the loop's");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.status(), " M a.txt\n?? notes.txt\n");
    // The user reverts both files, and then the loop restores them.
    place.scratch.git(&["checkout", "--quiet", "a.txt"]);
    place.remove("notes.txt");
    snapshot(&mut tracker, 3);
    let args = ["restore", "--source", &kept, "a.txt", "notes.txt"];
    place.scratch.git(&args);
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 0);
    // The agent commits the files itself. After that, changes of the loop to these files belong to the loop.
    place.scratch.git(&["add", "-A"]);
    place
        .scratch
        .git(&["commit", "--quiet", "-m", "by the agent"]);
    changed(&mut tracker, ChangeOwner::Loop);
    place.scratch.write("a.txt", "the loop's");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1);
}

#[test]
fn files_of_others_that_were_too_large_or_are_moved_stay_files_of_others() {
    let place = Place::new();
    place.scratch.write("huge.bin", vec![0; 1001]);
    place.scratch.write("notes.txt", "theirs");
    place.scratch.write("empty", "");
    let mut tracker = place.tracker();
    place.scratch.write("huge.bin", "small");
    fs::create_dir(place.path("docs")).unwrap();
    fs::rename(place.path("notes.txt"), place.path("docs/notes.txt")).unwrap();
    place.remove("empty");
    place.scratch.write("__init__.py", "");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["A __init__.py"]);
    assert_eq!(place.status(), "?? docs/notes.txt\n?? huge.bin\n");
}

#[test]
fn changes_between_iterations_belong_to_others() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "the loop's");
    place.scratch.write("dir/b.txt", "the loop's");
    changed(&mut tracker, ChangeOwner::Loop);
    place.scratch.write("dir/b.txt", "the loop's, and theirs");
    place.scratch.write("new.txt", "theirs");
    snapshot(&mut tracker, 2);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["M a.txt"]);
    assert_eq!(place.status(), " M dir/b.txt\n?? new.txt\n");
}

#[test]
fn changes_that_the_agent_committed_are_not_committed_again() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    place.scratch.write("new.txt", "1");
    place.scratch.write("left.txt", "1");
    place.scratch.git(&["add", "a.txt", "new.txt"]);
    place
        .scratch
        .git(&["commit", "--quiet", "-m", "by the agent"]);
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert_eq!(names(&survey), ["a.txt", "left.txt", "new.txt"]);
    assert!(survey.head_moved);
    assert_eq!(survey.uncommitted, 1);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["A left.txt"]);
}

#[test]
fn loop_continues_from_a_commit_of_the_user() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "the loop's");
    changed(&mut tracker, ChangeOwner::Loop);
    place.scratch.write("dir/b.txt", "theirs");
    place
        .scratch
        .git(&["commit", "--quiet", "-m", "theirs", "dir/b.txt"]);
    let theirs = place.head();
    snapshot(&mut tracker, 2);
    let made = commit(&mut tracker, "of the loop").unwrap().unwrap();
    assert_eq!(made.id, place.head());
    let parent = place.scratch.git(&["rev-parse", "HEAD^"]);
    assert_eq!(parent.trim_end(), theirs);
    assert_eq!(place.last_commit(), ["M a.txt"]);
}

#[test]
fn files_that_a_reset_makes_uncommitted_belong_to_the_owner_of_the_reset() {
    let place = Place::new();
    place.scratch.write("a.txt", "2");
    place.commit_all("second");
    let mut tracker = place.tracker();
    place.scratch.git(&["reset", "--quiet", "--soft", "HEAD^"]);
    let survey = tracker
        .survey(ChangeOwner::Others, &CancelToken::new())
        .unwrap();
    assert!(survey.changed.is_empty() && survey.head_moved);
    place.scratch.write("a.txt", "3");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 0, "the file contains work of others");
}

#[test]
fn rename_is_committed_as_two_paths() {
    let place = Place::new();
    let mut tracker = place.tracker();
    fs::rename(place.path("a.txt"), place.path("renamed.txt")).unwrap();
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "renamed.txt"]
    );
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.last_commit(), ["D a.txt", "A renamed.txt"]);
    assert_eq!(place.status(), "");
}

#[test]
fn protected_files_are_neither_examined_nor_stored() {
    let place = Place::new();
    place.scratch.write(".env.example", "tracked");
    place.commit_all("protected but tracked");
    place.scratch.write(".env", "theirs");
    let mut tracker = place.tracker();
    place.scratch.write(".env", "changed");
    place.scratch.write(".env.example", "changed");
    place.scratch.write("dir/server.key", "new");
    place.scratch.write("secrets/deep/token", "new");
    place.scratch.write("a.txt", "no secret");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["M a.txt"]);
    let kept = snapshot(&mut tracker, 1);
    assert_eq!(
        place.files_of(&kept),
        [".gitignore", "a.txt", "dir/b.txt", "dir/c.txt"]
    );
    let objects = place
        .scratch
        .git(&["cat-file", "--batch-check", "--batch-all-objects"]);
    for text in ["theirs", "changed", "new", "no secret"] {
        let oid = place.scratch.write("probe", text);
        let oid = place.scratch.git(&["hash-object", oid.to_str().unwrap()]);
        let is_kept = objects.contains(oid.trim_end());
        assert_eq!(is_kept, text == "no secret", "{text}");
    }
}

#[test]
fn protected_file_that_the_loop_changed_is_reported_once() {
    let place = Place::new();
    place.scratch.write("known.pem", "1");
    place.scratch.write("build/ignored.key", "1");
    place.scratch.git(&["add", "-f", "known.pem"]);
    place.scratch.git(&["commit", "--quiet", "-m", "a key"]);
    let mut tracker = place.tracker();
    snapshot(&mut tracker, 1);
    let warnings = |tracker: &mut WorkTracker, owner| {
        let survey = tracker.survey(owner, &CancelToken::new()).unwrap();
        assert!(survey.changed.is_empty());
        survey.warnings.join("\n")
    };
    assert_eq!(warnings(&mut tracker, ChangeOwner::Loop), "");
    place.scratch.write(".env.local", "1");
    place.scratch.write("known.pem", "2");
    place.scratch.write("build/ignored.key", "2");
    place.scratch.write("secret.log/x.key", "ignored, too");
    assert_eq!(
        warnings(&mut tracker, ChangeOwner::Loop),
        "files that match a pattern in `git.protected` are left out of snapshots and commits: .env.local, known.pem"
    );
    place.scratch.write("known.pem", "3");
    assert_eq!(warnings(&mut tracker, ChangeOwner::Loop), "", "once");
    place.scratch.write("theirs.pem", "1");
    assert_eq!(
        warnings(&mut tracker, ChangeOwner::Others),
        "",
        "the user was warned already"
    );
}

#[test]
fn empty_commit_does_not_count_as_a_moved_head() {
    let place = Place::new();
    place.scratch.write("left.txt", "uncommitted");
    let mut tracker = place.tracker();
    let empty = ["commit", "--quiet", "--allow-empty", "-m", "progress"];
    place.scratch.git(&empty);
    let look = |tracker: &mut WorkTracker| {
        tracker
            .survey(ChangeOwner::Loop, &CancelToken::new())
            .unwrap()
    };
    assert!(!look(&mut tracker).head_moved);
    place.scratch.write("a.txt", "2");
    place.scratch.git(&empty);
    let survey = look(&mut tracker);
    assert_eq!(
        (names(&survey), survey.head_moved),
        (vec!["a.txt".to_owned()], false)
    );
    place
        .scratch
        .git(&["commit", "--quiet", "-am", "the agent's"]);
    assert!(
        look(&mut tracker).head_moved,
        "the earlier changes are committed"
    );
    place.scratch.write("a.txt", "3");
    place
        .scratch
        .git(&["commit", "--quiet", "-am", "the agent's"]);
    assert!(look(&mut tracker).head_moved, "detected by the next survey");
}
