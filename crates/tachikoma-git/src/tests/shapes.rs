//! Repositories with special features: linked work trees, sparse checkouts, split indexes, reftables.

use super::*;

#[test]
fn no_git_process_starts_without_a_repository() {
    let place = Place::around(Scratch::new());
    let opened = super::super::open(
        place.options.clone(),
        ChangeOwner::Others,
        &CancelToken::new(),
    );
    assert!(matches!(opened, Ok(None)), "{opened:?}");
    assert!(place.asked().is_empty());
}

#[test]
fn working_directory_that_its_repository_ignores_counts_as_having_none() {
    let mut place = Place::new();
    place.scratch.write("build/inner/file", "1");
    place.options.working_dir = place.path("build/inner");
    let opened = super::super::open(
        place.options.clone(),
        ChangeOwner::Others,
        &CancelToken::new(),
    );
    assert!(matches!(opened, Ok(None)), "{opened:?}");
}

#[test]
fn unusable_repository_is_reported_with_the_reason_of_git() {
    let mut place = Place::new();
    place.options.search_path = Some("/nonexistent".into());
    // If the search path had no git, the git of the test environment would be used.
    let program = place.path("no-git");
    fs::create_dir(&program).unwrap();
    place.scratch.write_script(
        "no-git/git",
        "#!/bin/sh\necho 'fatal: detected dubious ownership in repository\nadvice' >&2\nexit 128\n",
    );
    place.options.search_path = Some(program.into_os_string());
    match super::super::open(
        place.options.clone(),
        ChangeOwner::Others,
        &CancelToken::new(),
    ) {
        Err(reason) => assert_eq!(reason, "detected dubious ownership in repository"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn repository_without_commits_gets_its_first_commit() {
    let place = Place::empty();
    place.scratch.write("theirs.txt", "1");
    let mut tracker = place.tracker();
    let first = snapshot(&mut tracker, 1);
    assert_eq!(place.files_of(&first), ["theirs.txt"]);
    place.scratch.write("new.txt", "1");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["new.txt"]);
    let keeper2 = place.open(ChangeOwner::Loop);
    assert_eq!(
        keeper2.1.uncommitted, 1,
        "the next runner finds the same owner"
    );
    let mut tracker = keeper2.0;
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["A new.txt"]);
    assert_eq!(place.status(), "?? theirs.txt\n");
}

#[test]
fn commit_works_with_a_detached_head() {
    let place = Place::new();
    place.scratch.git(&["checkout", "--quiet", "--detach"]);
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    let made = commit(&mut tracker, "x").unwrap().unwrap();
    assert_eq!(made.id, place.head());
    let main = place.scratch.git(&["rev-parse", "main"]);
    assert_ne!(made.id, main.trim_end());
}

#[test]
fn linked_work_tree_has_its_own_index_and_head() {
    let mut place = Place::new();
    let linked = place.scratch.home().join("linked");
    let linked_text = linked.display().to_string();
    place
        .scratch
        .git(&["worktree", "add", "--quiet", "-b", "side", &linked_text]);
    place.options.loop_dir = linked.join(".ralph/loops/one");
    place.options.working_dir = linked.clone();
    place.make_loop_dir();
    let mut tracker = place.tracker();
    snapshot(&mut tracker, 1);
    fs::write(linked.join("a.txt"), "2").unwrap();
    fs::write(linked.join("new.txt"), "1").unwrap();
    place.scratch.write("dir/b.txt", "of the other work tree");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "new.txt"]
    );
    let made = commit(&mut tracker, "x").unwrap().unwrap();
    let side = place.scratch.git(&["rev-parse", "side"]);
    assert_eq!(made.id, side.trim_end());
    assert_eq!(place.status(), " M dir/b.txt\n");
    place.asked();
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    assert!(place.asked().is_empty());
}

#[test]
fn loop_in_a_subdirectory_tracks_the_whole_repository() {
    let mut place = Place::new();
    place.options.working_dir = place.path("dir");
    place.options.loop_dir = place.path("dir/.ralph/loops/one");
    place.make_loop_dir();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    place.scratch.write("dir/b.txt", "2");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "dir/b.txt"]
    );
    assert_eq!(commits(&mut tracker), 2);
}

