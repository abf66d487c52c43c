//! The state snapshot on disk: written at the end of an iteration, at changes of state, and after an interval. Nothing is written
//! if another runner may have taken over the directory.

use std::path::Path;
use std::time::Duration;

use tachikoma_core::{LoopEvent, LoopId, Phase, Record, Seq, State, Timestamp};
use tachikoma_fs::atomic_file::FileMark;
use tachikoma_fs::quarantine::quarantine;
use tokio::time::Instant;

use super::context::InputQueue;
use super::error::RunError;
use super::storage::Storage;
use crate::clock;
use crate::config::LoopConfig;
use crate::store::StoreError;
use crate::store::encryption::Encryption;
use crate::store::snapshot::{self, Durability, Snapshot};
use tachikoma_core::error_chain as chain;

/// Interval at which the lock file is touched while the loop has a time budget. After a power failure, at most this much time is missing.
const ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Delay before the next attempt if a missing lock kept a snapshot from being written. It is short, but does not overload a full
/// disk on which the lock cannot be repaired.
const LOCK_RETRY: Duration = Duration::from_secs(1);

/// Returns how durable the snapshot after an event must be; `None` if the event needs no snapshot.
pub(super) fn durability(event: &LoopEvent) -> Option<Durability> {
    match event {
        LoopEvent::Paused { .. }
        | LoopEvent::Resumed
        | LoopEvent::RebootStarted { .. }
        | LoopEvent::RebootCompleted { .. }
        | LoopEvent::RebootFailed { .. }
        | LoopEvent::Completed { .. }
        | LoopEvent::Stopped { .. }
        | LoopEvent::Error { .. } => Some(Durability::Synced),
        // These snapshots are not synced, so that a short first iteration need not wait for the disk. The next snapshot at the interval is synced.
        LoopEvent::Started { .. }
        | LoopEvent::IterationCompleted { .. }
        | LoopEvent::IterationFailed { .. }
        | LoopEvent::IterationLimited(_)
        | LoopEvent::AutocommitFinished { .. }
        | LoopEvent::AutocommitGivenUp { .. }
        | LoopEvent::GatesRan { .. }
        | LoopEvent::TestsRan(_)
        | LoopEvent::ClaimRefused(_)
        | LoopEvent::Noted { .. }
        | LoopEvent::CustomSet { .. } => Some(Durability::Lazy),
        _ => None,
    }
}

/// The snapshot on disk, and the time of the next one.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// The snapshot that was last written or found; `None` if there is none.
    last: Option<SavedSnapshot>,
    /// Whether the last attempt to write the snapshot failed.
    failed: bool,
    /// When the next snapshot is due, unless an event causes one earlier; `None` if nothing has changed.
    due: Option<Instant>,
    /// When the files of the loop were last checked.
    checked: Instant,
    /// When the lock file was last touched.
    alive: Instant,
}

/// The snapshot as it was last written.
#[derive(Debug)]
pub(super) struct SavedSnapshot {
    mark: FileMark,
    /// Number of the last record in the snapshot.
    seq: Seq,
}

impl SavedSnapshot {
    /// Reads the snapshot of a loop.
    pub fn find(path: &Path, loop_id: LoopId, encryption: &Encryption) -> Option<Self> {
        let mark = FileMark::of(path)?;
        let found = snapshot::read(path, encryption).ok().flatten()?;
        let seq = found.seq;
        (found.loop_id == loop_id).then_some(Self { mark, seq })
    }
}

impl Snapshots {
    pub fn new(found: Option<SavedSnapshot>) -> Self {
        Self {
            last: found,
            failed: false,
            due: None,
            checked: instant(),
            alive: instant(),
        }
    }

    /// Schedules the next snapshot if there are new records.
    pub fn note(&mut self, config: &LoopConfig, records: &[Record]) {
        let state = &config.settings.state;
        let interval = state.auto_save_interval.get();
        if !records.is_empty() && !interval.is_zero() && self.due.is_none() && state.enabled {
            self.due = Some(instant() + interval);
        }
    }

    /// Notes that the files of the loop are being checked now.
    pub fn checked(&mut self) {
        self.checked = instant();
    }

    /// Notes that the lock file is being touched now.
    pub fn touched(&mut self) {
        self.alive = instant();
    }

    /// Returns when the lock file has to be touched next.
    pub fn alive_due(&self) -> Instant {
        self.alive + ALIVE_INTERVAL
    }

    /// Returns when the files have to be checked: when a snapshot is due, and at an interval while the loop runs.
    pub fn check_due(&self, config: &LoopConfig, state: &State) -> Option<Instant> {
        let interval = config.settings.state.auto_save_interval.get();
        let check = (is_running(state) && !interval.is_zero()).then(|| self.checked + interval);
        self.due.into_iter().chain(check).min()
    }

    /// Returns whether the files have to be checked now.
    pub fn is_check_due(&self, config: &LoopConfig, state: &State) -> bool {
        self.check_due(config, state)
            .is_some_and(|due| due <= instant())
    }

