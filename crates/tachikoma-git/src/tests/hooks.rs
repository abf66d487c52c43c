//! The user's git hooks: they run, they may reject a commit, and they may hang.

use super::*;
use tachikoma_runtime::clock;
use tachikoma_testkit::await_until;

#[test]
fn refused_commit_keeps_the_work_and_restores_the_index() {
    let place = Place::new();
    place.scratch.write("staged.txt", "theirs");
    place.scratch.git(&["add", "staged.txt"]);
    place.hook("pre-commit", "echo 'the tests fail' >&2; exit 1");
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    let (index, head, status) = (place.staged(), place.head(), place.status());
    for _ in 0..2 {
        let error = commit(&mut tracker, "x").unwrap_err();
        assert!(error.to_string().contains("the tests fail"), "{error}");
        assert_eq!(place.head(), head);
        assert_eq!(place.staged(), index);
        assert!(!place.git_dir().join("index.lock").exists());
    }
    assert_eq!(place.status(), status);
    place.hook("pre-commit", "exit 0");
    assert_eq!(commits(&mut tracker), 2);
    assert_eq!(place.last_commit(), ["M a.txt", "A new.txt"]);
    assert_eq!(place.status(), "A  staged.txt\n");
}

#[test]
fn commit_counts_as_made_if_a_later_hook_hangs() {
    let place = Place::new();
    let started = place.scratch.home().join("started");
    place.hook(
        "post-commit",
        &format!("touch '{}'; sleep 1000", started.display()),
    );
    let mut tracker = place.tracker();
    place.scratch.write("empty", "");
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    let cancel = CancelToken::new();
    let caller = cancel.clone();
    let calling = std::thread::spawn(move || {
        await_until("the hook to run", LIMIT, || started.exists());
        caller.cancel();
    });
    let made = super::super::commit(&mut tracker, "of the loop", None, &cancel).unwrap();
    calling.join().unwrap();
    assert_eq!(made.map(|made| made.id), Some(place.head()));
    assert_eq!(place.last_commit(), ["A empty", "A new.txt"]);
    assert_eq!(place.status(), "");
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), [""; 0]);
    assert_eq!(tracker.left(), 0);
}

/// The runner died during the hook. The next runner undoes its `git add --intent-to-add`.
#[test]
fn undo_of_intent_to_add_keeps_committed_empty_files() {
    let place = Place::new();
    let mut tracker = place.tracker();
    place.scratch.write("empty", "");
    place.scratch.write("intended", "");
    changed(&mut tracker, ChangeOwner::Loop);
    tracker.work.intended = ["empty", "intended"].map(repo_path).into();
    tracker.work.write(&tracker.work_path).unwrap();
    drop(tracker);
    place.scratch.git(&["add", "empty"]);
    place
        .scratch
        .git(&["commit", "--quiet", "-m", "by the dead"]);
    place.scratch.git(&["add", "--intent-to-add", "intended"]);
    place.open(ChangeOwner::Loop);
    assert_eq!(place.status(), "?? intended\n");
}

#[test]
fn changes_staged_during_a_refused_commit_stay_staged() {
    let place = Place::new();
    place.scratch.write("theirs.txt", "theirs");
    place.hook("pre-commit", "exit 1");
    // This script runs just before `git add --intent-to-add`.
    let bin = place.scratch.home().join("bin");
    fs::rename(bin.join("git"), bin.join("git-as-it-was")).unwrap();
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *intent-to-add*) '{bin}/git-as-it-was' add theirs.txt;; esac\nexec '{bin}/git-as-it-was' \"$@\"\n",
        bin = bin.display(),
    );
    place.scratch.write_script(bin.join("git"), text);
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    commit(&mut tracker, "x").unwrap_err();
    assert_eq!(place.status(), "A  theirs.txt\n?? new.txt\n");
}

#[test]
fn first_commit_that_a_hook_rejects_leaves_nothing_staged() {
    let place = Place::empty();
    place.hook("pre-commit", "exit 1");
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    commit(&mut tracker, "x").unwrap_err();
    assert_eq!(place.status(), "?? new.txt\n");
    place.hook("pre-commit", "exit 0");
    assert_eq!(commits(&mut tracker), 1);
}

#[test]
fn timeout_ends_a_hanging_hook_and_its_children() {
    let place = Place::new();
    let pid = place.scratch.home().join("pid");
    place.hook(
        "pre-commit",
        &format!(
            "(trap '' TERM; sleep 1000) & echo $! >'{}'; wait",
            pid.display()
        ),
    );
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    let index = place.staged();
    // The timeout is long enough for the start of the hook on a busy machine.
    let limit = Some(Duration::from_secs(3));
    let error = super::super::commit(&mut tracker, "x", limit, &CancelToken::new()).unwrap_err();
    assert!(error.to_string().contains("did not end within"), "{error}");
    assert_eq!(place.staged(), index);
    assert!(!place.git_dir().join("index.lock").exists());
    let pid = fs::read_to_string(pid).unwrap();
    await_until("the hook's child to be gone", LIMIT, || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    });
    place.hook("pre-commit", "exit 0");
    assert_eq!(commits(&mut tracker), 1);
}

