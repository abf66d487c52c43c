//! Paths that change their file type, and pipes, sockets and unreadable files.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::*;

#[track_caller]
fn committed(tracker: &mut WorkTracker, place: &Place, expected: &[&str]) {
    changed(tracker, ChangeOwner::Loop);
    commits(tracker);
    assert_eq!(place.last_commit(), expected);
    assert_eq!(place.status(), "");
}

#[test]
fn commit_handles_files_directories_and_links_that_replace_each_other() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.remove("a.txt");
    place.scratch.write("a.txt/inside", "1");
    committed(&mut tracker, &place, &["D a.txt", "A a.txt/inside"]);
    fs::remove_dir_all(place.path("a.txt")).unwrap();
    symlink("dir", place.path("a.txt")).unwrap();
    committed(&mut tracker, &place, &["A a.txt", "D a.txt/inside"]);
    place.remove("a.txt");
    place.scratch.write("a.txt", "a");
    committed(&mut tracker, &place, &["T a.txt"]);
    fs::remove_dir_all(place.path("dir")).unwrap();
    symlink("a.txt", place.path("dir")).unwrap();
    committed(
        &mut tracker,
        &place,
        &["A dir", "D dir/b.txt", "D dir/c.txt"],
    );
    place.remove("dir");
    place.scratch.write("dir/b.txt", "again");
    committed(&mut tracker, &place, &["D dir", "A dir/b.txt"]);
}

#[test]
fn changed_link_target_and_file_mode_are_changes() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    symlink("a.txt", place.path("link")).unwrap();
    place.commit_all("link");
    let mut tracker = place.tracker();
    place.remove("link");
    symlink("dir", place.path("link")).unwrap();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.path("a.txt"), mode).unwrap();
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt", "link"]);
}

#[test]
fn pipes_and_sockets_are_skipped() {
    let place = Place::new();
    let mut tracker = place.tracker();
    let pipe = place.path("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let socket = UnixListener::bind(place.path("socket")).unwrap();
    place.remove("a.txt");
    let made = Command::new("mkfifo").arg(place.path("a.txt")).status();
    assert!(made.unwrap().success());
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    drop(socket);
    for name in ["pipe", "a.txt", "socket"] {
        place.remove(name);
        place.scratch.write(name, "a file");
    }
    assert_eq!(
        changed(&mut tracker, ChangeOwner::Loop),
        ["a.txt", "pipe", "socket"]
    );
}

#[test]
fn nested_repository_is_ignored_until_it_is_removed() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.git(&["init", "--quiet", "cloned"]);
    place.scratch.write("cloned/file", "1");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place.scratch.write("cloned/file", "2");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    fs::remove_dir_all(place.path("cloned/.git")).unwrap();
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["cloned/file"]);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["A cloned/file"]);
}

#[test]
fn submodule_changes_only_when_its_commit_changes() {
    let place = Place::new();
    let other = Scratch::with_git();
    other.write("inside", "1");
    other.git(&["add", "-A"]);
    other.git(&["commit", "--quiet", "-m", "inside"]);
    let url = other.path().display().to_string();
    let allow = "protocol.file.allow=always";
    place
        .scratch
        .git(&["-c", allow, "submodule", "--quiet", "add", &url, "sub"]);
    place.commit_all("submodule");
    let in_sub = |args: &[&str]| {
        let mut all = vec![
            "-C",
            "sub",
            "-c",
            "user.name=x",
            "-c",
            "user.email=x@example.invalid",
        ];
        all.extend(args);
        place.scratch.git(&all)
    };
    let (mut tracker, survey) = place.open(ChangeOwner::Others);
    assert!(survey.changed.is_empty());
    place.scratch.write("sub/inside", "dirty");
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    place.asked();
    assert!(changed(&mut tracker, ChangeOwner::Loop).is_empty());
    assert!(place.asked().is_empty());
    in_sub(&["commit", "--quiet", "-am", "moved"]);
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["sub"]);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["M sub"]);
    place.scratch.write("a.txt", "2");
    place.scratch.write("sub/inside", "dirty again");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    assert_eq!(commits(&mut tracker), 1);
}

#[test]
fn unreadable_file_does_not_block_other_files() {
    // Root can read every file, so a failing filter makes the file unreadable for git.
    let place = Place::new();
    place.scratch.write(".gitattributes", "*.bad filter=bad\n");
    place.scratch.git(&["config", "filter.bad.clean", "exit 1"]);
    place
        .scratch
        .git(&["config", "filter.bad.required", "true"]);
    place.commit_all("filter");
    let mut tracker = place.tracker();
    place.scratch.write("x.bad", "1");
    place.scratch.write("y.txt", "1");
    let survey = tracker.survey(ChangeOwner::Loop, &CancelToken::new());
    assert_eq!(names(&survey.unwrap()), ["y.txt"]);
    // Some unreadable files are left out. Too many of them are an error.
    for number in 0..20 {
        place.scratch.write(format!("{number}.bad"), "1");
    }
    place.scratch.write("z.txt", "1");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["z.txt"]);
    for number in 20..90 {
        place.scratch.write(format!("{number}.bad"), "1");
    }
    place.scratch.write("z.txt", "2");
    let error = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap_err();
    assert!(error.to_string().contains(".bad and 64 more"), "{error}");
    place.scratch.git(&["config", "filter.bad.clean", "cat"]);
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert_eq!(
        survey.changed.len(),
        92,
        "including the files that were left out before"
    );
}

#[test]
fn directory_replaced_by_a_link_is_committed() {
    let place = Place::new();
    let mut tracker = place.tracker();
    fs::rename(place.path("dir"), place.path("real")).unwrap();
    symlink("real", place.path("dir")).unwrap();
    changed(&mut tracker, ChangeOwner::Loop);
    // A hook rejects the first commit. After that, the user's index has the same entries as before.
    place.hook("pre-commit", "exit 1");
    let staged = place.staged();
    commit(&mut tracker, "x").unwrap_err();
    assert_eq!(place.staged(), staged);
    place.hook("pre-commit", "exit 0");
    assert_eq!(commits(&mut tracker), 5);
    let expected = [
        "A dir",
        "D dir/b.txt",
        "D dir/c.txt",
        "A real/b.txt",
        "A real/c.txt",
    ];
    assert_eq!(place.last_commit(), expected);
    assert_eq!(place.status(), "");
    assert_eq!(tracker.left(), 0);
}

#[test]
fn directory_replaced_by_a_dangling_link_is_committed() {
    let place = Place::new();
    let mut tracker = place.tracker();
    fs::remove_dir_all(place.path("dir")).unwrap();
    symlink("nowhere", place.path("dir")).unwrap();
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 3);
    assert_eq!(place.last_commit(), ["A dir", "D dir/b.txt", "D dir/c.txt"]);
    assert_eq!(place.status(), "");
}
