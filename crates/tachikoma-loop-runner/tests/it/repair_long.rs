//! Files that are damaged during a long iteration are repaired while the agent still runs. If another runner took the lock in the
//! meantime, its files are not changed.

use std::fs;
use tachikoma_loop_runner::store::encryption::Encryption;

use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use tachikoma_core::{LoopEvent, Outcome, Repair, Seq, Urgency};
use tachikoma_loop_runner::RunError;
use tachikoma_loop_runner::store::{journal, layout};

use crate::loop_support::{Place, UNTIL_GO, Watch, lasting, open};
use crate::support::{PATIENCE, run};

/// Number of values to set, each of the maximum size. Together they are larger than a journal segment.
const VALUES: usize = 1100;
const VALUE_BYTES: usize = 16_000;

/// The agent itself waits for the repair: it ends only after all files exist again. It moves the directory away before it deletes
/// it, so that it cannot delete files that were already repaired.
#[test]
fn deleted_files_are_repaired_while_the_agent_runs() {
    let place = Place::new();
    let script = "until grep -q agent_launched .ralph/loops/*/*; do sleep 0.01; done
        mv .ralph ../gone
        rm -rf ../gone
        for f in lock state.json 'loops/*/journal-0001.jsonl'; do
            until [ -e .ralph/$f ]; do sleep 0.01; done
        done
        until grep -q repaired .ralph/loops/*/*; do sleep 0.01; done";
    let mut config = place.config(script);
    config.settings.max_iterations = 1;
    config.settings.state.auto_save_interval = lasting("100ms");
    run(async {
        let mut runner = open(config).await;
        let ran = tokio::time::timeout(PATIENCE, runner.run()).await;
        assert_eq!(
            ran.expect("the agent ends").unwrap(),
            Outcome::LimitReached { iterations: 1 }
        );
        runner.close().await;
    });
    let history = place.history();
    assert_eq!(history[0].seq, Seq(1), "no record is lost");
    let repaired = history.iter().filter_map(|record| match &record.event {
        LoopEvent::Repaired { what, .. } => Some(*what),
        _ => None,
    });
    let repaired: Vec<_> = repaired.collect();
    // The order of the repairs may vary: the directory may be deleted after the check of the lock.
    for what in [Repair::Lock, Repair::Journal] {
        assert!(repaired.contains(&what), "{repaired:?}");
    }
}

/// Another process deletes everything, and a second runner starts its own loop before the first one checks its files.
#[test]
fn runner_that_lost_its_lock_saves_its_journal_but_no_snapshot() {
    let place = Place::new();
    let mut config = place.config(UNTIL_GO);
    // Saving at intervals is off, so that only a changed value triggers a save.
    config.settings.state.auto_save_interval = lasting("0s");
    let ralph = place.working_dir().join(".ralph");
    run(async {
        let mut runner = open(config).await;
        let loop_id = runner.state().loop_id;
        let mut watch = Watch::on(&runner);
        let handle = runner.handle();
        let operator = async {
            watch.launched(1).await;
            fs::remove_dir_all(&ralph).unwrap();
            fs::create_dir(&ralph).unwrap();
            let theirs = fs::File::create_new(ralph.join("lock")).unwrap();
            flock(&theirs, FlockOperation::NonBlockingLockExclusive).unwrap();
            fs::write(ralph.join("state.json"), "theirs").unwrap();
            // A change that triggers a save of the snapshot.
            handle.set("a".to_owned(), json!(1)).await.unwrap();
            theirs
        };
        let both = async { tokio::join!(runner.run(), operator) };
        let ended = tokio::time::timeout(PATIENCE, both).await;
        let (result, _theirs) = ended.expect("the runner notices the lost lock in time");
        let error = result.unwrap_err();
        assert!(matches!(error, RunError::Lock(_)), "{error}");
        let there = fs::read_to_string(ralph.join("state.json"));
        assert_eq!(
            there.unwrap(),
            "theirs",
            "the snapshot of the other runner is unchanged"
        );
        let mut kept = Vec::new();
        let dir = layout::loop_dir(&place.working_dir(), loop_id);
        journal::read_records(&dir, &Encryption::plain(), Seq(0), |record| {
            kept.push(record);
        })
        .unwrap();
        assert_eq!(kept[0].seq, Seq(1), "no record is lost");
        assert_eq!(kept.last().unwrap().seq, runner.state().seq);
        runner.close().await;
    });
}

/// A foreign file at the path of the snapshot is moved to the quarantine instead of overwritten by the first save.
#[test]
fn foreign_file_in_place_of_the_first_snapshot_is_kept() {
    let place = Place::new();
    let config = {
        let mut config = place.config("true");
        config.settings.max_iterations = 1;
        config
    };
    run(async {
        let mut runner = open(config).await;
        fs::write(place.working_dir().join(".ralph/state.json"), "mine").unwrap();
        runner.run().await.unwrap();
        runner.close().await;
    });
    let kept = place.working_dir().join(".ralph/quarantine/state.json.1");
    assert_eq!(fs::read_to_string(kept).unwrap(), "mine");
}

/// Fills a journal segment after the agent ran `destroy`, which damages files that the next segment needs.
fn full_after(destroy: &str) -> Place {
    let place = Place::new();
    let script =
        format!("[ -e done ] || {{ touch done\n{destroy}\ntouch destroyed; }}; {UNTIL_GO}");
    let mut config = place.config(&script);
    // Saving at intervals is off, so that no other check repairs the files first.
    config.settings.state.auto_save_interval = lasting("0s");
    run(async {
        let mut runner = open(config).await;
        let mut watch = Watch::on(&runner);
        let handle = runner.handle();
        let operator = async {
            watch.launched(1).await;
            let destroyed = place.working_dir().join("destroyed");
            while !destroyed.exists() {
                tokio::task::yield_now().await;
            }
            let value = json!("x".repeat(VALUE_BYTES));
            for _ in 0..VALUES {
                handle.set("a".to_owned(), value.clone()).await.unwrap();
            }
            handle.shut_down(15, Urgency::Kill);
        };
        let (ended, ()) = tokio::join!(runner.run(), operator);
        assert_eq!(ended.unwrap(), Outcome::Signal { signal: 15 });
        runner.close().await;
    });
    let history = place.history();
    assert_eq!(history[0].seq, Seq(1), "no record is lost");
    let last_opened = history.iter().rev().find_map(|record| match record.event {
        LoopEvent::SegmentOpened { segment, .. } => Some(segment),
        _ => None,
    });
    assert_eq!(last_opened, Some(2));
    place
}

#[test]
fn full_segment_is_closed_after_its_directory_was_deleted() {
    full_after("rm -rf .ralph/loops");
}

#[test]
fn full_segment_is_closed_if_a_file_blocks_the_next_segment() {
    let place = full_after("for d in .ralph/loops/*; do echo mine >$d/journal-0002.jsonl; done");
    let kept = place
        .working_dir()
        .join(".ralph/quarantine/journal-0002.jsonl.1");
    assert_eq!(fs::read_to_string(kept).unwrap(), "mine\n");
}