#[test]
fn cancellation_ends_a_hanging_hook() {
    let place = Place::new();
    let started = place.scratch.home().join("started");
    place.hook(
        "pre-commit",
        &format!("touch '{}'; sleep 1000", started.display()),
    );
    let mut tracker = place.tracker();
    place.scratch.write("new.txt", "1");
    changed(&mut tracker, ChangeOwner::Loop);
    let index = place.staged();
    let cancel = CancelToken::new();
    let caller = cancel.clone();
    let calling = std::thread::spawn(move || {
        await_until("the hook to run", LIMIT, || started.exists());
        caller.cancel();
        clock::monotonic()
    });
    let error = super::super::commit(&mut tracker, "x", None, &cancel).unwrap_err();
    let took = calling.join().unwrap().elapsed();
    assert!(error.to_string().contains("was canceled"), "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(place.staged(), index);
    place.hook("pre-commit", "exit 0");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1, "the changes are not lost");
}

#[test]
fn changes_of_a_commit_hook_belong_to_the_loop() {
    let place = Place::new();
    place.hook(
        "pre-commit",
        "echo formatted >a.txt; git add a.txt; echo generated >generated.txt",
    );
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.at("HEAD", "a.txt"), "formatted\n");
    snapshot(&mut tracker, 2);
    assert_eq!(place.status(), "?? generated.txt\n");
    place.hook("pre-commit", "exit 0");
    assert_eq!(commits(&mut tracker), 1);
    assert_eq!(place.last_commit(), ["A generated.txt"]);
}

#[test]
fn files_that_a_hook_adds_to_the_commit_are_reported() {
    let place = Place::new();
    place.hook("pre-commit", "git add -A; git add -f .env");
    let mut tracker = place.tracker();
    place.scratch.write("dir/b.txt", "of the user");
    place.scratch.write(".env", "secret");
    changed(&mut tracker, ChangeOwner::Others);
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    let made = super::super::commit(&mut tracker, "x", None, &CancelToken::new());
    let made = made.unwrap().unwrap();
    assert_eq!(made.files, 3);
    let warning = made.warning.unwrap();
    assert!(warning.ends_with(": .env, dir/b.txt"), "{warning}");
}

#[test]
fn hooks_can_use_pathspec_patterns_and_change_the_message() {
    let place = Place::new();
    place.hook(
        "pre-commit",
        "test \"$(git ls-files 'dir/*.txt' | wc -l)\" = 2",
    );
    place.hook("commit-msg", "echo 'Signed: hook' >>\"$1\"");
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    assert_eq!(commits(&mut tracker), 1);
    let said = place.scratch.git(&["log", "-1", "--format=%B"]);
    assert_eq!(said.trim_end(), "of the loop\nSigned: hook");
}

#[test]
fn refused_commit_message_makes_no_commit() {
    let place = Place::new();
    place.hook(
        "commit-msg",
        "grep -q '^feat: ' \"$1\" || { echo 'not conventional' >&2; exit 1; }",
    );
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    let error = commit(&mut tracker, "of the loop").unwrap_err();
    assert!(error.to_string().contains("not conventional"), "{error}");
    assert!(commit(&mut tracker, "feat: of the loop").unwrap().is_some());
}

#[test]
fn hooks_run_only_for_commits() {
    let place = Place::new();
    let ran = place.scratch.home().join("ran");
    for hook in [
        "reference-transaction",
        "post-index-change",
        "fsmonitor-watchman",
    ] {
        place.hook(hook, &format!("echo {hook} >>'{}'", ran.display()));
    }
    let hook = place.git_dir().join("hooks/fsmonitor-watchman");
    place
        .scratch
        .git(&["config", "core.fsmonitor", hook.to_str().unwrap()]);
    let _ = fs::remove_file(&ran);
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    snapshot(&mut tracker, 1);
    assert!(!ran.exists());
}

#[test]
fn commit_does_not_wait_for_background_processes_of_a_hook() {
    let place = Place::new();
    let pid = place.scratch.home().join("pid");
    place.hook(
        "post-commit",
        &format!("sleep 1000 & echo $! >'{}'", pid.display()),
    );
    let mut tracker = place.tracker();
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    let began = clock::monotonic();
    assert_eq!(commits(&mut tracker), 1);
    assert!(began.elapsed() < Duration::from_secs(20));
    let pid: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
