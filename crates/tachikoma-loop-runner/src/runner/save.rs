//! Keeping the snapshot up to date: at the end of an iteration, at changes of state, and after a while.

use std::path::Path;

use tachikoma_core::{Input, LoopEvent, LoopId, Phase, Record, Repair, Seq};

use super::{LoopRunner, RunError};
use crate::clock;
use crate::error::chain;
use crate::store::quarantine::quarantine;
use crate::store::snapshot::{self, Durability, Snapshot};
use crate::store::whole::FileMark;

/// Returns whether a fact is worth a snapshot, and how durable that must be.
pub(super) fn wanted(event: &LoopEvent) -> Option<Durability> {
    match event {
        LoopEvent::Paused { .. }
        | LoopEvent::Resumed
        | LoopEvent::RebootStarted { .. }
        | LoopEvent::RebootCompleted { .. }
        | LoopEvent::Completed { .. }
        | LoopEvent::Stopped { .. }
        | LoopEvent::Error { .. } => Some(Durability::Synced),
        LoopEvent::IterationCompleted { .. }
        | LoopEvent::IterationFailed { .. }
        | LoopEvent::IterationLimited { .. }
        | LoopEvent::Noted { .. }
        | LoopEvent::CustomSet { .. } => Some(Durability::Lazy),
        LoopEvent::SegmentOpened { .. }
        | LoopEvent::Started { .. }
        | LoopEvent::ConfigChanged { .. }
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
        | LoopEvent::TurnResulted { .. }
        | LoopEvent::EndingRequested { .. }
        | LoopEvent::RungClimbed { .. }
        | LoopEvent::StoodStill { .. }
        | LoopEvent::LeftoversEnded { .. }
        | LoopEvent::StreamEnded
        | LoopEvent::AttemptCut { .. }
        | LoopEvent::StopConditionTriggered { .. }
        | LoopEvent::RebootRequested { .. }
        | LoopEvent::RebootFailed { .. }
        | LoopEvent::DiskWasFull { .. }
        | LoopEvent::Repaired { .. }
        | LoopEvent::Warned { .. } => None,
    }
}

/// The snapshot as it was last written.
#[derive(Debug)]
pub(super) struct Saved {
    mark: FileMark,
    /// The record it stands at.
    seq: Seq,
    /// When it was last seen to be so.
    looked: tokio::time::Instant,
}

impl Saved {
    fn new(mark: FileMark, seq: Seq) -> Self {
        Self {
            mark,
            seq,
            looked: tokio::time::Instant::from_std(clock::monotonic()),
        }
    }

    /// What a runner finds.
    pub(super) fn found(path: &Path, loop_id: LoopId) -> Option<Self> {
        let mark = FileMark::of(path)?;
        let found = snapshot::read(path).ok().flatten()?;
        (found.loop_id == loop_id).then(|| Self::new(mark, found.seq))
    }
}

impl LoopRunner {
    /// Remembers that there is something to save, and by when.
    pub(super) fn note_unsaved(&mut self, records: &[Record]) {
        let interval = self.config.settings.state.auto_save_interval.get();
        let kept = self.config.settings.state.enabled;
        if records.is_empty() || interval.is_zero() || self.unsaved.is_some() || !kept {
            return;
        }
        self.unsaved = Some(tokio::time::Instant::from_std(
            clock::monotonic() + interval,
        ));
    }

    /// Returns when to look after the snapshot: when something is to be saved, and, while an agent runs that could lay hands
    /// on the file, once in an interval.
    pub(super) fn save_due(&self) -> Option<tokio::time::Instant> {
        let interval = self.config.settings.state.auto_save_interval.get();
        let agent_runs = match self.state.phase {
            Phase::Working { .. } => true,
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => false,
        };
        let watched = self.saved.as_ref().filter(|_| agent_runs);
        let look = watched.map(|saved| saved.looked + interval);
        self.unsaved.or(look.filter(|_| !interval.is_zero()))
    }

    /// Saves what is not saved, and writes the snapshot anew if it is not there any more as it was written.
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub(super) fn look_after_snapshot(&mut self) -> Result<(), RunError> {
        if self.unsaved.is_some() || !self.is_snapshot_whole() {
            self.save(Durability::Synced)?;
        }
        Ok(())
    }

    /// Writes the snapshot anew if it is not there any more as it was written. Returns what was wrong and what was done.
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub(super) fn snapshot_whole(&mut self) -> Result<Option<String>, RunError> {
        if self.is_snapshot_whole() {
            return Ok(None);
        }
        self.write_snapshot(Durability::Synced)
    }

    /// Returns whether the snapshot is there as it was last written; also if it was not written yet.
    fn is_snapshot_whole(&mut self) -> bool {
        let path = self.config.snapshot_path();
        let Some(saved) = &mut self.saved else {
            return true;
        };
        saved.looked = tokio::time::Instant::from_std(clock::monotonic());
        let there = FileMark::of(&path);
        if there.as_ref() == Some(&saved.mark) {
            return true;
        }
        // It may have been touched, or copied there and back.
        let same = Saved::found(&path, self.state.loop_id).filter(|found| found.seq == saved.seq);
        same.map(|found| *saved = found).is_some()
    }

    /// Moves what someone has put in the place of the snapshot to the quarantine. Returns what was wrong.
    fn make_way(&mut self, path: &Path) -> Option<String> {
        if self.is_snapshot_whole() {
            return None;
        }
        let working_dir = &self.config.working_dir;
        match quarantine(working_dir, path) {
            Ok(None) => Some("its file was gone; it was written anew".to_owned()),
            Ok(Some(moved)) => {
                let shown = moved.strip_prefix(working_dir).unwrap_or(&moved);
                Some(format!(
                    "its file was changed; it was written anew; what was found is at {}",
                    shown.display()
                ))
            }
            // Whoever writes there says what is wrong.
            Err(_) => None,
        }
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
        self.unsaved = None;
        if let Err(error) = self.journal.sync() {
            self.unwritten = true;
            return Err(RunError::Journal(error));
        }
        // One that is gone is not made anew by us, and a loop that is not kept has nothing to be read from.
        if !self.config.working_dir.is_dir() || !self.config.settings.state.enabled {
            return Ok(None);
        }
        let saved_at = self.clock.now();
        let path = self.config.snapshot_path();
        let snapshot = Snapshot::of(&self.state, &self.config.working_dir, saved_at);
        let wrong = self.make_way(&path);
        match snapshot.write_marked(&path, durability) {
            Ok(mark) => {
                self.save_failed = false;
                self.saved = Some(Saved::new(mark, snapshot.seq));
                return Ok(wrong);
            }
            Err(_) if self.save_failed || self.state.outcome().is_some() => {}
            Err(error) => {
                self.save_failed = true;
                let warning = format!("the snapshot is not up to date: {}", chain(&error));
                self.queue.push_back(Input::Trouble { warning });
            }
        }
        Ok(None)
    }
}
