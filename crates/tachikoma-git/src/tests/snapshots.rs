//! Snapshots: their content, how many are kept, and that they change nothing else.

use super::*;
use crate::SNAPSHOTS_KEPT;
use crate::snapshots::{Moment, list, resolve};

fn refs(place: &Place) -> Vec<String> {
    let text = place.scratch.git(&[
        "for-each-ref",
        "--format=%(refname:lstrip=3)",
        "--sort=version:refname",
        "refs/tachikoma",
    ]);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn snapshot_stores_the_work_tree_and_changes_nothing_else() {
    let place = Place::new();
    place.scratch.write("a.txt", "staged");
    place.scratch.git(&["add", "a.txt"]);
    place.scratch.write("a.txt", "in the work tree");
    place.scratch.write("untracked.txt", "u");
    place.scratch.write("noise.log", "ignored");
    place.scratch.write(".env", "secret");
    place.remove("dir/b.txt");
    let before = (place.index(), place.status(), place.head());
    let mut tracker = place.tracker();
    let commit = snapshot(&mut tracker, 7);
    assert_eq!(
        place.files_of(&commit),
        [".gitignore", "a.txt", "dir/c.txt", "untracked.txt"]
    );
    assert_eq!(place.at(&commit, "a.txt"), "in the work tree");
    assert_eq!((place.index(), place.status(), place.head()), before);
    let log = place
        .scratch
        .git(&["log", "--format=%an|%cn|%s", "-1", &commit]);
    let id = LoopId::from_u128(1);
    assert_eq!(
        log,
        format!("tachikoma|tachikoma|before iteration 7 of {id}\n")
    );
    let parent = place.scratch.git(&["rev-parse", &format!("{commit}^")]);
    assert_eq!(parent.trim_end(), place.head());
    assert_eq!(refs(&place), ["7"]);
}

#[test]
fn references_of_equal_snapshots_are_written_in_one_batch() {
    let place = Place::new();
    let mut tracker = place.tracker();
    let first = snapshot(&mut tracker, 1);
    assert_eq!(snapshot(&mut tracker, 2), first);
    assert_eq!(snapshot(&mut tracker, 3), first);
    assert_eq!(refs(&place), ["1"]);
    let kept = list(
        &tracker.loop_index.repository.git,
        LoopId::from_u128(1),
        &CancelToken::new(),
    )
    .unwrap();
    let found = resolve(&kept, Moment::Iteration(3)).unwrap();
    assert_eq!(found.commit, first, "also before its reference is written");
    place.scratch.write("a.txt", "2");
    changed(&mut tracker, ChangeOwner::Loop);
    let second = snapshot(&mut tracker, 4);
    assert_ne!(second, first);
    assert_eq!(refs(&place), ["1", "2", "3", "4"]);
    snapshot(&mut tracker, 5);
    super::super::write_pending_refs(&mut tracker, &CancelToken::new()).unwrap();
    assert_eq!(refs(&place), ["1", "2", "3", "4", "5"]);
    let of_fifth = place.scratch.git(&[
        "rev-parse",
        &format!("refs/tachikoma/{}/5", LoopId::from_u128(1)),
    ]);
    assert_eq!(of_fifth.trim_end(), second);
}

#[test]
fn only_the_last_thousand_snapshots_are_kept() {
    let place = Place::new();
    let mut tracker = place.tracker();
    snapshot(&mut tracker, 1);
    let last = u32::try_from(SNAPSHOTS_KEPT).unwrap() + 20;
    for iteration in 2..last {
        snapshot(&mut tracker, iteration);
    }
    super::super::write_pending_refs(&mut tracker, &CancelToken::new()).unwrap();
    let kept = refs(&place);
    assert_eq!(kept.len(), SNAPSHOTS_KEPT);
    assert_eq!(kept.first().map(String::as_str), Some("20"));
    place.scratch.write("a.txt", "2");
    snapshot(&mut tracker, last);
    let kept = refs(&place);
    assert_eq!(kept.len(), SNAPSHOTS_KEPT);
    assert_eq!(kept.first().map(String::as_str), Some("21"));
}

#[test]
fn snapshot_survives_a_destroyed_work_tree() {
    let place = Place::new();
    place.scratch.write("precious.txt", "untracked");
    let mut tracker = place.tracker();
    let commit = snapshot(&mut tracker, 1);
    place.scratch.git(&["clean", "-fdxq"]);
    place.scratch.git(&["reset", "--quiet", "--hard"]);
    place.scratch.git(&["gc", "--quiet", "--prune=now"]);
    assert!(!place.path("precious.txt").exists());
    assert_eq!(place.at(&commit, "precious.txt"), "untracked");
    // The loop's own files were removed, too, so a new tracker is opened.
    place.make_loop_dir();
    assert_eq!(changed(&mut tracker, ChangeOwner::Loop), ["precious.txt"]);
}

#[test]
fn snapshot_is_made_again_if_its_commit_was_deleted() {
    let place = Place::new();
    let mut tracker = place.tracker();
    snapshot(&mut tracker, 1);
    crate::snapshots::delete_all(&tracker.loop_index.repository.git, LoopId::from_u128(1)).unwrap();
    place.scratch.git(&["gc", "--quiet", "--prune=now"]);
    let mut tracker = place.tracker();
    snapshot(&mut tracker, 2);
    super::super::write_pending_refs(&mut tracker, &CancelToken::new()).unwrap();
    assert_eq!(refs(&place), ["2"]);
}

fn asked_for_references(place: &Place) -> usize {
    let asked = place.asked();
    asked
        .iter()
        .filter(|asked| asked.contains("update-ref"))
        .count()
}

/// Changes a file, and makes a snapshot before an iteration.
fn next(place: &Place, tracker: &mut WorkTracker, iteration: u32) -> String {
    place.scratch.write("a.txt", format!("{iteration}"));
    snapshot(tracker, iteration)
}

fn reference(place: &Place, iteration: u32) -> String {
    let name = format!("refs/tachikoma/{}/{iteration}", LoopId::from_u128(1));
    let commit = place.scratch.git(&["rev-parse", &name]);
    commit.trim_end().to_owned()
}

#[test]
fn snapshots_work_with_packed_references() {
    let place = Place::new();
    let mut tracker = place.tracker();
    next(&place, &mut tracker, 1);
    let second = next(&place, &mut tracker, 2);
    assert_eq!(asked_for_references(&place), 2);
    assert_eq!(reference(&place, 2), second);
    place.scratch.git(&["pack-refs", "--all", "--prune"]);
    let third = next(&place, &mut tracker, 3);
    assert_eq!(next(&place, &mut tracker, 4), reference(&place, 4));
    assert_eq!(reference(&place, 3), third);
    assert_eq!(refs(&place), ["1", "2", "3", "4"]);
}

#[test]
fn locked_reference_fails_the_snapshot_and_keeps_the_lock() {
    let place = Place::new();
    let mut tracker = place.tracker();
    next(&place, &mut tracker, 1);
    let below = format!("refs/tachikoma/{}", LoopId::from_u128(1));
    let lock = place.git_dir().join(below).join("2.lock");
    fs::write(&lock, "").unwrap();
    place.asked();
    place.scratch.write("a.txt", "2");
    let refused = super::super::snapshot(&mut tracker, 2, &CancelToken::new()).unwrap_err();
    assert!(refused.to_string().contains("2.lock"), "{refused}");
    assert_eq!(asked_for_references(&place), 1);
    assert!(lock.exists(), "the lock of another process is kept");
    fs::remove_file(lock).unwrap();
    assert_eq!(snapshot(&mut tracker, 2), reference(&place, 2));
}

#[test]
fn snapshots_work_in_a_reftable_repository() {
    let place = Place::empty();
    let converted = std::process::Command::new("git")
        .args(["refs", "migrate", "--ref-format=reftable"])
        .current_dir(place.scratch.path())
        .output()
        .unwrap();
    assert!(converted.status.success(), "{converted:?}");
    place.scratch.write("a.txt", "a");
    place.commit_all("before");
    let mut tracker = place.tracker();
    for iteration in 1..=3 {
        let commit = next(&place, &mut tracker, iteration);
        assert_eq!(asked_for_references(&place), 1);
        assert_eq!(reference(&place, iteration), commit);
    }
    assert!(!place.git_dir().join("refs/tachikoma").exists());
}
