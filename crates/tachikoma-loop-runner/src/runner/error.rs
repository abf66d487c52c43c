//! Why a run ends although the core has not ended the loop.

use std::time::Duration;

use tachikoma_core::{InvalidState, Outcome};

use crate::opencode::supervisor::SupervisorError;
use crate::process::GuardError;
use crate::store::StoreError;
use crate::store::lock::LockError;

/// Why a run ended without an outcome. All records are stored, and another run can continue the loop.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The loop cannot be started from its state.
    #[error(transparent)]
    InvalidState(#[from] InvalidState),
    /// The journal could not be written.
    #[error(
        "the journal cannot be written; the loop has ended, and nothing that was recorded is lost"
    )]
    Journal(#[source] StoreError),
    /// The disk was full for too long.
    #[error(
        "the disk stayed full for {} s, and the loop has ended; all records are safe",
        waited.as_secs()
    )]
    NoRoom {
        /// How long the runner waited for space.
        waited: Duration,
        /// The error of the failed write.
        #[source]
        source: StoreError,
    },
    /// The lock of the working directory was lost, and another runner has it.
    #[error("the lock of the working directory was lost, and the loop has ended")]
    Lock(#[source] LockError),
    /// An earlier call of `run` could not write the journal, so the state in memory is newer than the journal.
    #[error("the journal could not be written before; close this runner and open the loop again")]
    Unwritten,
    /// The guard of the agent cannot be started.
    #[error("the guard process cannot be started")]
    Guard(#[from] GuardError),
    /// The OpenCode server of the loop cannot be supervised.
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
