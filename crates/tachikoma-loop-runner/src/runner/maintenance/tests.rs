//! Tests backups that are not made because the queue is full or the time is over.

use tachikoma_core::{LoopId, State, Timestamp};

use super::*;
use crate::store::snapshot::{Packing, Snapshot};

fn backup(dir: &std::path::Path) -> MaintenanceTask {
    let state = State::new(LoopId::from_u128(1));
    let now = Timestamp::from_millis(1);
    MaintenanceTask::Backup {
        backups: Backups {
            dir: dir.to_owned(),
            max: 0,
            packing: Packing::Plain,
            encryption: Encryption::plain(),
        },
        moment: Box::new(Moment {
            snapshot: Box::new(Snapshot::of(&state, dir, now)),
            original: None,
            journal: None,
            loop_dir: dir.to_owned(),
            work: None,
            before_restore: false,
        }),
        upload: None,
    }
}

#[tokio::test]
async fn backup_that_is_not_taken_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut maintenance = Maintenance::default();
    let (tasks, _waiting) = sync_channel(1);
    let worker = MaintenanceThread::start(maintenance.sender.clone()).unwrap();
    maintenance.worker = Some(MaintenanceThread { tasks, ..worker });
    assert!(maintenance.submit(backup(dir.path())));
    assert!(!maintenance.submit(backup(dir.path())), "the queue is full");

    let worker = MaintenanceThread::start(maintenance.sender.clone()).unwrap();
    worker.canceled.store(true, Ordering::Relaxed);
    maintenance.worker = Some(worker);
    assert!(maintenance.submit(backup(dir.path())));
    maintenance.shutdown(false, std::future::pending()).await;
    assert_eq!(maintenance.unreported(), [BACKUP_CANCELED]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
