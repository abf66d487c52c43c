//! Repair of the loop's own files after the agent or another program damaged them: when they are checked, and how the lock is repaired.

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

/// Takes the lock again if its file was deleted. Returns a description of the repair; `None` if none was needed.
///
/// # Errors
/// Another runner has the lock, or the lock file cannot be used.
pub(super) async fn repair_lock(
    config: &LoopConfig,
    storage: &mut Storage,
    session: &mut Session,
) -> Result<Option<String>, Abort> {
    // If the working directory is missing, there is nothing to lock. The next launch fails with that reason.
    if !config.working_dir.is_dir() {
        return Ok(None);
    }
    let how = match storage.lock.keep(&config.working_dir).await {
        Ok(how) => how,
        // The lock is held even though its file has no content. The next repair writes the content.
        Err(LockError::Store(error)) if error.is_full_disk() => None,
        Err(LockError::Store(error)) => return Err(RunError::Journal(error).into()),
        Err(held @ LockError::Held { .. }) => return Err(RunError::Lock(held).into()),
    };
    if how.is_some()
        && let Some(guard) = session.guard()
        && let Ok(lock) = storage.lock.share()
    {
        // Errors are ignored: if the guard has ended, it is reported as a separate event.
        let _ = guard.hold(lock);
    }
    Ok(how)
}
