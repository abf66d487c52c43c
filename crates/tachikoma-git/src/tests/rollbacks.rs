//! Files that a rollback removes, and files that it must not remove.

use super::*;
use crate::rollback::Rollback;
use crate::snapshots::{KeptSnapshot, Moment};

/// Number of files. Together they exceed the total limit of tests, and each is below the limit for one file.
const FILES: usize = 80;
const FILE_BYTES: usize = 1000;

#[test]
fn rollback_keeps_new_files_over_the_budget() {
    let place = Place::new();
    let mut tracker = place.tracker();
    let kept = KeptSnapshot {
        moment: Moment::Iteration(1),
        commit: snapshot(&mut tracker, 1),
    };
    let names: Vec<String> = (0..FILES).map(|n| format!("data/{n:03}")).collect();
    for name in &names {
        place.scratch.write(name, "x".repeat(FILE_BYTES));
    }
    let repository = tracker.loop_index.repository.clone();
    let plan = Rollback::plan(
        repository,
        &place.options.loop_dir,
        &place.options.rules,
        &kept,
        &CancelToken::new(),
    )
    .unwrap();
    let (present, _) = plan.trees();
    let present = place.files_of(present);
    let left = plan.left.clone();
    plan.perform(kept.moment, &CancelToken::new()).unwrap();
    assert!(!left.is_empty());
    for name in &names {
        let there = place.path(name).exists();
        assert_eq!(there, left.contains(name), "{name}");
        assert_eq!(there, !present.contains(name), "{name}");
    }
}
