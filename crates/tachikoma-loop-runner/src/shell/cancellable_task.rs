//! A task beside the loop that can be suspended, resumed and canceled.

use std::future::Future;

use tokio::sync::{mpsc, oneshot};

use crate::task::Task;

/// A task handles a command at once, so that few of them wait.
const COMMANDS_MAX: usize = 8;

/// A command to a task that runs.
#[derive(Debug)]
pub(crate) enum TaskCommand {
    /// The whole process is about to be stopped. The sender is used when the task has stopped.
    Suspend(oneshot::Sender<()>),
    /// The process continues.
    Resume,
    /// The result is no longer needed.
    Cancel,
}

/// A task that runs. Dropping it aborts it.
#[derive(Debug)]
pub(crate) struct CancellableTask<T> {
    commands: mpsc::Sender<TaskCommand>,
    result: oneshot::Receiver<T>,
    task: Task,
}

impl<T: Send + 'static> CancellableTask<T> {
    /// Cancels the task `before`, and starts when that has ended.
    pub fn start<W>(
        name: &'static str,
        before: Option<Self>,
        work: impl FnOnce(mpsc::Receiver<TaskCommand>) -> W + Send + 'static,
    ) -> Self
    where
        W: Future<Output = T> + Send,
    {
        let (commands, waiting) = mpsc::channel(COMMANDS_MAX);
        let (sender, result) = oneshot::channel();
        let work = async move {
            if let Some(before) = before {
                before.cancel_and_wait().await;
            }
            // The receiver may have been dropped.
            let _ = sender.send(work(waiting).await);
        };
        Self {
            commands,
            result,
            task: Task::spawn(name, work),
        }
    }

    /// Waits for the result. The error is the message of a panic of the task itself. Cancel-safe.
    pub async fn ended(&mut self) -> Result<T, String> {
        match (&mut self.result).await {
            Ok(result) => Ok(result),
            Err(_) => Err(self.task.broken().await),
        }
    }

    /// Stops what runs, as Ctrl-Z does, and then uses `done`.
    pub fn suspend(&self, done: oneshot::Sender<()>) {
        self.command(TaskCommand::Suspend(done));
    }

    /// Continues what was stopped.
    pub fn resume(&self) {
        self.command(TaskCommand::Resume);
    }

    /// Terminates what runs, and kills it if it does not end. Does not wait.
    pub fn cancel(&self) {
        self.command(TaskCommand::Cancel);
    }

    /// Cancels the task, and waits until it has ended.
    pub async fn cancel_and_wait(mut self) {
        self.cancel();
        // The result is not needed, and neither is a panic.
        let _ = self.task.ended().await;
    }

    fn command(&self, command: TaskCommand) {
        // A task that has ended needs no command.
        let _ = self.commands.try_send(command);
    }
}

impl<T> Drop for CancellableTask<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
