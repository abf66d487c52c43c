//! The events that the actor waits for.

use tachikoma_core::{Activity, Input, Urgency};

use super::autocommit::GitReply;
use super::hook_runner::HooksEnded;
use super::maintenance::MaintenanceEvent;
use crate::gates::CheckOutput;
use crate::handle::LoopRequest;
use crate::notify::DeliveryEnded;
use crate::process::GuardReport;
use crate::session::process::ReaderEvent;

/// An event that the actor handles.
#[derive(Debug)]
pub(super) enum Event {
    /// The process received a signal that ends the loop.
    Shutdown {
        signal: i32,
        urgency: Urgency,
    },
    /// A request of a caller.
    Request(LoopRequest),
    /// A deadline of the core has passed.
    Deadline,
    /// The files of the loop have to be checked, saved or backed up.
    FilesDue,
    /// The git snapshot before a turn takes too long.
    SnapshotTimedOut,
    /// The next write attempt on a full disk is due.
    RetryDue,
    /// An input that is passed to the core unchanged.
    Input(Input),
    Maintenance(MaintenanceEvent),
    Git(GitReply),
    Hooks(HooksEnded),
    Delivery(DeliveryEnded),
    Check(Result<CheckOutput, String>),
    Guard(GuardReport),
    Agent(ReaderEvent),
    /// The result of sampling the activity of the agent's processes.
    Sampled(Result<Option<Activity>, String>),
}
