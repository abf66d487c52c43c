//! Writes to the agent's stdin.

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::task::Task;

/// Lines that may wait for an agent that does not read: a prompt, an aside, an interrupt. An agent that leaves more unread is stuck, and a
/// timeout of the core ends it.
const LINES_MAX: usize = 16;

/// Why a line was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdinError {
    /// The agent runs, and has too many lines to read.
    Full,
    /// The stdin is closed, because the agent has ended or is ending.
    Closed,
}

/// Writes lines to one agent. Dropping it closes the agent's stdin.
#[derive(Debug)]
pub(crate) struct AgentStdin {
    lines: mpsc::Sender<String>,
    /// Ends by itself when the stdin is closed on either side.
    _task: Task,
}

impl AgentStdin {
    /// Starts to write, beginning with these lines.
    pub fn start(mut pipe: Sender, first: Vec<String>) -> Self {
        let (lines, mut waiting) = mpsc::channel::<String>(LINES_MAX);
        let task = Task::spawn("writer of the agent's input", async move {
            for line in first {
                if pipe.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
            while let Some(line) = waiting.recv().await {
                // The agent has closed its stdin. The guard reports its end.
                if pipe.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        Self { lines, _task: task }
    }

    /// Queues one line, and does not wait for the agent to read it.
    ///
    /// # Errors
    /// The queue is full, or the stdin is closed.
    pub fn write_line(&self, line: String) -> Result<(), StdinError> {
        self.lines.try_send(line).map_err(|error| match error {
            TrySendError::Full(_) => StdinError::Full,
            TrySendError::Closed(_) => StdinError::Closed,
        })
    }
}
