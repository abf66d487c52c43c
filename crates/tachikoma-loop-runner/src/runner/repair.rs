//! Repair of the loop's own files that the agent or another program destroyed: when they are checked, and the repair of the lock.

use tachikoma_core::{AgentInput, Input};

use super::error::{Abort, RunError};
use super::session::Session;
use super::storage::Storage;
use crate::config::LoopConfig;
use crate::store::lock::LockError;

/// Returns whether an input may end an iteration or the loop, or start the agent. All files are checked before such an input.
pub(super) fn is_due_before(input: &Input) -> bool {
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
        Input::Agent { event, .. } => matches!(
            event,
            AgentInput::NotLaunched { .. }
                | AgentInput::Opened
                | AgentInput::TurnEnded(_)
                | AgentInput::Exited { .. }
                | AgentInput::GuardLost
        ),
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

/// Takes the lock again if its file is gone. Returns what was repaired.
///
/// # Errors
/// Another runner has the lock, or its file cannot be used.
pub(super) async fn repair_lock(
    config: &LoopConfig,
    storage: &mut Storage,
    session: &mut Session,
) -> Result<Option<String>, Abort> {
    // Without a working directory there is nothing to lock. The next launch fails with that reason.
    if !config.working_dir.is_dir() {
        return Ok(None);
    }
    let how = match storage.lock.keep(&config.working_dir).await {
        Ok(how) => how,
        // The lock holds without its text. The next repair writes it.
        Err(LockError::Store(error)) if error.is_full_disk() => None,
        Err(LockError::Store(error)) => return Err(RunError::Journal(error).into()),
        Err(held @ LockError::Held { .. }) => return Err(RunError::Lock(held).into()),
    };
    if how.is_some()
        && let Some(guard) = session.guard()
        && let Ok(lock) = storage.lock.share()
    {
        // The end of a guard is an event of its own.
        let _ = guard.hold(lock);
    }
    Ok(how)
}
