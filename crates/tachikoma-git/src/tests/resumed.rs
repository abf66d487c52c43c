//! Runners that die, files that are lost, and git processes that are killed.

use super::*;
use std::process::{Command, Stdio};
use tachikoma_testkit::await_until;

const INDEX: &str = "git-index";
const WORK: &str = "git-work.json";

fn own(place: &Place, name: &str) -> PathBuf {
    place.options.loop_dir.join(name)
}

#[test]
fn next_runner_knows_the_owner_of_each_file() {
    let place = Place::new();
    place.scratch.write("theirs.txt", "1");
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "the loop's");
    changed(&mut tracker, ChangeOwner::Loop);
    drop(tracker);
    place
        .scratch
        .write("dir/b.txt", "of an iteration that was cut");
    let (tracker, survey) = place.open(ChangeOwner::Loop);
    assert_eq!(names(&survey), ["dir/b.txt"]);
    assert_eq!(survey.uncommitted, 2);
    assert!(survey.warnings.is_empty(), "{:?}", survey.warnings);
    drop(tracker);
    place
        .scratch
        .write("dir/c.txt", "of somebody while nobody ran");
    let (mut tracker, survey) = place.open(ChangeOwner::Others);
    assert_eq!(names(&survey), ["dir/c.txt"]);
    assert_eq!(survey.uncommitted, 2);
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.status(), " M dir/c.txt\n?? theirs.txt\n");
}

#[test]
fn changes_made_after_a_runner_died_belong_to_others() {
    let place = Place::new();
    drop(place.tracker());
    place.scratch.write("a.txt", "of an iteration that was cut");
    place.scratch.write("made.txt", "the same");
    place.remove("dir/b.txt");
    let death = place.path("made.txt").metadata().unwrap().modified();
    let death = death.unwrap() + Duration::from_millis(20);
    await_until("a later stamp", LIMIT, || {
        let notes = place.scratch.write("notes.txt", "of the user");
        notes.metadata().unwrap().modified().unwrap() > death
    });
    place.scratch.write(".gitignore", "*.log\n");
    let (mut tracker, survey) = place.open(ChangeOwner::LoopUntil(death));
    assert_eq!(survey.uncommitted, 3);
    assert_eq!(commits(&mut tracker), 3);
    assert_eq!(
        place.last_commit(),
        ["M a.txt", "D dir/b.txt", "A made.txt"]
    );
    assert_eq!(place.status(), " M .gitignore\n?? notes.txt\n");
}

#[test]
fn survey_repeats_changes_if_the_record_cannot_be_written() {
    let place = Place::new();
    let mut tracker = place.tracker();
    let good = std::mem::replace(
        &mut tracker.work_path,
        place.path("dir/b.txt/git-work.json"),
    );
    place.scratch.write("a.txt", "the loop's");
    assert!(
        tracker
            .survey(ChangeOwner::Loop, &CancelToken::new())
            .is_err()
    );
    tracker.work_path = good;
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    drop(tracker);
    let (mut tracker, survey) = place.open(ChangeOwner::Others);
    assert_eq!(survey.uncommitted, 1);
    assert_eq!(commits(&mut tracker), 1);
}

#[test]
fn lost_work_record_attributes_all_changes_to_others() {
    for hurt in [None, Some("{}"), Some("")] {
        let place = Place::new();
        let mut tracker = place.tracker();
        place.scratch.write("a.txt", "the loop's");
        changed(&mut tracker, ChangeOwner::Loop);
        drop(tracker);
        match hurt {
            Some(text) => fs::write(own(&place, WORK), text).unwrap(),
            None => fs::remove_file(own(&place, WORK)).unwrap(),
        }
        let (mut tracker, survey) = place.open(ChangeOwner::Loop);
        assert_eq!(survey.uncommitted, 0);
        assert_eq!(survey.warnings.len(), 1);
        assert!(survey.warnings[0].contains(WORK), "{:?}", survey.warnings);
        assert_eq!(commits(&mut tracker), 0);
        place.scratch.write("dir/b.txt", "the loop's");
        changed(&mut tracker, ChangeOwner::Loop);
        assert_eq!(commits(&mut tracker), 1);
    }
}

