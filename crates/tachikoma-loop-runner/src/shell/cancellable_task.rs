//! A background task that can be suspended, resumed and canceled.

use std::future::Future;

use tokio::sync::{mpsc, oneshot};

use crate::task::Task;

/// Size of the command queue of a task. A task handles commands immediately, so only few of them wait.
const COMMANDS_MAX: usize = 8;

/// A command to a running task.
#[derive(Debug)]
pub(crate) enum TaskCommand {
    /// Suspend the task, because the whole process is about to be suspended. The sender is used after the task is suspended.
    Suspend(oneshot::Sender<()>),
    /// Continue the task.
    Resume,
    /// Cancel the task, because its result is no longer needed.
    Cancel,
}

/// A running task. Dropping it aborts the task.
#[derive(Debug)]
pub(crate) struct CancellableTask<T> {
    commands: mpsc::Sender<TaskCommand>,
    result: oneshot::Receiver<T>,
    task: Task,
}

impl<T: Send + 'static> CancellableTask<T> {
    /// Cancels the task `before`, and starts the new task after the old one has ended.
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
            // Sending fails if the receiver was dropped, which does not matter.
            let _ = sender.send(work(waiting).await);
        };
        Self {
            commands,
            result,
            task: Task::spawn(name, work),
        }
    }

    /// Waits for the result of the task. The error is the message of a panic. Cancel-safe.
    pub async fn ended(&mut self) -> Result<T, String> {
        match (&mut self.result).await {
            Ok(result) => Ok(result),
            Err(_) => Err(self.task.broken().await),
        }
    }

    /// Suspends the task, as Ctrl-Z does, and then sends `done`.
    pub fn suspend(&self, done: oneshot::Sender<()>) {
        self.command(TaskCommand::Suspend(done));
    }

    /// Continues a suspended task.
    pub fn resume(&self) {
        self.command(TaskCommand::Resume);
    }

    /// Terminates the processes of the task, and kills them if they do not end. Does not wait.
    pub fn cancel(&self) {
        self.command(TaskCommand::Cancel);
    }

    /// Cancels the task, and waits until it has ended.
    pub async fn cancel_and_wait(mut self) {
        self.cancel();
        // Neither the result nor a panic of the task is needed.
        let _ = self.task.ended().await;
    }

    fn command(&self, command: TaskCommand) {
        // Sending fails if the task has ended, which then needs no command.
        let _ = self.commands.try_send(command);
    }
}

impl<T> Drop for CancellableTask<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
