//! Changes that a survey finds, and how many git processes it starts.

use super::*;

#[test]
fn iteration_without_changes_starts_no_git_process() {
    let place = Place::new();
    place.scratch.write("untracked.txt", "u");
    place.scratch.write("noise.log", "1");
    place.scratch.write("build/out", "1");
    fs::create_dir(place.path("empty")).unwrap();
    let mut tracker = place.tracker();
    snapshot(&mut tracker, 1);
    place.asked();
    for iteration in 2..5 {
        assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
        assert_eq!(commits(&mut tracker), 0);
        snapshot(&mut tracker, iteration);
    }
    // Changes of ignored files are not reported.
    place.scratch.write("noise.log", "2");
    place.scratch.write("build/more/out", "1");
    place.scratch.write(".ralph/state.json", "{}");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    assert_eq!(place.asked(), Vec::<String>::new());
    snapshot(&mut tracker, 5);
    snapshot(&mut tracker, 6);
    super::super::write_pending_refs(&mut tracker, &CancelToken::new()).unwrap();
    let asked = place.asked();
    assert_eq!(
        asked.len(),
        1,
        "one process writes all references: {asked:?}"
    );
    assert!(
        asked[0].ends_with("update-ref --no-deref --stdin"),
        "{asked:?}"
    );
}

#[test]
fn survey_reports_each_change_once() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "other");
    place.scratch.write("new/deep/er.txt", "new");
    place.remove("dir/b.txt");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "dir/b.txt", "new/deep/er.txt"]
    );
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place.scratch.write("a.txt", "a");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    assert_eq!(
        tracker
            .survey(ChangeOwner::Loop, &CancelToken::new())
            .unwrap()
            .uncommitted,
        2
    );
}

#[test]
fn touched_file_with_equal_content_did_not_change() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "a");
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert!(survey.changed.is_empty());
    assert_eq!(survey.uncommitted, 0);
    assert!(!place.asked().is_empty(), "the first survey starts git");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    assert!(
        place.asked().is_empty(),
        "the second survey starts no git process"
    );
}

#[test]
fn survey_detects_quick_edits_of_the_same_size() {
    let place = Place::new();
    let mut tracker = place.tracker();
    let path = place.path("a.txt");
    for round in 0..200 {
        // The file is written in place, so that size and inode stay the same.
        fs::write(&path, format!("{round:04}")).unwrap();
        assert_eq!(
            changed(&mut tracker, ChangeOwner::Loop),
            ["a.txt"],
            "round {round}"
        );
    }
}

#[test]
fn survey_finds_all_changes_in_many_directories() {
    let place = Place::new();
    for number in 0..60 {
        for file in 0..20 {
            place.scratch.write(format!("wide/{number}/{file}"), "1");
        }
    }
    place.commit_all("many");
    let mut tracker = place.tracker();
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place.scratch.write("wide/0/0", "2");
    place.scratch.write("wide/59/19", "2");
    place.scratch.write("wide/30/new", "2");
    fs::remove_dir_all(place.path("wide/58")).unwrap();
    fs::remove_dir_all(place.path("wide/1")).unwrap();
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop).len(), 43);
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    fs::remove_dir_all(place.path("wide")).unwrap();
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop).len(),
        1200 - 40 + 1
    );
}

#[test]
fn files_that_became_ignored_are_not_committed() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("made.tmp", "1");
    place.scratch.write("made.txt", "1");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["made.tmp", "made.txt"]
    );
    place.scratch.write(".gitignore", "/build/\n*.tmp\n");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        [".gitignore", "made.tmp"]
    );
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.last_commit(), ["M .gitignore", "A made.txt"]);
}

