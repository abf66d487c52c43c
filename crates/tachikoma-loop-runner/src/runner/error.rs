//! Why a run ends although the core has not ended the loop.

use std::time::Duration;

use tachikoma_core::{InvalidState, Outcome};

use crate::opencode::supervisor::SupervisorError;
use crate::process::GuardError;
use crate::store::StoreError;
use crate::store::lock::LockError;

/// Why a run ended without an outcome. What was recorded before is safe, and the loop can be taken up again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The loop cannot be started from where it is.
    #[error(transparent)]
    InvalidState(#[from] InvalidState),
    /// The journal could not be written.
    #[error(
        "the journal cannot be written; the loop has ended, and nothing that was recorded is lost"
    )]
    Journal(#[source] StoreError),
    /// The disk was full, and stayed so.
    #[error(
        "the disk is full, and no room was made within {} s; the loop has ended, and nothing that was recorded is lost",
        waited.as_secs()
    )]
    NoRoom {
        /// How long it was waited for.
        waited: Duration,
        /// What could not be written.
        #[source]
        source: StoreError,
    },
    /// The lock of the working directory was lost, and someone else has it.
    #[error("the lock of the working directory was lost, and the loop has ended")]
    Lock(#[source] LockError),
    /// The journal failed in an earlier run of this runner, which knows more than is written down.
    #[error("the journal could not be written before; close this runner and open the loop again")]
    Unwritten,
    /// There is no guard to hold the agent's processes together.
    #[error("the agent's processes cannot be held together")]
    Guard(#[from] GuardError),
    /// The server that the agent works in cannot be kept alive.
    #[error("OpenCode's server cannot be run for the loop")]
    Server(#[source] Box<SupervisorError>),
}

/// Why a run ends early.
#[derive(Debug)]
pub(super) enum Abort {
    /// The run cannot continue.
    Failed(RunError),
    /// The operator ended the run while the disk was full, so that the end could not be recorded.
    Unrecorded(Outcome),
}

impl From<RunError> for Abort {
    fn from(error: RunError) -> Self {
        Self::Failed(error)
    }
}
