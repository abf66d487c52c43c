//! Decides when a backup of the loop is due, and manages its upload. The maintenance thread writes the backup itself.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tachikoma_core::{Incident, Input, LoopEvent, LoopId, Outcome, Record, Seq, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;

use super::backup_upload::{CloudProbe, Drain, Uploader};
use super::context::{Context, InputQueue};
use super::error::RunError;
use super::maintenance::{Maintenance, MaintenanceTask, UploadPlan, backup_failed, backup_warning};
use super::storage::Storage;
use crate::clock::{self, Clock};
use crate::config::LoopConfig;
use crate::git::ChangeOwner;
use crate::store::backup::{self, Moment};
use crate::store::layout;
use crate::store::recover::Recovered;
use crate::store::snapshot::Snapshot;
use tachikoma_core::error_chain as chain;

/// The backup schedule of one run.
#[derive(Debug)]
pub(super) struct BackupSchedule {
    /// Number of the last record in the last backup; `None` before the first backup.
    last: Option<Seq>,
    /// When the last backup was ordered; before the first backup, when the run began.
    since: Instant,
    /// Whether the warning about a full queue of the maintenance thread was recorded. Reset by the next backup.
    warned: bool,
    /// The owner of the changes in the work tree that no survey has covered yet. The maintenance thread reads it.
    owner: watch::Sender<ChangeOwner>,
    /// The uploader; `None` until the first upload.
    uploader: Option<Uploader>,
    /// Whether the run ends because of a signal, which may be a machine shutdown.
    hurried: bool,
}

impl BackupSchedule {
    pub fn new() -> Self {
        Self {
            last: None,
            since: now(),
            warned: false,
            owner: watch::Sender::new(ChangeOwner::Others),
            uploader: None,
            hurried: false,
        }
    }

    /// Notes new records, which make a backup necessary. Records about the upload of the last backup are ignored.
    pub fn note(&mut self, records: &[Record]) {
        for record in records {
            let is_of_upload = matches!(
                record.event,
                LoopEvent::Incident(Incident::CloudCopied { .. } | Incident::CloudFailed { .. })
            );
            if is_of_upload && self.last.map(Seq::next) == Some(record.seq) {
                self.last = Some(record.seq);
            }
        }
    }

    /// Sets who makes the changes in the work tree that the next survey will find.
    pub fn set_change_owner(&self, owner: ChangeOwner) {
        self.owner.send_replace(owner);
    }

    /// Returns when the next backup is due.
    pub fn due(&self, config: &LoopConfig) -> Option<Instant> {
        let state = &config.settings.state;
        let interval = state.backup_interval.get();
        (state.enabled && !interval.is_zero()).then(|| self.since + interval)
    }

    /// Returns whether a backup is due now.
    pub fn is_due(&self, config: &LoopConfig) -> bool {
        self.due(config).is_some_and(|due| due <= now())
    }

    /// Orders a backup of the current state, unless the last backup has the same state. The journal is synced first: a backup must not
    /// contain records that the journal may lose.
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub fn back_up(
        &mut self,
        config: &LoopConfig,
        state: &tachikoma_core::State,
        storage: &mut Storage,
        maintenance: &mut Maintenance,
        queue: &mut InputQueue,
        time: Timestamp,
    ) -> Result<(), RunError> {
        self.since = now();
        if !config.settings.state.enabled || self.last == Some(state.seq) {
            return Ok(());
        }
        storage.sync()?;
        // No backup is made if another runner may use the directory. The next repair checks the lock.
        if !config.working_dir.is_dir() || !storage.lock.is_in_place(&config.working_dir) {
            return Ok(());
        }
        let moment = Moment {
            snapshot: Box::new(Snapshot::of(state, &config.working_dir, time)),
            original: None,
            journal: Some(storage.journal.part()),
            loop_dir: layout::loop_dir(&config.working_dir, state.loop_id),
            work: None,
            before_restore: false,
        };
        let upload = config.cloud().map(|cloud| {
            self.start_uploader(None, maintenance);
            Box::new(UploadPlan {
                owner: self.owner.subscribe(),
                work: config.work_of(state.loop_id),
                queue: self.uploader.as_ref().map(Uploader::queue),
                cloud,
            })
        });
        let queued = maintenance.submit(MaintenanceTask::Backup {
            backups: config.backups(),
            moment: Box::new(moment),
            upload,
        });
        if queued {
            self.last = Some(state.seq);
            self.warned = false;
        } else if !std::mem::replace(&mut self.warned, true) {
            queue.warn(
                "no backup was taken: earlier backups are still being taken; the next one follows on schedule",
            );
        }
        Ok(())
    }