#[test]
fn sparse_checkout_does_not_count_as_removed_files() {
    let place = Place::new();
    place.scratch.write("wide/one.txt", "1");
    place.scratch.write("narrow/two.txt", "2");
    place.commit_all("more");
    for sparse_index in ["--no-sparse-index", "--sparse-index"] {
        place
            .scratch
            .git(&["sparse-checkout", "set", "--cone", sparse_index, "narrow"]);
        assert!(!place.path("wide/one.txt").exists());
        let _ = fs::remove_file(place.options.loop_dir.join("git-index"));
        let _ = fs::remove_file(place.options.loop_dir.join("git-work.json"));
        let (mut tracker, survey) = place.open(ChangeOwner::Others);
        assert_eq!(survey.uncommitted, 0);
        let text = format!("by {sparse_index}");
        place.scratch.write("narrow/two.txt", &text);
        place.scratch.write("outside/new.txt", &text);
        assert_eq!(
            changed(&mut tracker, ChangeOwner::Loop),
            ["narrow/two.txt", "outside/new.txt"]
        );
        assert_eq!(commits(&mut tracker), 2);
        let kept = snapshot(&mut tracker, 1);
        assert!(place.files_of(&kept).contains(&"wide/one.txt".to_owned()));
    }
}

#[test]
fn enabling_sparse_checkout_removes_no_files() {
    let place = Place::new();
    place.scratch.write("wide/one.txt", "1");
    place.scratch.write("narrow/two.txt", "2");
    place.commit_all("more");
    let mut tracker = place.tracker();
    place
        .scratch
        .git(&["sparse-checkout", "set", "--cone", "narrow"]);
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place.scratch.git(&["sparse-checkout", "disable"]);
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place.scratch.write("wide/one.txt", "2");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["wide/one.txt"]);
}

#[test]
fn files_marked_assume_unchanged_are_ignored() {
    let place = Place::new();
    place
        .scratch
        .git(&["update-index", "--assume-unchanged", "a.txt"]);
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "local settings");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place
        .scratch
        .git(&["update-index", "--no-assume-unchanged", "a.txt"]);
    assert_eq!(changed(&mut tracker, ChangeOwner::Others), ["a.txt"]);
}

#[test]
fn split_index_and_line_end_conversion_work() {
    let place = Place::new();
    place.scratch.git(&["config", "core.autocrlf", "input"]);
    place.scratch.git(&["config", "core.safecrlf", "true"]);
    place
        .scratch
        .git(&["config", "core.untrackedCache", "true"]);
    place.scratch.git(&["update-index", "--split-index"]);
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "two\r\nlines\r\n");
    place.scratch.write("dir/b.txt", "2");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "dir/b.txt"]
    );
    snapshot(&mut tracker, 1);
}

#[test]
fn packed_branches_are_read() {
    let place = Place::new();
    place.scratch.git(&["pack-refs", "--all"]);
    let mut tracker = place.tracker();
    place.asked();
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    assert!(place.asked().is_empty());
    place
        .scratch
        .git(&["commit", "--quiet", "--allow-empty", "-m", "empty"]);
    place.scratch.git(&["pack-refs", "--all"]);
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert!(survey.changed.is_empty());
    assert_eq!(tracker.head.commit, Some(place.head()));
    place.scratch.git(&["checkout", "--quiet", "-b", "other"]);
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert!(
        !survey.head_moved,
        "the same commit with another branch name"
    );
}

#[test]
fn reftable_and_sha256_repositories_work() {
    let place = Place::around(Scratch::new());
    place.scratch.git(&[
        "init",
        "--quiet",
        "--initial-branch=main",
        "--ref-format=reftable",
        "--object-format=sha256",
    ]);
    place.scratch.git(&["config", "user.name", "Scratch"]);
    place
        .scratch
        .git(&["config", "user.email", "scratch@example.invalid"]);
    place.scratch.write("a.txt", "1");
    let mut tracker = place.tracker();
    snapshot(&mut tracker, 1);
    place.scratch.write("b.txt", "1");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["b.txt"]);
    let made = commit(&mut tracker, "x").unwrap().unwrap();
    assert_eq!(made.id.len(), 64);
    assert_eq!(made.id, place.head());
    place.scratch.git(&["add", "a.txt"]);
    place.scratch.git(&["commit", "--quiet", "-m", "theirs"]);
    let survey = tracker
        .survey(ChangeOwner::Others, &CancelToken::new())
        .unwrap();
    assert!(survey.head_moved);
}
