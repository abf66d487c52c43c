//! The events that the actor waits for.

use tachikoma_core::{Input, Urgency};

use super::autocommit::GitReply;
use super::hook_runner::HooksEnded;
use super::maintenance::MaintenanceEvent;
use super::notifier::DeliveryEnded;
use crate::gates::CheckOutput;
use crate::handle::LoopRequest;
use crate::process::GuardReport;
use crate::session::process::ReaderEvent;
use crate::shell::TaskResult;

/// What happened next.
#[derive(Debug)]
pub(super) enum Event {
    /// The process was told to end.
    Shutdown {
        signal: i32,
        urgency: Urgency,
    },
    /// A caller asks for something.
    Request(LoopRequest),
    /// A deadline of the core has passed.
    Deadline,
    /// The files of the loop have to be checked, saved or backed up.
    FilesDue,
    /// The snapshot before a turn takes too long.
    SnapshotTimedOut,
    /// The time to try again on a full disk.
    RetryDue,
    /// A feature reports something that the core decides as it is.
    Input(Input),
    Maintenance(MaintenanceEvent),
    Git(GitReply),
    Hooks(HooksEnded),
    Delivery(DeliveryEnded),
    Check(TaskResult<CheckOutput>),
    Guard(GuardReport),
    Agent(ReaderEvent),
}

/// Waits for a moment; without one, does not return. Cancel-safe.
pub(super) async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
