//! Files of the loop that an agent damages or deletes are repaired before the next agent starts.

use std::fs;
use std::path::PathBuf;
use tachikoma_loop_runner::store::encryption::Encryption;

use rustix::fs::{FlockOperation, flock};
use tachikoma_core::{Answer, LoopCommand, LoopEvent, Outcome, Repair, Seq, Urgency};
use tachikoma_loop_runner::store::{lock, snapshot};
use tachikoma_loop_runner::{LoopRunner, RunError};

use crate::loop_support::{Place, UNTIL_GO, Watch, lasting, open};
use crate::support::{PATIENCE, run};

fn repairs(place: &Place) -> Vec<(Repair, String)> {
    let history = place.history();
    let repair = |event: &LoopEvent| match event {
        LoopEvent::Repaired { what, how } => Some((*what, how.clone())),
        _ => None,
    };
    history
        .iter()
        .filter_map(|record| repair(&record.event))
        .collect()
}

/// Runs three iterations. The second one runs `destroy`. Returns the recorded repairs. No record may be lost, and a later runner must be
/// able to continue the loop.
#[track_caller]
fn check(destroy: &str) -> (Place, Vec<(Repair, String)>) {
    let place = Place::new();
    // After the launch is recorded, the runner writes nothing until the agent ends.
    let launched =
        "until [ $(cat .ralph/loops/*/* | grep -c agent_launched) = 2 ]; do sleep 0.01; done";
    let script = format!("[ $TACHIKOMA_ITERATION != 2 ] || {{ {launched}\n{destroy}\n}}");
    let mut config = place.config(&script);
    config.settings.max_iterations = 3;
    let state = run(async {
        let mut runner = open(config.clone()).await;
        let outcome = runner.run().await.unwrap();
        assert_eq!(outcome, Outcome::LimitReached { iterations: 3 });
        assert!(
            lock::is_held(&place.working_dir()),
            "the runner holds the lock"
        );
        let state = runner.state().clone();
        runner.close().await;
        state
    });
    assert_eq!(state.stats.successful, 3);
    run(async {
        config.settings.max_iterations = 4;
        let mut runner = open(config).await;
        assert_eq!(
            *runner.state(),
            state,
            "the state in memory equals the state from the journal"
        );
        runner.run().await.unwrap();
        assert_eq!(runner.state().iteration, 4);
        runner.close().await;
    });
    let repairs = repairs(&place);
    (place, repairs)
}

fn what(repairs: &[(Repair, String)]) -> Vec<Repair> {
    repairs.iter().map(|(what, _)| *what).collect()
}

#[test]
fn ralph_directory_is_recreated_after_it_was_deleted() {
    let (place, repairs) = check("rm -rf .ralph");
    assert_eq!(
        what(&repairs),
        [Repair::Lock, Repair::Journal, Repair::Snapshot]
    );
    assert_eq!(
        repairs[1].1,
        "the file was missing; the runner restored it from its open file"
    );
    assert_eq!(place.history()[0].seq.0, 1, "no record is lost");
}

#[test]
fn ralph_directory_is_recreated_after_it_was_moved() {
    let (_, repairs) = check("mv .ralph elsewhere");
    assert_eq!(
        what(&repairs),
        [Repair::Lock, Repair::Journal, Repair::Snapshot]
    );
}

#[test]
fn loops_directory_is_recreated_after_it_was_deleted() {
    let (_, repairs) = check("rm -rf .ralph/loops");
    assert_eq!(what(&repairs), [Repair::Journal]);
}

#[test]
fn deleted_or_replaced_journal_is_repaired() {
    let (_, repairs) = check("rm .ralph/loops/*/journal-0001.jsonl");
    assert_eq!(what(&repairs), [Repair::Journal]);
    let (place, repairs) = check(
        "for j in .ralph/loops/*/journal-0001.jsonl; do echo mine >$j.new; mv $j.new $j; done",
    );
    assert_eq!(what(&repairs), [Repair::Journal]);
    let kept = place
        .working_dir()
        .join(".ralph/quarantine/journal-0001.jsonl.1");
    assert_eq!(fs::read_to_string(kept).unwrap(), "mine\n");
}

#[test]
fn truncated_or_overwritten_journal_is_repaired() {
    for destroy in [
        "for j in .ralph/loops/*/journal-0001.jsonl; do : >$j; done",
        "for j in .ralph/loops/*/journal-0001.jsonl; do echo x >>$j; done",
        "for j in .ralph/loops/*/journal-0001.jsonl; do s=$(wc -c <$j); head -c $s /dev/zero >$j; done",
    ] {
        let (place, repairs) = check(destroy);
        assert_eq!(what(&repairs), [Repair::Journal], "{destroy}");
        assert_eq!(
            repairs[0].1,
            "the file was changed; segment 2 continues from the full state; \
             the file at its path was moved to .ralph/quarantine/journal-0001.jsonl.1"
        );
        let first = &place.history()[0].event;
        assert!(
            matches!(first, LoopEvent::SegmentOpened { segment: 2, state, .. } if state.iteration == 2),
            "{first:?}"
        );
    }
}

