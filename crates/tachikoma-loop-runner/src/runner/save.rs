//! Keeping the snapshot up to date: at the end of an iteration, at changes of state, and after a while. Nothing is written
//! where another runner may work.

use std::path::Path;
use std::time::Duration;

use tachikoma_core::{Input, LoopEvent, LoopId, Phase, Record, Repair, Seq, Status};
use tachikoma_fs::quarantine::quarantine;
use tachikoma_fs::whole::FileMark;
use tokio::time::Instant;

use super::{Cut, LoopRunner, RunError};
use crate::clock;
use crate::error::chain;
use crate::store::StoreError;
use crate::store::snapshot::{self, Durability, Snapshot};
use crate::store::vault::Vault;

/// How often a runner says that it is alive, where time is counted: so much of it is lost when the power fails.
const ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// When a lock that is not in its place kept a snapshot from being written, it is looked at again after this: soon, and not
/// all the time where a full disk keeps it from being made whole.
const LOCK_RETRY: Duration = Duration::from_secs(1);

/// Returns whether a fact is worth a snapshot, and how durable that must be.
pub(super) fn wanted(event: &LoopEvent) -> Option<Durability> {
    match event {
        LoopEvent::Paused { .. }
        | LoopEvent::Resumed
        | LoopEvent::RebootStarted { .. }
        | LoopEvent::RebootCompleted { .. }
        | LoopEvent::RebootFailed { .. }
        | LoopEvent::Completed { .. }
        | LoopEvent::Stopped { .. }
        | LoopEvent::Error { .. } => Some(Durability::Synced),
        // The agent is at work by then, and the first look by the clock syncs it: a short first iteration need not wait.
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
        LoopEvent::SegmentOpened { .. }
        | LoopEvent::ConfigChanged { .. }
        | LoopEvent::Operator(_)
        | LoopEvent::PauseRequested
        | LoopEvent::PauseWithdrawn
        | LoopEvent::StopRequested { .. }
        | LoopEvent::WaitStarted { .. }
        | LoopEvent::SessionStarted { .. }
        | LoopEvent::SessionEnded { .. }
        | LoopEvent::IterationStarted { .. }
        | LoopEvent::AgentLaunched { .. }
        | LoopEvent::AgentExited { .. }
        | LoopEvent::SessionNamed { .. }
        | LoopEvent::WrapUpAdvised { .. }
        | LoopEvent::ToolDenied { .. }
        | LoopEvent::FileTouched { .. }
        | LoopEvent::HandOffRequested { .. }
        | LoopEvent::HandOffWritten { .. }
        | LoopEvent::HooksStarted { .. }
        | LoopEvent::HooksRan { .. }
        | LoopEvent::ClosingStarted { .. }
        | LoopEvent::SessionOpening { .. }
        | LoopEvent::RebootVerified { .. }
        | LoopEvent::OutputSeen
        | LoopEvent::ContextMeasured { .. }
        | LoopEvent::ToolStarted { .. }
        | LoopEvent::ToolEnded { .. }
        | LoopEvent::TurnResulted(_)
        | LoopEvent::CallEnded { .. }
        | LoopEvent::CostTold { .. }
        | LoopEvent::WorkedOutside { .. }
        | LoopEvent::ConversationTakenUp(_)
        | LoopEvent::QuotaTold(_)
        | LoopEvent::StopPatternMatched { .. }
        | LoopEvent::EndingRequested { .. }
        | LoopEvent::RungClimbed { .. }
        | LoopEvent::Suspended { .. }
        | LoopEvent::LeftoversEnded { .. }
        | LoopEvent::SilenceChecked { .. }
        | LoopEvent::AgentBusy { .. }
        | LoopEvent::StreamEnded
        | LoopEvent::AttemptCut { .. }
        | LoopEvent::SnapshotTaken { .. }
        | LoopEvent::AutocommitStarted { .. }
        | LoopEvent::AutocommitCanceled { .. }
        | LoopEvent::Claimed { .. }
        | LoopEvent::CheckStarted { .. }
        | LoopEvent::ConditionsAnswered { .. }
        | LoopEvent::CheckGivenUp { .. }
        | LoopEvent::ProgressMeasured(_)
        | LoopEvent::StopConditionTriggered { .. }
        | LoopEvent::RebootRequested { .. }
        | LoopEvent::DiskWasFull { .. }
        | LoopEvent::Incident(_)
        | LoopEvent::Repaired { .. }
        | LoopEvent::Warned { .. } => None,
    }
}

