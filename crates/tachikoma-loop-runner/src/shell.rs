//! Commands of the configuration (hooks, gates, stop scripts), run beside the agent: each under a guard, which ends whatever the
//! command leaves behind, bounded in time, and heard of while it runs.

mod cancellable_task;
mod job;
mod limit;
mod output;

pub(crate) use cancellable_task::{CancellableTask, TaskCommand, TaskResult};
pub(crate) use job::{Ended, Failure, GRACE, Job, Shell};
pub(crate) use limit::Limit;
pub(crate) use output::Said;