    fn start_uploader(&mut self, probe: Option<CloudProbe>, maintenance: &Maintenance) {
        if self.uploader.is_none() {
            match Uploader::start(probe) {
                Ok(uploader) => self.uploader = Some(uploader),
                Err(warning) => maintenance.warn(warning),
            }
        }
    }

    /// Starts the uploader with a check of the object store.
    pub fn probe_cloud(&mut self, context: Context<'_>, maintenance: &Maintenance) {
        let config = context.config;
        if let Some(cloud) = config.cloud() {
            let probe = CloudProbe {
                cloud,
                loop_id: context.state.loop_id,
                encrypted: config.encryption.encrypts(),
            };
            self.start_uploader(Some(probe), maintenance);
        }
    }

    /// Waits for the next event of the uploader. Cancel-safe.
    pub async fn next_event(&mut self) -> Input {
        Uploader::next_event(&mut self.uploader).await
    }

    /// Notes that the run ends. `None` means that it ends without an outcome.
    pub fn run_ends(&mut self, outcome: Option<&Outcome>) {
        self.hurried = matches!(outcome, None | Some(Outcome::Signal { .. }));
    }

    /// Returns whether the uploader runs.
    pub fn has_uploader(&self) -> bool {
        self.uploader.is_some()
    }

    /// Returns whether the end of the run waits for the last backup and its upload.
    pub fn waits_for_upload(&self) -> bool {
        self.uploader.is_some() && !self.hurried
    }

    /// Stops queueing backups. Returns the uploads that are still running.
    pub fn drain(&mut self, context: Context<'_>) -> Option<Drain> {
        let time = match self.hurried {
            // After a signal the time is short, because the machine may be shutting down.
            true => Duration::from_secs(2),
            false => Duration::from_secs(30),
        };
        let last = context.state.uploads.last.as_ref();
        let recorded = last.map(|last| last.name.clone());
        Some(self.uploader.take()?.drain(recorded, now() + time))
    }
}

/// Returns whether a session is about to be replaced. A backup is made before that.
pub(super) fn is_wanted(records: &[Record]) -> bool {
    let is_reboot = |record: &Record| matches!(record.event, LoopEvent::RebootStarted { .. });
    records.iter().any(is_reboot)
}

/// Backs up a loop before its files are migrated. Returns a warning if the backup failed.
pub(super) fn before_migration(
    config: &LoopConfig,
    dir: &Path,
    found: &Recovered,
) -> Option<String> {
    let now = Clock::starting_after(found.state.time).now();
    let moment = found.moment(dir, &config.working_dir, now);
    let taken = backup::take(&config.backups(), &moment, &AtomicBool::new(false));
    match taken {
        Ok(taken) => backup_warning(&taken.troubles),
        Err(error) => Some(backup_failed(&chain(&error))),
    }
}

/// Returns the warning that a new loop begins although there is a backup of a lost one.
pub(super) fn lost_loop_warning(config: &LoopConfig, current: Option<LoopId>) -> Option<String> {
    if current.is_some() || config.new_loop {
        return None;
    }
    let backups = config.backups();
    let lost = backup::of_lost_loop(&backups.dir, &config.working_dir, &config.encryption)?;
    let words = lost.message(&config.working_dir);
    Some(format!(
        "this is a new loop, but backups of another one are here: {words}"
    ))
}

fn now() -> Instant {
    Instant::from_std(clock::monotonic())
}