#[test]
fn files_that_were_ignored_belong_to_others_when_rules_change() {
    for restart in [false, true] {
        let place = Place::new();
        place.scratch.write("noise.log", "a password");
        place.scratch.write("build/data/db", "1");
        let mut tracker = place.tracker();
        place.scratch.write(".gitignore", "node_modules\n");
        place.scratch.write("build/made", "by the loop");
        fs::rename(place.path("dir"), place.path("moved")).unwrap();
        let survey = if restart {
            drop(tracker);
            let opened = place.open(ChangeOwner::Loop);
            tracker = opened.0;
            opened.1
        } else {
            tracker
                .survey(ChangeOwner::Loop, &CancelToken::new())
                .unwrap()
        };
        assert_eq!(
            names(&survey),
            [
                ".gitignore",
                "build/data/db",
                "build/made",
                "dir/b.txt",
                "dir/c.txt",
                "moved/b.txt",
                "moved/c.txt",
                "noise.log"
            ]
        );
        assert_eq!(
            survey.warnings,
            [
                "files with uncommitted changes that the loop did not make are not committed: build/data/db, noise.log"
            ]
        );
        commits(&mut tracker);
        assert_eq!(
            place.last_commit(),
            [
                "M .gitignore",
                "A build/made",
                "D dir/b.txt",
                "D dir/c.txt",
                "A moved/b.txt",
                "A moved/c.txt"
            ]
        );
        assert_eq!(place.status(), "?? build/data/db\n?? noise.log\n");
    }
}

#[test]
fn ignore_rules_outside_of_the_work_tree_apply() {
    let place = Place::new();
    place.scratch.write("made.tmp", "1");
    let mut tracker = place.tracker();
    fs::write(place.git_dir().join("info/exclude"), "*.tmp\n").unwrap();
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["made.tmp"]);
    place.scratch.write("other.tmp", "1");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    fs::write(place.git_dir().join("info/exclude"), "").unwrap();
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["made.tmp", "other.tmp"]
    );
}

#[test]
fn new_file_in_an_empty_directory_is_detected() {
    let place = Place::new();
    fs::create_dir_all(place.path("empty/deeper")).unwrap();
    place.scratch.write("only/ignored.log", "1");
    let mut tracker = place.tracker();
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place.scratch.write("empty/deeper/file", "1");
    place.scratch.write("only/file", "1");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["empty/deeper/file", "only/file"]
    );
}

#[test]
fn ignored_file_in_the_users_index_is_watched() {
    let place = Place::new();
    place.scratch.write("build/kept", "1");
    place.scratch.write("forced.log", "1");
    let mut tracker = place.tracker();
    place
        .scratch
        .git(&["add", "-f", "forced.log", "build/kept"]);
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["build/kept", "forced.log"]
    );
    place.scratch.write("build/kept", "2");
    place.scratch.write("build/other", "2");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["build/kept"]);
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.last_commit(), ["A build/kept", "A forced.log"]);
}

#[test]
fn huge_new_files_are_left_out_and_reported_once() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("huge.bin", vec![0; 1001]);
    place.scratch.write("a.txt", vec![0; 1001]);
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert_eq!(
        names(&survey),
        ["a.txt"],
        "a committed file may exceed the limit"
    );
    assert_eq!(
        survey.warnings,
        [
            "files larger than `git.max_file_bytes` (1000 bytes) are left out of snapshots and commits: huge.bin"
        ]
    );
    place.scratch.write("huge.bin", vec![1; 1001]);
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert!(survey.changed.is_empty() && survey.warnings.is_empty());
    assert_eq!(commits(&mut tracker), 1);
    place.scratch.write("huge.bin", "small");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["huge.bin"]);
    place.scratch.write("huge.bin", vec![1; 1001]);
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["huge.bin"]);
    assert_eq!(
        commits(&mut tracker),
        0,
        "the new file exceeds the limit again"
    );
}

#[test]
fn canceled_survey_loses_no_changes() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    let cancel = CancelToken::new();
    cancel.cancel();
    let error = tracker.survey(ChangeOwner::Loop, &cancel).unwrap_err();
    assert!(error.to_string().contains("was canceled"), "{error}");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
}

#[test]
fn new_files_above_the_total_limit_are_left_out() {
    let mut place = Place::new();
    place.options.rules.max_file_bytes = 60 << 10;
    let mut tracker = place.tracker();
    for name in ["data/1", "data/2"] {
        place.scratch.write(name, vec![b'1'; 50 << 10]);
    }
    place.scratch.write("data/3", "small");
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert_eq!(names(&survey), ["data/1", "data/3"]);
    assert!(survey.warnings[0].contains("data/2"), "{survey:?}");
    // Committed and removed files free a part of the budget.
    assert_eq!(commits(&mut tracker), 2);
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["A data/2"]);
    for name in ["data/4", "data/5"] {
        place.scratch.write(name, vec![b'2'; 50 << 10]);
    }
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["data/4"]);
    place.remove("data/4");
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["data/4", "data/5"]
    );
}