#[test]
fn deleted_replaced_or_truncated_lock_is_repaired() {
    for destroy in [
        "rm .ralph/lock",
        "echo mine >l; mv l .ralph/lock",
        ": >.ralph/lock",
        "rm .ralph/lock; mkdir .ralph/lock",
        "rm .ralph/lock; mkfifo .ralph/lock",
    ] {
        let (_, repairs) = check(destroy);
        assert_eq!(what(&repairs), [Repair::Lock], "{destroy}");
    }
}

#[test]
fn deleted_or_overwritten_snapshot_is_repaired() {
    let (_, repairs) = check("rm .ralph/state.json");
    assert_eq!(what(&repairs), [Repair::Snapshot]);
    assert_eq!(repairs[0].1, "its file was missing and was written again");
    for destroy in [
        "echo mine >.ralph/state.json",
        "rm .ralph/state.json; mkdir .ralph/state.json",
    ] {
        let (place, repairs) = check(destroy);
        assert_eq!(what(&repairs), [Repair::Snapshot], "{destroy}");
        let kept = ".ralph/quarantine/state.json.1";
        assert!(repairs[0].1.ends_with(kept), "{repairs:?}");
        assert!(place.working_dir().join(kept).exists(), "{destroy}");
        let found = snapshot::read(
            &place.working_dir().join(".ralph/state.json"),
            &Encryption::plain(),
        );
        assert_eq!(found.unwrap().unwrap().core.iteration, 4, "{destroy}");
    }
}

/// The agent itself waits for each repair: it ends only after the snapshot exists again. Before it destroys the file it waits until all
/// records are saved, because a pending save would replace the file without recording a repair.
#[test]
fn destroyed_snapshot_is_repaired_while_the_agent_runs() {
    let place = Place::new();
    let script = "s=.ralph/state.json
        until grep -q '\"seq\": 5,' $s; do sleep 0.01; done
        rm $s
        until grep -q '\"seq\": 6,' $s; do sleep 0.01; done
        echo mine >$s
        until grep -q loop_id $s; do sleep 0.01; done";
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
    assert_eq!(what(&repairs(&place)), [Repair::Snapshot; 2]);
}

/// The record of a repair is saved to the snapshot after the snapshot interval, like all other records.
#[test]
fn repair_is_saved_after_the_snapshot_interval() {
    let place = Place::new();
    let mut config = place.config(UNTIL_GO);
    config.settings.state.auto_save_interval = lasting("100ms");
    let path = place.working_dir().join(".ralph/state.json");
    let saved = async |seq: Seq| {
        let at = || {
            snapshot::read(&path, &Encryption::plain())
                .ok()
                .flatten()
                .map(|found| found.seq)
        };
        let saving = async {
            while at() < Some(seq) {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, saving).await;
        waited.expect("the record is saved to the snapshot");
    };
    run(async {
        let mut runner = open(config).await;
        let mut watch = Watch::on(&runner);
        let handle = runner.handle();
        let operator = async {
            watch.launched(1).await;
            saved(watch.records.last().unwrap().seq).await;
            fs::remove_file(place.working_dir().join(".ralph/lock")).unwrap();
            // A refused command makes the runner check its files without recording anything else.
            let answer = handle.command(LoopCommand::Resume).await.unwrap();
            assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
            let repaired = |event: &LoopEvent| matches!(event, LoopEvent::Repaired { .. });
            let seq = watch.until("the repair", repaired).await.seq;
            saved(seq).await;
            handle.shut_down(15, Urgency::Kill);
        };
        let (ended, ()) = tokio::join!(runner.run(), operator);
        ended.unwrap();
        runner.close().await;
    });
}

/// An identical copy in place of the snapshot, or a new modification time, is not damage.
#[test]
fn touched_or_copied_snapshot_is_not_repaired() {
    let (place, repairs) =
        check("touch .ralph/state.json; cp .ralph/state.json s; mv s .ralph/state.json");
    assert_eq!(what(&repairs), []);
    assert!(!place.working_dir().join(".ralph/quarantine").exists());
}

#[test]
fn transcripts_directory_is_recreated_after_it_was_deleted() {
    let (place, repairs) = check("rm -rf .ralph/sessions");
    assert_eq!(what(&repairs), []);
    let place = {
        let mut config = place.config("echo hello");
        config.settings.max_iterations = 5;
        run(async {
            let mut runner = open(config).await;
            runner.run().await.unwrap();
            runner.close().await;
        });
        place
    };
    assert!(place.working_dir().join(".ralph/sessions").is_dir());
}

#[test]
fn deleted_control_socket_is_repaired() {
    let (_, repairs) = check("rm ../r/*.sock");
    assert_eq!(what(&repairs), [Repair::Socket]);
    let (_, repairs) = check("rm -rf ../r");
    assert_eq!(what(&repairs), [Repair::Socket]);
}

#[test]
fn recreated_control_socket_works_and_is_removed_at_the_end() {
    let place = Place::new();
    let script = format!(
        "[ $TACHIKOMA_ITERATION != 1 ] || rm ../r/*.sock; [ $TACHIKOMA_ITERATION = 1 ] || {UNTIL_GO}"
    );
    let mut config = place.config(&script);
    config.settings.max_iterations = 2;
    let sockets = config.runtime_dir.clone();
    run(async {
        let mut runner = open(config).await;
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.launched(2).await;
            let holder = lock::holder(&place.working_dir()).unwrap();
            let mut client = tachikoma_loop_runner::control::Client::connect(&holder.socket)
                .await
                .unwrap();
            client
                .ask(&tachikoma_loop_runner::control::ControlRequest::Status)
                .await
                .unwrap();
            place.go(2);
        };
        let (outcome, ()) = tokio::join!(runner.run(), operator);
        outcome.unwrap();
        runner.close().await;
    });
    assert_eq!(fs::read_dir(sockets).unwrap().count(), 0);
}

