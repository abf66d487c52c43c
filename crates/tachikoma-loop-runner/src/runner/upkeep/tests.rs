//! A task for which there is no room or time.

use tachikoma_core::{State, Timestamp};

use super::*;
use crate::store::snapshot::{Packing, Snapshot};

fn backup(dir: &std::path::Path) -> Task {
    let state = State::new(LoopId::from_u128(1));
    let now = Timestamp::from_millis(1);
    Task::Backup {
        backups: Backups {
            dir: dir.to_owned(),
            max: 0,
            packing: Packing::Plain,
            vault: Vault::plain(),
        },
        moment: Box::new(Moment {
            snapshot: Box::new(Snapshot::of(&state, dir, now)),
            original: None,
            journal: None,
            loop_dir: dir.to_owned(),
            work: None,
            before_restore: false,
        }),
        copy: None,
    }
}

#[tokio::test]
async fn a_backup_for_which_there_is_no_room_or_time_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut upkeep = Upkeep::default();
    let (tasks, _waiting) = sync_channel(1);
    let worker = Worker::start(upkeep.say.clone()).unwrap();
    upkeep.worker = Some(Worker { tasks, ..worker });
    assert!(upkeep.leave(backup(dir.path())));
    assert!(!upkeep.leave(backup(dir.path())), "nobody takes it");

    let worker = Worker::start(upkeep.say.clone()).unwrap();
    worker.called_off.store(true, Ordering::Relaxed);
    upkeep.worker = Some(worker);
    assert!(upkeep.leave(backup(dir.path())));
    upkeep.finish(std::future::pending()).await;
    assert_eq!(upkeep.unsaid(), [CALLED_OFF]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
