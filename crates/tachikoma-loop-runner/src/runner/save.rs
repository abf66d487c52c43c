//! Keeping the snapshot up to date: at the end of an iteration, at changes of state, and after a while.

use tachikoma_core::{Input, LoopEvent, Record};

use super::{LoopRunner, RunError};
use crate::clock;
use crate::error::chain;
use crate::store::snapshot::{Durability, Snapshot};

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
        | LoopEvent::OutputSeen
        | LoopEvent::ContextMeasured { .. }
        | LoopEvent::ToolStarted { .. }
        | LoopEvent::ToolEnded { .. }
        | LoopEvent::TurnResulted { .. }
        | LoopEvent::EndingRequested { .. }
        | LoopEvent::RungClimbed { .. }
        | LoopEvent::StoodStill { .. }
        | LoopEvent::LeftoversEnded { .. }
        | LoopEvent::AttemptCut { .. }
        | LoopEvent::StopConditionTriggered { .. }
        | LoopEvent::RebootRequested { .. }
        | LoopEvent::RebootFailed { .. }
        | LoopEvent::DiskWasFull { .. }
        | LoopEvent::Repaired { .. }
        | LoopEvent::Warned { .. } => None,
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

    /// Writes the snapshot. The journal is the truth: if it cannot be written, that is a warning, once until it can.
    ///
    /// # Errors
    /// The journal cannot be synced. It goes first: a snapshot that survives the machine with records that do not would
    /// leave a gap in the journal.
    pub(super) fn save(&mut self, durability: Durability) -> Result<(), RunError> {
        self.unsaved = None;
        if let Err(error) = self.journal.sync() {
            self.unwritten = true;
            return Err(RunError::Journal(error));
        }
        // One that is gone is not made anew by us, and a loop that is not kept has nothing to be read from.
        if !self.config.working_dir.is_dir() || !self.config.settings.state.enabled {
            return Ok(());
        }
        let saved_at = self.clock.now();
        let path = self.config.snapshot_path();
        let snapshot = Snapshot::of(&self.state, &self.config.working_dir, saved_at);
        match snapshot.write(&path, durability) {
            Ok(()) => self.save_failed = false,
            Err(_) if self.save_failed || self.state.outcome().is_some() => {}
            Err(error) => {
                self.save_failed = true;
                let warning = format!("the snapshot is not up to date: {}", chain(&error));
                self.queue.push_back(Input::Trouble { warning });
            }
        }
        Ok(())
    }
}
