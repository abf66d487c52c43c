//! Snapshots that are saved at an interval: only after changes, and a failure to save is a warning.

use std::fs;
use tachikoma_loop_runner::store::encryption::Encryption;

use tachikoma_core::{LoopEvent, Outcome, Urgency};
use tachikoma_loop_runner::store::recover::Loss;
use tachikoma_loop_runner::store::{layout, snapshot};
use tachikoma_loop_runner::{LoopConfig, LoopRunner};
use tachikoma_testkit::await_until;

use crate::loop_support::{Place, UNTIL_GO, Watch, lasting, open};
use crate::support::{PATIENCE, run};

fn config(place: &Place, script: &str, interval: &str) -> LoopConfig {
    let mut config = place.config(script);
    config.settings.max_iterations = 1;
    config.settings.state.auto_save_interval = lasting(interval);
    config
}

async fn to_limit(runner: &mut LoopRunner) {
    let ran = tokio::time::timeout(PATIENCE, runner.run()).await;
    let outcome = ran.expect("the loop ends in time").unwrap();
    assert_eq!(outcome, Outcome::LimitReached { iterations: 1 });
}

/// The agent checks the snapshot itself: it waits for the first save, and fails if the file is replaced again without a change.
#[test]
fn snapshot_is_saved_at_the_interval_only_if_the_state_changed() {
    let place = Place::new();
    let script = "s=.ralph/state.json
        until grep -q '\"seq\": 5,' $s 2>/dev/null; do sleep 0.01; done
        first=$(ls -i $s)
        for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.03; done
        [ \"$first\" = \"$(ls -i $s)\" ]";
    run(async {
        let mut runner = open(config(&place, script, "50ms")).await;
        to_limit(&mut runner).await;
        assert_eq!(runner.state().stats.successful, 1, "{:?}", runner.state());
        let found = snapshot::read(
            &place.working_dir().join(".ralph/state.json"),
            &Encryption::plain(),
        );
        let found = found.unwrap().unwrap();
        assert_eq!(
            found.state,
            *runner.state(),
            "the last state is saved when the loop ends"
        );
        runner.close().await;
    });
}

#[test]
fn snapshot_is_written_at_start_and_end_without_an_interval() {
    let place = Place::new();
    // The agent succeeds only if the snapshot has the state of the start of the loop.
    let script = "s=.ralph/state.json
        until [ -e $s ]; do sleep 0.01; done
        grep -q '\"status\": \"running\"' $s";
    run(async {
        let mut runner = open(config(&place, script, "0s")).await;
        to_limit(&mut runner).await;
        assert_eq!(
            runner.state().stats.successful,
            1,
            "the agent found the snapshot of the start"
        );
        let found = snapshot::read(
            &place.working_dir().join(".ralph/state.json"),
            &Encryption::plain(),
        );
        assert_eq!(found.unwrap().unwrap().state, *runner.state());
        runner.close().await;
    });
}

#[test]
fn unwritable_snapshot_is_one_warning_and_the_loop_continues() {
    let place = Place::new();
    let mut config = config(&place, UNTIL_GO, "50ms");
    // A file blocks the directory of the snapshot.
    config.settings.state.state_path = "blocked/state.json".into();
    let blocked = place.working_dir().join("blocked");
    fs::write(&blocked, "").unwrap();
    run(async {
        let mut runner = open(config).await;
        let mut watch = Watch::on(&runner);
        let handle = runner.handle();
        let operator = async {
            let warned = |event: &LoopEvent| {
                matches!(event, LoopEvent::Warned { warning }
                if warning.starts_with("the snapshot is not up to date: ") && warning.contains("blocked"))
            };
            watch.until("the warning", warned).await;
            fs::remove_file(&blocked).unwrap();
            handle
                .set("a".to_owned(), serde_json::json!(1))
                .await
                .unwrap();
            await_until("the snapshot", PATIENCE, || {
                blocked.join("state.json").exists()
            });
            handle.shut_down(15, Urgency::Kill);
        };
        let (ended, ()) = tokio::join!(runner.run(), operator);
        ended.unwrap();
        runner.close().await;
    });
    let warnings = place.history().into_iter();
    let warnings = warnings.filter(|record| matches!(record.event, LoopEvent::Warned { .. }));
    assert_eq!(warnings.count(), 1);
}

#[tokio::test]
async fn accepted_loss_of_records_is_recorded_before_the_run() {
    let place = Place::new();
    let mut config = place.config("true");
    config.settings.max_iterations = 1;
    open(config.clone()).await.run().await.unwrap();
    let loop_id = place.history()[0].loop_id;
    let path = layout::loop_dir(&place.working_dir(), loop_id).join("journal-0001.jsonl");
    fs::remove_file(place.working_dir().join(".ralph/state.json")).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("iteration_started", "iteration_star7ed", 1),
    )
    .unwrap();
    config.loss = Loss::Accept;
    // Dropping the runner without a run simulates a crash right after opening.
    drop(open(config).await);
    let last = place.history().pop().unwrap().event;
    assert!(
        matches!(&last, LoopEvent::Warned { warning } if warning.starts_with("falling back to record")),
        "{last:?}"
    );
}
