//! Runs commands of the configuration (hooks, gates, stop scripts) in parallel to the agent. Each runs under a guard, which ends all processes that
//! the command leaves, and has a timeout.

mod cancellable_task;
mod job;
mod limit;
mod output;

pub(crate) use cancellable_task::{CancellableTask, TaskCommand};
pub(crate) use job::{Ended, Failure, GRACE, Job, Shell};
pub(crate) use limit::Limit;
pub(crate) use output::CommandOutput;