/// What is known of the snapshot on disk, and when to look after it.
#[derive(Debug)]
pub(super) struct Saving {
    /// As it was last written, or found.
    last: Option<Saved>,
    /// Whether it could not be written when that was last tried.
    failed: bool,
    /// When the next one is due, if nothing else brings one.
    due: Option<Instant>,
    /// When all that is the loop's own was last looked at.
    looked: Instant,
    /// When it was last said that the runner is alive.
    alive: Instant,
}

impl Saving {
    pub(super) fn new(found: Option<Saved>) -> Self {
        Self {
            last: found,
            failed: false,
            due: None,
            looked: instant(),
            alive: instant(),
        }
    }

    /// All that is the loop's own is looked at.
    pub(super) fn looked(&mut self) {
        self.looked = instant();
    }
}

/// The snapshot as it was last written.
#[derive(Debug)]
pub(super) struct Saved {
    mark: FileMark,
    /// The record it stands at.
    seq: Seq,
}

impl Saved {
    /// What a runner finds of its loop.
    pub(super) fn found(path: &Path, loop_id: LoopId, vault: &Vault) -> Option<Self> {
        let mark = FileMark::of(path)?;
        let found = snapshot::read(path, vault).ok().flatten()?;
        let seq = found.seq;
        (found.loop_id == loop_id).then_some(Self { mark, seq })
    }
}

impl LoopRunner {
    /// Remembers that there is something to save, and by when.
    pub(super) fn note_unsaved(&mut self, records: &[Record]) {
        let interval = self.config.settings.state.auto_save_interval.get();
        let kept = self.config.settings.state.enabled;
        if records.is_empty() || interval.is_zero() || self.saving.due.is_some() || !kept {
            return;
        }
        self.saving.due = Some(instant() + interval);
    }

    /// Returns when to look after everything: when something is to be saved, and, while the loop runs, once in an interval.
    pub(super) fn save_due(&self) -> Option<Instant> {
        let alive = (self.runs() && self.counts_time()).then(|| self.saving.alive + ALIVE_INTERVAL);
        let backup = self.backup_due().filter(|_| self.runs());
        let dues = self.look_due().into_iter().chain(alive).chain(backup);
        dues.min()
    }

    fn look_due(&self) -> Option<Instant> {
        let interval = self.config.settings.state.auto_save_interval.get();
        let look = (self.runs() && !interval.is_zero()).then(|| self.saving.looked + interval);
        self.saving.due.into_iter().chain(look).min()
    }

    fn runs(&self) -> bool {
        match self.state.phase {
            Phase::Working { .. }
            | Phase::Waiting { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. } => true,
            Phase::Idle | Phase::Ended { .. } => false,
        }
    }

    /// Returns whether it matters how long the loop ran.
    fn counts_time(&self) -> bool {
        !self.policy.budgets.duration.is_zero()
    }

    /// Says that the runner is alive, where time is counted: an agent may work for hours without a record.
    fn say_alive(&mut self) {
        self.saving.alive = instant();
        if self.counts_time() {
            self.lock.touch();
            let status = Status::at(&self.state, true, self.clock.now());
            self.ends.status.send_replace(status);
        }
    }

    /// Makes whole what is not, and saves what is not saved. An iteration may take hours, and what was destroyed in it must
    /// not wait for its end: this runner could be killed.
    pub(super) async fn look_after(&mut self) -> Result<(), Cut> {
        self.say_alive();
        self.backup_by_the_clock()?;
        if self.look_due().is_none_or(|due| due > instant()) {
            return Ok(());
        }
        let now = self.clock.now();
        if let Err(cut) = self.heal(now).await {
            self.unwritten = true;
            return Err(cut);
        }
        if self.saving.due.is_some() {
            self.save(Durability::Synced)?;
        }
        Ok(())
    }

    /// Writes the snapshot anew if it is not there any more as it was written. Returns what was wrong and what was done.
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub(super) fn snapshot_whole(&mut self) -> Result<Option<String>, RunError> {
        if self.saving.last.is_none() || self.is_snapshot_whole() {
            return Ok(None);
        }
        self.write_snapshot(Durability::Synced)
    }

