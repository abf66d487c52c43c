//! Making whole what the agent, or anyone, destroyed of the loop's own while it runs: lock, journal, control socket,
//! snapshot.

use std::path::Path;

use tachikoma_core::{AgentEvent, Input, Repair, Timestamp, step};
use tachikoma_fs::{FsError, quarantine};

use super::backing::failed_backup;
use super::upkeep::Task;
use super::{Cut, LoopRunner, RunError};
use crate::error::chain;
use crate::store::StoreError;
use crate::store::lock::LockError;

/// Returns whether an input may end an iteration or the loop, or launch the agent: before that, all must be whole.
pub(super) fn is_turning_point(input: &Input) -> bool {
    match input {
        Input::Start { .. }
        | Input::Wake
        | Input::Command { .. }
        | Input::Shutdown { .. }
        | Input::Decline { .. }
        | Input::Broken { .. }
        | Input::AutocommitFinished { .. }
        | Input::ConditionsAnswered { .. }
        | Input::GatesRan { .. }
        | Input::OperatorRequest { .. }
        | Input::RolledBack { .. }
        | Input::HooksRan { .. } => true,
        Input::Agent { event: news, .. } => match news {
            AgentEvent::NotLaunched { .. }
            | AgentEvent::Opened
            | AgentEvent::TurnEnded(_)
            | AgentEvent::Exited { .. }
            | AgentEvent::GuardLost => true,
            AgentEvent::Launched { .. }
            | AgentEvent::SessionNamed { .. }
            | AgentEvent::Output
            | AgentEvent::ContextMeasured { .. }
            | AgentEvent::ToolStarted { .. }
            | AgentEvent::ToolEnded { .. }
            | AgentEvent::ToolDenied { .. }
            | AgentEvent::ProcessesSampled { .. }
            | AgentEvent::HandOffText { .. }
            | AgentEvent::StreamEnded
            | AgentEvent::CallEnded { .. }
            | AgentEvent::Cost { .. }
            | AgentEvent::ConversationResumed(_)
            | AgentEvent::Quota(_)
            | AgentEvent::FileTouched { .. } => false,
        },
        Input::Suspended { .. }
        | Input::SnapshotTaken { .. }
        | Input::CustomSet { .. }
        | Input::Note { .. }
        | Input::CompletionClaimed { .. }
        | Input::Warning { .. }
        | Input::DiskWasFull { .. }
        | Input::Incident(_)
        | Input::Repaired { .. } => false,
    }
}

impl LoopRunner {
    /// Looks at everything once, and repairs and records what is not whole. The lock goes first: nothing is written where
    /// another runner works.
    pub(super) async fn heal(&mut self, now: Timestamp) -> Result<(), Cut> {
        self.saving.looked();
        let lock = match self.lock_whole().await {
            Err(Cut::Failed(lost @ RunError::Lock(_))) => {
                self.rescue_journal(now).await;
                return Err(lost.into());
            }
            lock => lock?,
        };
        let journal = self.journal_whole(now).await?;
        let socket = self.socket_whole().await;
        // Without it nobody could open the rest; one that cannot be written is tried again.
        let _ = self.config.vault.put_back_identity();
        let snapshot = self.snapshot_whole()?;
        let repairs = [
            (Repair::Lock, lock),
            (Repair::Journal, journal),
            (Repair::Socket, socket),
            (Repair::Snapshot, snapshot),
        ];
        for (what, how) in repairs {
            if let Some(how) = how {
                self.record(now, Input::Repaired { what, how }).await?;
                if let Some(warning) = quarantine::bound(&self.config.working_dir) {
                    self.queue.push_back(Input::Warning { warning });
                }
            }
        }
        Ok(())
    }

    /// Puts the journal back for whoever takes up this loop later, although another runner has the directory: as long as
    /// that knows nothing of the loop, its own directory there is nobody else's.
    async fn rescue_journal(&mut self, now: Timestamp) {
        // That the lock is lost says more than whatever goes wrong here.
        if let Ok(Some(how)) = self.journal.rescue() {
            let what = Repair::Journal;
            let _ = self.record(now, Input::Repaired { what, how }).await;
            let _ = self.journal.sync();
        }
    }