/// Replaces the lock file while an agent works and locks the new one, as another runner would.
fn taken_over(place: &Place) -> fs::File {
    let path = place.working_dir().join(".ralph/lock");
    fs::remove_file(&path).unwrap();
    let file = fs::File::create_new(path).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    file
}

#[test]
fn runner_that_lost_its_lock_ends_and_the_new_runner_continues() {
    let place = Place::new();
    let mut config = place.config(UNTIL_GO);
    config.settings.max_iterations = 1;
    run(async {
        let mut runner = open(config).await;
        let mut watch = Watch::on(&runner);
        let journal = journal_of(&place);
        let operator = async {
            watch.launched(1).await;
            let theirs = taken_over(&place);
            let before = fs::read(&journal).unwrap();
            place.go(1);
            (theirs, before)
        };
        let (result, (_theirs, before)) = tokio::join!(runner.run(), operator);
        let error = result.unwrap_err();
        assert!(matches!(error, RunError::Lock(_)), "{error}");
        assert_eq!(
            fs::read(&journal).unwrap(),
            before,
            "the journal is not written while another runner has the lock"
        );
        assert!(place.working_dir().join(".ralph/lock").exists());
        runner.close().await;
    });
}

fn journal_of(place: &Place) -> PathBuf {
    let loops = place.working_dir().join(".ralph/loops");
    let dir = fs::read_dir(loops).unwrap().next().unwrap().unwrap().path();
    dir.join("journal-0001.jsonl")
}

#[test]
fn guard_holds_the_repaired_lock_too() {
    let place = Place::new();
    let script = format!(
        "[ $TACHIKOMA_ITERATION != 1 ] || rm .ralph/lock; [ $TACHIKOMA_ITERATION = 1 ] || {UNTIL_GO}"
    );
    let config = place.config(&script);
    run(async {
        let mut runner: LoopRunner = open(config.clone()).await;
        let mut watch = Watch::on(&runner);
        {
            let running = runner.run();
            tokio::pin!(running);
            tokio::select! {
                result = &mut running => panic!("the run ended early: {result:?}"),
                _ = watch.launched(2) => {}
            }
        }
        let guard = guard_of(&place);
        // The standby is suspended first, because it would resume a suspended guard.
        let stopped = [parent_of(guard), guard];
        let signal = |signal| {
            for pid in stopped {
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                rustix::process::kill_process(pid, signal).unwrap();
            }
        };
        signal(rustix::process::Signal::STOP);
        drop(runner);
        assert!(
            lock::is_held(&place.working_dir()),
            "the guard holds the lock until it has cleaned up"
        );
        signal(rustix::process::Signal::CONT);
        // Opening waits until the guard has released the lock.
        let runner = open(config).await;
        runner.close().await;
    });
}

/// Returns the process id of the guard, which is the parent of the last agent.
fn guard_of(place: &Place) -> i32 {
    let history = place.history();
    let pid = history.iter().rev().find_map(|record| match record.event {
        LoopEvent::AgentLaunched { pid } => Some(pid),
        _ => None,
    });
    parent_of(i32::try_from(pid.unwrap()).unwrap())
}

fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    after_name.split(' ').nth(1).unwrap().parse().unwrap()
}