    /// Returns whether the snapshot is there as it was last written; if it was not written yet, whether nothing is there.
    fn is_snapshot_whole(&mut self) -> bool {
        let path = self.config.packed_snapshot_path();
        let Some(saved) = &mut self.saving.last else {
            return std::fs::symlink_metadata(&path).is_err();
        };
        if FileMark::of(&path).as_ref() == Some(&saved.mark) {
            return true;
        }
        // It may have been touched, or copied there and back.
        let found = Saved::found(&path, self.state.loop_id, &self.config.vault);
        let same = found.filter(|found| found.seq == saved.seq);
        same.map(|found| *saved = found).is_some()
    }

    /// Moves what someone has put in the place of the snapshot to the quarantine. Returns what was wrong.
    ///
    /// # Errors
    /// It cannot be moved, and must not be written over.
    fn make_way(&mut self, path: &Path) -> Result<Option<String>, StoreError> {
        if self.is_snapshot_whole() {
            return Ok(None);
        }
        let working_dir = &self.config.working_dir;
        Ok(Some(match quarantine(working_dir, path)? {
            None => "its file was gone; it was written anew".to_owned(),
            Some(moved) => {
                let shown = moved.strip_prefix(working_dir).unwrap_or(&moved);
                format!(
                    "its file was changed; it was written anew; what was found is at {}",
                    shown.display()
                )
            }
        }))
    }

    /// Writes the snapshot. The journal is the truth: if it cannot be written, that is a warning, once until it can.
    ///
    /// # Errors
    /// The journal cannot be synced. It goes first: a snapshot that survives the machine with records that do not would
    /// leave a gap in the journal.
    pub(super) fn save(&mut self, durability: Durability) -> Result<(), RunError> {
        let repaired = self.write_snapshot(durability)?;
        if let Some(how) = repaired {
            let what = Repair::Snapshot;
            self.queue.push_back(Input::Repaired { what, how });
        }
        Ok(())
    }

    /// Writes the snapshot, and returns what was wrong with the one that was there.
    fn write_snapshot(&mut self, durability: Durability) -> Result<Option<String>, RunError> {
        self.saving.due = None;
        if let Err(error) = self.journal.sync() {
            self.unwritten = true;
            return Err(RunError::Journal(error));
        }
        // One that is gone is not made anew by us, and a loop that is not kept has nothing to be read from.
        if !self.config.working_dir.is_dir() || !self.config.settings.state.enabled {
            return Ok(None);
        }
        if !self.lock.is_in_place(&self.config.working_dir) {
            // Another runner may have the directory, and the snapshot in it. Whoever heals finds out.
            self.saving.due = Some(instant() + LOCK_RETRY);
            return Ok(None);
        }
        let saved_at = self.clock.now();
        let path = self.config.packed_snapshot_path();
        let snapshot = Snapshot::of(&self.state, &self.config.working_dir, saved_at);
        let seq = snapshot.seq;
        let written = self.make_way(&path).and_then(|wrong| {
            let (plain, packing) = (self.config.snapshot_path(), self.config.packing());
            let vault = &self.config.vault;
            let mark = snapshot.write_marked(&plain, packing, durability, vault)?;
            Ok((wrong, mark))
        });
        match written {
            Ok((wrong, mark)) => {
                self.saving.failed = false;
                self.saving.last = Some(Saved { mark, seq });
                return Ok(wrong);
            }
            Err(error) => {
                // It may be there all the same, only not surely on disk.
                let found = Saved::found(&path, self.state.loop_id, &self.config.vault);
                if let Some(found) = found.filter(|found| found.seq == seq) {
                    self.saving.last = Some(found);
                }
                let is_said = std::mem::replace(&mut self.saving.failed, true);
                if !is_said && self.state.outcome().is_none() {
                    let warning = format!("the snapshot is not up to date: {}", chain(&error));
                    self.queue.push_back(Input::Warning { warning });
                }
            }
        }
        Ok(None)
    }
}

fn instant() -> Instant {
    Instant::from_std(clock::monotonic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_is_saved_however_it_ends() {
        let failed = LoopEvent::RebootFailed {
            reason: tachikoma_core::RebootReason::Manual,
            iteration: 1,
            error: "no answer".to_owned(),
            aborted: false,
        };
        assert_eq!(wanted(&failed), Some(Durability::Synced));
        assert_eq!(wanted(&LoopEvent::Resumed), Some(Durability::Synced));
        assert_eq!(wanted(&LoopEvent::OutputSeen), None);
    }
}