    /// Closes the segment and begins the next. Where that fails, what it needs is made whole, and it is tried once more.
    pub(super) async fn turn_segment(&mut self, now: Timestamp) -> Result<(), Cut> {
        let mut turned = self.journal.next_segment(&mut self.state, now);
        if let Err(StoreError::File(FsError::Io { .. })) = &turned
            && !turned.as_ref().is_err_and(StoreError::is_full_disk)
            && self.config.working_dir.is_dir()
        {
            self.heal(now).await?;
            let moved = self.journal.make_way_for_next();
            if let Some(how) = moved.map_err(RunError::Journal)? {
                let what = Repair::Journal;
                self.record(now, Input::Repaired { what, how }).await?;
            }
            // It may have been made whole by beginning the next one.
            if !self.journal.is_full() {
                return Ok(());
            }
            turned = self.journal.next_segment(&mut self.state, now);
        }
        match turned {
            Ok(opened) => {
                self.publish(opened);
                self.upkeep
                    .leave(Task::CompressSegments(self.journal.closed()));
                Ok(())
            }
            // This one grows on until there is room for the next.
            Err(error) if error.is_full_disk() => Ok(()),
            Err(error) => Err(RunError::Journal(error).into()),
        }
    }

    /// Goes on in a new segment behind one that is damaged: that has the whole state, and can be backed up.
    pub(super) async fn leave_segment(&mut self, segment: &Path, why: &str) -> Result<(), Cut> {
        let left = self.leave(segment, why).await;
        self.unwritten |= left.is_err();
        left
    }

    async fn leave(&mut self, segment: &Path, why: &str) -> Result<(), Cut> {
        let is_written = |runner: &Self| runner.journal.part().path == *segment;
        if !is_written(self) {
            // Told already, of a backup before.
            return Ok(());
        }
        let now = self.clock.now();
        self.turn_segment(now).await?;
        if is_written(self) {
            // No room, for example: the next backup finds it out again.
            let warning = failed_backup(why);
            self.queue.push_back(Input::Warning { warning });
            return Ok(());
        }
        let next = self.journal.part().segment;
        let how = format!("{why}; segment {next} goes on from the full state");
        let what = Repair::Journal;
        self.record(now, Input::Repaired { what, how }).await?;
        Ok(self.back_up()?)
    }

    async fn lock_whole(&mut self) -> Result<Option<String>, Cut> {
        // Without a working directory there is nothing to hold; the next launch says so.
        if !self.config.working_dir.is_dir() {
            return Ok(None);
        }
        let how = match self.lock.keep(&self.config.working_dir).await {
            Ok(how) => how,
            // It is looked at again before the next launch; a lock does not need to be signed to hold.
            Err(LockError::Store(error)) if error.is_full_disk() => None,
            Err(LockError::Store(error)) => return Err(RunError::Journal(error).into()),
            Err(held @ LockError::Held { .. }) => return Err(RunError::Lock(held).into()),
        };
        if how.is_some()
            && let Some(guard) = &mut self.guard
            && let Ok(lock) = self.lock.share()
        {
            // A guard that is gone is told of by its own news.
            let _ = guard.hold(lock);
        }
        Ok(how)
    }

    async fn journal_whole(&mut self, now: Timestamp) -> Result<Option<String>, Cut> {
        if self.journal.wound().is_none() || !self.config.working_dir.is_dir() {
            return Ok(None);
        }
        let healed = self.with_room(|runner| runner.heal_journal(now)).await?;
        let Some(healed) = healed else {
            return Ok(None);
        };
        if let Some(opened) = healed.opened {
            self.publish(opened);
        }
        Ok(Some(healed.how))
    }

    fn heal_journal(
        &mut self,
        now: Timestamp,
    ) -> Result<Option<crate::store::journal::Healed>, StoreError> {
        // Looked at again: an earlier try may have changed what is there.
        let Some(wound) = self.journal.wound() else {
            return Ok(None);
        };
        self.journal.heal(wound, &mut self.state, now).map(Some)
    }

    async fn socket_whole(&mut self) -> Option<String> {
        let control = self.control.as_mut()?;
        match control.keep().await {
            Ok(false) => None,
            Ok(true) => {
                self.deaf = false;
                Some("its file was gone; it was made anew".to_owned())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    let warning = format!("nobody can talk to the runner: {}", chain(&error));
                    self.queue.push_back(Input::Warning { warning });
                }
                None
            }
        }
    }

    async fn record(&mut self, now: Timestamp, input: Input) -> Result<(), Cut> {
        let decided = step(&self.policy, &mut self.state, now, input);
        debug_assert!(decided.effects.is_empty(), "a repair is only recorded");
        self.with_room(|runner| runner.journal.append(&decided.records))
            .await?;
        self.note_unsaved(&decided.records);
        for record in decided.records {
            self.publish(record);
        }
        Ok(())
    }
}