#[test]
fn lost_or_damaged_loop_index_is_recreated() {
    for hurt in [None, Some("damaged"), Some("DIRC")] {
        let place = Place::new();
        let mut tracker = place.tracker();
        place.scratch.write("new.txt", "the loop's");
        place.remove("dir/c.txt");
        changed(&mut tracker, ChangeOwner::Loop);
        let hurt_it = || match hurt {
            Some(text) => fs::write(own(&place, INDEX), text).unwrap(),
            None => fs::remove_file(own(&place, INDEX)).unwrap(),
        };
        hurt_it();
        place.scratch.write("a.txt", "2");
        assert_eq!(
            changed(&mut tracker, ChangeOwner::Loop),
            ["a.txt"],
            "{hurt:?}"
        );
        drop(tracker);
        hurt_it();
        place.scratch.write("dir/b.txt", "2");
        let (mut tracker, survey) = place.open(ChangeOwner::Loop);
        assert_eq!(names(&survey), ["dir/b.txt"], "{hurt:?}");
        assert_eq!(commits(&mut tracker), 4);
    }
}

#[test]
fn objects_that_were_pruned_are_written_again() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "the loop's");
    changed(&mut tracker, ChangeOwner::Loop);
    place.scratch.git(&["gc", "--quiet", "--prune=now"]);
    place.scratch.write("dir/b.txt", "2");
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert_eq!(survey.uncommitted, 2);
    let kept = snapshot(&mut tracker, 1);
    assert_eq!(place.at(&kept, "new.txt"), "the loop's");
    assert_eq!(commits(&mut tracker), 2);
}

#[test]
fn stale_lock_on_the_loops_index_is_removed() {
    let place = Place::new();
    drop(place.tracker());
    fs::write(own(&place, "git-index.lock"), "").unwrap();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    fs::write(own(&place, "git-index.lock"), "").unwrap();
    place.scratch.write("a.txt", "3");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
}

#[test]
fn intent_to_add_of_a_dead_runner_is_undone() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1");
    place.scratch.write("theirs.txt", "");
    changed(&mut tracker, ChangeOwner::Loop);
    // This simulates a runner that died right after `git add --intent-to-add`.
    tracker.work.intended = [repo_path("new.txt")].into();
    tracker.work.write(&tracker.work_path).unwrap();
    place.scratch.git(&["add", "-N", "new.txt"]);
    place.scratch.git(&["add", "theirs.txt"]);
    drop(tracker);
    let mut tracker = place.open(ChangeOwner::Loop).0;
    assert_eq!(place.status(), "A  theirs.txt\n?? new.txt\n");
    assert_eq!(commits(&mut tracker), 2);
}

#[test]
fn killed_git_process_loses_no_changes() {
    for command in [
        "update-index",
        "write-tree",
        "diff-tree",
        "commit-tree",
        "update-ref",
        "commit ",
    ] {
        let place = Place::new();
        place
            .scratch
            .write("theirs.txt", "so that not all is committed");
        let mut tracker = place.tracker();
        snapshot(&mut tracker, 1);
        // Packed references make the next snapshot write a reference.
        place.scratch.git(&["pack-refs", "--all"]);
        place.scratch.write("a.txt", "2");
        place.scratch.write("new.txt", "1");
        let once = kill_once(&place, command);
        // One of these operations runs the git process that is killed. The others succeed.
        let _ = tracker.survey(ChangeOwner::Loop, &CancelToken::new());
        let _ = tracker.survey(ChangeOwner::Loop, &CancelToken::new());
        let _ = commit(&mut tracker, "x");
        let _ = commit(&mut tracker, "x");
        let _ = super::super::snapshot(&mut tracker, 2, &CancelToken::new());
        let kept = snapshot(&mut tracker, 2);
        super::super::write_pending_refs(&mut tracker, &CancelToken::new()).unwrap();
        assert!(once.exists(), "{command}");
        assert_eq!(place.status(), "?? theirs.txt\n", "{command}");
        assert_eq!(place.last_commit(), ["M a.txt", "A new.txt"], "{command}");
        assert_eq!(place.at(&kept, "new.txt"), "1", "{command}");
    }
}