    /// Returns whether there are changes that are not in the snapshot yet.
    pub fn is_unsaved(&self) -> bool {
        self.due.is_some()
    }

    /// Returns whether the snapshot is damaged: its file is missing or differs from what was written.
    pub fn is_damaged(&mut self, config: &LoopConfig, loop_id: LoopId) -> bool {
        self.last.is_some() && !self.is_as_written(config, loop_id)
    }

    /// Returns whether the file is as it was last written. If it was never written, returns whether there is no file.
    fn is_as_written(&mut self, config: &LoopConfig, loop_id: LoopId) -> bool {
        let path = config.packed_snapshot_path();
        let Some(saved) = &mut self.last else {
            return std::fs::symlink_metadata(&path).is_err();
        };
        if FileMark::of(&path).as_ref() == Some(&saved.mark) {
            return true;
        }
        // The content is compared if the file was only touched, or moved and copied back.
        let found = SavedSnapshot::find(&path, loop_id, &config.encryption);
        let same = found.filter(|found| found.seq == saved.seq);
        same.map(|found| *saved = found).is_some()
    }

    /// Moves a foreign file at the path of the snapshot to the quarantine. Returns a description of the problem.
    ///
    /// # Errors
    /// The file cannot be moved. It must not be overwritten.
    fn quarantine_foreign(
        &mut self,
        config: &LoopConfig,
        loop_id: LoopId,
        path: &Path,
    ) -> Result<Option<String>, StoreError> {
        if self.is_as_written(config, loop_id) {
            return Ok(None);
        }
        let working_dir = &config.working_dir;
        Ok(Some(match quarantine(working_dir, path)? {
            None => "its file was missing and was written again".to_owned(),
            Some(moved) => {
                let shown = moved.strip_prefix(working_dir).unwrap_or(&moved);
                format!(
                    "its file was changed and was written again; the changed file is at {}",
                    shown.display()
                )
            }
        }))
    }

    /// Writes the snapshot, and returns the problem of the file that it replaces, if there is one. A snapshot that cannot be written causes one
    /// warning
    /// until it can be written again. The journal has all records.
    ///
    /// # Errors
    /// The journal cannot be synced. It is synced before the snapshot: if only the snapshot survived a power failure, the journal would
    /// have a gap.
    pub fn write(
        &mut self,
        config: &LoopConfig,
        state: &State,
        storage: &mut Storage,
        durability: Durability,
        now: Timestamp,
        queue: &mut InputQueue,
    ) -> Result<Option<String>, RunError> {
        self.due = None;
        storage.sync()?;
        // A deleted working directory is not created again, and a loop that is not stored has no snapshot.
        if !config.working_dir.is_dir() || !config.settings.state.enabled {
            return Ok(None);
        }
        if !storage.lock.is_in_place(&config.working_dir) {
            // Another runner may use the directory and its snapshot. The next repair checks the lock.
            self.due = Some(instant() + LOCK_RETRY);
            return Ok(None);
        }
        let path = config.packed_snapshot_path();
        let snapshot = Snapshot::of(state, &config.working_dir, now);
        let seq = snapshot.seq;
        let moved = self.quarantine_foreign(config, state.loop_id, &path);
        let written = moved.and_then(|wrong| {
            let (plain, packing) = (config.snapshot_path(), config.packing());
            let mark = snapshot.write(&plain, packing, durability, &config.encryption)?;
            Ok((wrong, mark))
        });
        match written {
            Ok((wrong, mark)) => {
                self.failed = false;
                self.last = Some(SavedSnapshot { mark, seq });
                return Ok(wrong);
            }
            Err(error) => {
                // The file may be complete although its sync failed.
                let found = SavedSnapshot::find(&path, state.loop_id, &config.encryption);
                if let Some(found) = found.filter(|found| found.seq == seq) {
                    self.last = Some(found);
                }
                let is_warned = std::mem::replace(&mut self.failed, true);
                if !is_warned && state.outcome().is_none() {
                    queue.warn(format!("the snapshot is not up to date: {}", chain(&error)));
                }
            }
        }
        Ok(None)
    }
}

/// Returns whether the loop has started and has not ended.
pub(super) fn is_running(state: &State) -> bool {
    !matches!(state.phase, Phase::Idle | Phase::Ended { .. })
}

fn instant() -> Instant {
    Instant::from_std(clock::monotonic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_reboot_is_saved_in_the_snapshot() {
        let failed = LoopEvent::RebootFailed {
            reason: tachikoma_core::RebootReason::Manual,
            iteration: 1,
            error: "no answer".to_owned(),
            aborted: false,
        };
        assert_eq!(durability(&failed), Some(Durability::Synced));
        assert_eq!(durability(&LoopEvent::Resumed), Some(Durability::Synced));
        assert_eq!(durability(&LoopEvent::OutputSeen), None);
    }
}