#[test]
fn survey_repeats_after_a_failure_that_follows_a_moved_head() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["a.txt"]);
    place
        .scratch
        .git(&["commit", "--quiet", "-am", "the agent's"]);
    let once = kill_once(&place, "diff-tree");
    let survey = tracker
        .survey(ChangeOwner::Loop, &CancelToken::new())
        .unwrap();
    assert!(once.exists());
    assert!(survey.head_moved);
    assert_eq!(survey.uncommitted, 0);
    place.scratch.write("dir/b.txt", "2");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["dir/b.txt"]);
    assert_eq!(commits(&mut tracker), 1);
}

/// Makes the wrapper kill the next git process that runs `command`. Returns a file that exists after the kill.
fn kill_once(place: &Place, command: &str) -> PathBuf {
    let dir = path_variable(place);
    let wrapper = PathBuf::from(&dir).join("git");
    let whole = fs::read_to_string(&wrapper).unwrap();
    let once = place.scratch.home().join("once");
    let killing = format!(
        "#!/bin/sh\ncase \"$* \" in *' {command}'*) [ -e '{once}' ] || {{ touch '{once}'; kill -9 $$; }};; esac\n{whole}",
        once = once.display()
    );
    place.scratch.write_script(&wrapper, killing);
    once
}

/// This test starts itself as a second process: the runner that is killed during a commit.
#[test]
fn runner_killed_during_a_commit_leaves_no_lock() {
    const ROLE: &str = "TACHIKOMA_TEST_KILLED_IN_A_COMMIT";
    const ID: &str = "TACHIKOMA_TEST_LOOP_ID";
    if let Some(dir) = std::env::var_os(ROLE) {
        let dir = PathBuf::from(dir);
        let id = std::env::var(ID).unwrap().parse().unwrap();
        let options = TrackerOptions {
            hidden: Vec::new(),
            working_dir: dir.clone(),
            loop_dir: dir.join(".ralph/loops/one"),
            loop_id: LoopId::from_u128(id),
            search_path: std::env::var_os("PATH"),
            rules: Rules::default(),
        };
        let Ok(Some((mut tracker, _))) =
            super::super::open(options, ChangeOwner::Loop, &CancelToken::new())
        else {
            panic!("it opened before");
        };
        let _ = super::super::commit(&mut tracker, "x", None, &CancelToken::new());
        return;
    }
    // The id of the loop is unique, because all processes of this loop are killed below.
    let id = u128::from(std::process::id()) << 64;
    let mut place = Place::new();
    place.options.loop_id = LoopId::from_u128(id);
    let started = place.scratch.home().join("started");
    place.hook(
        "pre-commit",
        &format!("touch '{}'; sleep 1000", started.display()),
    );
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    let name = "tests::resumed::runner_killed_during_a_commit_leaves_no_lock";
    let mut runner = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ROLE, place.scratch.path())
        .env(ID, id.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    await_until("the hook to run", LIMIT, || started.exists());
    runner.kill().unwrap();
    runner.wait().unwrap();
    let lock = place.git_dir().join("index.lock");
    await_until("git to take its lock away", LIMIT, || !lock.exists());
    let marker = place.options.loop_id.to_string();
    let left = tachikoma_process::orphans::end_leftovers(&marker);
    assert!(!left.is_empty(), "the hook still ran and was found");
    let (mut tracker, survey) = place.open(ChangeOwner::Loop);
    assert_eq!(survey.uncommitted, 1);
    assert_eq!(place.status(), "?? new.txt\n");
    place.hook("pre-commit", "exit 0");
    assert_eq!(commits(&mut tracker), 1);
}

/// The index contains file names that other users may not see.
#[test]
fn loop_index_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let mut tracker = place.tracker();
    for round in ["1", "2"] {
        place.scratch.write("a.txt", round);
        changed(&mut tracker, ChangeOwner::Loop);
        let mode = own(&place, INDEX).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "round {round}");
    }
}
